//! Messages between the supervisor and the engine.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use pontoon_engine::egress::{EgressRule, RefusedFlows};
use pontoon_ipc::{Channel, ChannelMessage, Descriptor, ProcessReport, ReportKind, text};
use pontoon_sys::seqpacket::MAX_DESCRIPTORS;
use serde::{Deserialize, Serialize};
use tracing::level_filters::LevelFilter;

mod capture;
mod decide;
mod end_flows;
mod flows;
mod forward;
mod owned;
mod port_update;

pub use capture::{CaptureCommand, CaptureResult, CaptureStart};
pub use decide::{DecisionRequest, DecisionVerdict, VerdictKind};
pub use end_flows::{EndFlows, EndedFlows, FlowSelection};
pub use flows::{FlowPage, FlowPageRequest};
pub use forward::ForwardUpdate;
pub use owned::{OwnedPart, OwnedParts};
pub use port_update::{PortError, PortUpdate};

/// Limit on the size of a message in bytes.
pub const MAX_LEN: usize = 64 << 10;

/// Limit on the length of a text in a [`Report`] in bytes.
pub const MAX_TEXT: usize = 4096;

/// Engine's end of its channel to the supervisor.
pub type EngineChannel = Channel<Report, Update>;

/// Supervisor's end of its channel to the engine.
pub type SupervisorChannel = Channel<Update, Report>;

/// Message of the supervisor to a running engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Update {
    /// Resolvers of the host, which have changed.
    Resolvers(Vec<SocketAddr>),
    /// Addresses of the host, and prefixes that a route of type `local` delivers to it, which have changed. See
    /// [`Update::owned`].
    Owned(#[serde(with = "text::list")] Vec<IpNet>),
    /// Part of a list of the host's addresses that does not fit into one message.
    OwnedPart(OwnedPart),
    /// The addresses from which the host sends to other hosts changed: IPv4, IPv6.
    HostAddresses([Option<IpAddr>; 2]),
    /// True if the host has an IPv6 default route now, false if it has lost it.
    Ipv6Route(bool),
    /// Egress rules, which the user has changed.
    Rules(RulesUpdate),
    /// Changes of published ports, at most [`Update::MAX_PORT_UPDATES`], in order. The other variants are states, of which
    /// only the latest is relevant; this one is an event.
    Published(Vec<PortUpdate>),
    /// Changes of guest forwards, at most [`Update::MAX_FORWARD_UPDATES`], in order. Like `Published`, this variant is
    /// an event.
    Forwards(Vec<ForwardUpdate>),
    /// Another socket helper, because the one before has exited: the cookie of the guest's network namespace, and a channel for
    /// each worker.
    SocketHelper(u64, Vec<Descriptor>),
    /// Level of the engine's log.
    LogLevel(#[serde(with = "text")] LevelFilter),
    /// Requests a [`Report::Confirmed`] with this number from each worker.
    Confirm(u64),
    /// Request to one worker for a page of its flows: [`Report::Flows`].
    Flows(FlowPageRequest),
    /// Request to end flows; also an event. [`Report::Confirmed`] has the result.
    EndFlows(EndFlows),
    /// Verdicts about flows, at most [`Update::MAX_VERDICTS`]. Like `Published`, this variant is an event.
    Verdicts(Vec<DecisionVerdict>),
    /// True if a program is connected that decides about flows, false if it has disconnected.
    DeciderConnected(bool),
    /// Start or stop of a capture; also an event. [`Report::Captured`] reports its end.
    Capture(CaptureCommand),
}

/// Message of the engine to the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Report {
    /// The engine has dropped its privileges, and its loop runs.
    Ready,
    /// A worker has applied all earlier updates, and published its statistics after that.
    Confirmed(Confirmation),
    /// Page of a worker's flows, in reply to [`Update::Flows`].
    Flows(FlowPage),
    /// Requests for decisions about new flows, at most [`DecisionRequest::MOST`].
    Decide(Vec<DecisionRequest>),
    /// Result of a capture that has ended and whose file is complete.
    Captured(CaptureResult),
    /// The engine exits because of this error.
    Failed(String),
}

/// Egress rules, and the generation of the list, which is greater than that of the list before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RulesUpdate {
    /// The generation, which the worker publishes with the hits of the rules.
    pub generation: u64,
    /// The rules.
    #[serde(with = "text::list")]
    pub rules: Vec<EgressRule>,
    /// Treatment of flows that the rules refuse.
    #[serde(with = "text")]
    pub refused: RefusedFlows,
}

/// The confirmation of all updates before a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confirmation {
    /// Number of the request, from [`Update::Confirm`].
    pub round: u64,
    /// Index of the worker.
    pub worker: u8,
    /// Published ports that the worker could not take over, at most [`PortError::MOST`].
    pub port_errors: Vec<PortError>,
    /// Results of requests to end flows since the last confirmation, at most [`EndedFlows::MOST`]. A request by which the worker
    /// has ended none has no result.
    pub ended: Vec<EndedFlows>,
}

impl Update {
    /// Limit on the port updates in one message, each of which may have a socket.
    pub const MAX_PORT_UPDATES: usize = MAX_DESCRIPTORS;

    /// Limit on the changes of guest forwards in one message, so that the message is no longer than [`MAX_LEN`].
    pub const MAX_FORWARD_UPDATES: usize = 256;

    /// Limit on the verdicts in one message, each of which may have a socket.
    pub const MAX_VERDICTS: usize = MAX_DESCRIPTORS;

    /// Returns the messages, in order, that send a list of the host's own addresses of any length.
    #[must_use]
    pub fn owned(list: Vec<IpNet>) -> Vec<Self> {
        if list.len() <= OwnedPart::MOST {
            return vec![Self::Owned(list)];
        }
        OwnedPart::split(&list).map(Self::OwnedPart).collect()
    }
}

impl ChannelMessage for Update {
    const MAX_LEN: usize = MAX_LEN;
    const REPLACES: bool = true;

    fn descriptors(&self) -> Vec<&Descriptor> {
        match self {
            Self::Published(ports) => ports.iter().filter_map(PortUpdate::descriptor).collect(),
            Self::Capture(CaptureCommand::Start(start)) => vec![&start.file],
            Self::SocketHelper(_, channels) => channels.iter().collect(),
            Self::Verdicts(verdicts) => verdicts.iter().filter_map(DecisionVerdict::descriptor).collect(),
            _ => Vec::new(),
        }
    }

    fn descriptors_mut(&mut self) -> Vec<&mut Descriptor> {
        match self {
            Self::Published(ports) => ports.iter_mut().filter_map(PortUpdate::descriptor_mut).collect(),
            Self::Capture(CaptureCommand::Start(start)) => vec![&mut start.file],
            Self::SocketHelper(_, channels) => channels.iter_mut().collect(),
            Self::Verdicts(verdicts) => verdicts
                .iter_mut()
                .filter_map(DecisionVerdict::descriptor_mut)
                .collect(),
            _ => Vec::new(),
        }
    }

    /// A port whose socket could not be passed is reported as an error of this port only, a redirected connection whose socket
    /// could not be passed is reset, and a capture whose file could not be passed is reported as failed. Without its channel to the
    /// socket helper, a worker forwards all clients over the link.
    fn may_lack_descriptors(&self) -> bool {
        matches!(
            self,
            Self::Published(_) | Self::SocketHelper(..) | Self::Verdicts(_) | Self::Capture(_)
        )
    }

    fn is_valid(&self) -> bool {
        match self {
            Self::Published(ports) => ports.len() <= Self::MAX_PORT_UPDATES,
            Self::Forwards(updates) => {
                updates.len() <= Self::MAX_FORWARD_UPDATES && updates.iter().all(ForwardUpdate::is_valid)
            }
            Self::EndFlows(request) => request.is_valid(),
            Self::Verdicts(verdicts) => verdicts.len() <= Self::MAX_VERDICTS,
            Self::SocketHelper(_, channels) => channels.len() <= MAX_DESCRIPTORS,
            _ => true,
        }
    }

    fn replaces(&self, older: &Self) -> bool {
        match self {
            Self::Published(_)
            | Self::Forwards(_)
            | Self::Capture(_)
            | Self::SocketHelper(..)
            | Self::EndFlows(_)
            | Self::Verdicts(_) => false,
            // Flows that the older rules refuse and that are to be closed would be kept.
            Self::Rules(rules) if rules.refused == RefusedFlows::Keep => {
                matches!(older, Self::Rules(older) if older.refused == RefusedFlows::Keep)
            }
            Self::OwnedPart(part) if part.from > 0 => false,
            Self::Owned(_) | Self::OwnedPart(_) => matches!(older, Self::Owned(_) | Self::OwnedPart(_)),
            Self::Resolvers(_)
            | Self::HostAddresses(_)
            | Self::Ipv6Route(_)
            | Self::Rules(_)
            | Self::LogLevel(_)
            | Self::DeciderConnected(_)
            | Self::Confirm(_)
            | Self::Flows(_) => std::mem::discriminant(self) == std::mem::discriminant(older),
        }
    }
}

impl ProcessReport for Report {
    const MAX_ERROR: usize = MAX_TEXT;

    fn failure(text: String) -> Self {
        Self::Failed(text)
    }

    fn classify(self) -> ReportKind<Self> {
        match self {
            Self::Ready => ReportKind::Ready,
            Self::Failed(text) => ReportKind::Failed(text),
            other => ReportKind::Other(other),
        }
    }
}

impl ChannelMessage for Report {
    const MAX_LEN: usize = MAX_LEN;

    fn is_valid(&self) -> bool {
        match self {
            Self::Ready => true,
            Self::Confirmed(confirmation) => confirmation.is_valid(),
            Self::Flows(page) => page.is_valid(),
            Self::Captured(result) => result.is_valid(),
            Self::Decide(requests) => {
                requests.len() <= DecisionRequest::MOST && requests.iter().all(DecisionRequest::is_valid)
            }
            Self::Failed(text) => text.len() <= MAX_TEXT,
        }
    }
}

impl Confirmation {
    fn is_valid(&self) -> bool {
        self.port_errors.len() <= PortError::MOST
            && self.port_errors.iter().all(PortError::is_valid)
            && self.ended.len() <= EndedFlows::MOST
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::sync::Arc;
    use std::time::Duration;

    use pontoon_engine::config::{Protocol, Published};
    use pontoon_engine::decider::Denial;
    use pontoon_engine::flow_dump::{Flow, Page, Phase, Traffic};
    use pontoon_engine::policy::GuestForward;
    use pontoon_engine::{FlowId, Kind, WorkerId, egress};
    use pontoon_ipc::{decode, encode};

    use super::decide::tests::{request, verdict};
    use super::*;

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    fn published(host: &str, guest_port: u16) -> Published {
        Published::new(Protocol::Udp, host.parse().unwrap(), guest_port)
    }

    fn forward(port: u16, count: u16) -> GuestForward {
        GuestForward {
            protocol: Protocol::Udp,
            from: SocketAddr::new("10.0.2.2".parse().unwrap(), port),
            to: SocketAddr::new("127.0.0.1".parse().unwrap(), port),
            count,
        }
    }

    #[test]
    fn forwards_beyond_the_last_port_or_between_families_are_refused() {
        let refuses = |forward: GuestForward| {
            let text = encode(&Update::Forwards(vec![ForwardUpdate::Add(forward)])).unwrap();
            decode::<Update>(&text, Vec::new()).is_err()
        };
        assert!(!refuses(forward(u16::MAX, 1)));
        assert!(refuses(forward(u16::MAX, 2)) && refuses(forward(1, 0)));
        let to = "[::1]:5000".parse().unwrap();
        assert!(refuses(GuestForward {
            to,
            ..forward(5000, 1)
        }));
        let many = vec![ForwardUpdate::Remove(forward(1, 1)); Update::MAX_FORWARD_UPDATES];
        assert!(encode(&Update::Forwards(many)).unwrap().len() <= MAX_LEN);
    }

    fn assert_is_decoded<M: ChannelMessage + PartialEq + std::fmt::Debug>(message: &M) {
        let decoded: M = decode(&encode(message).unwrap(), Vec::new()).unwrap();
        assert_eq!(&decoded, message);
    }

    #[test]
    fn decoded_updates_equal_the_encoded_ones() {
        for update in [
            Update::Resolvers(vec![
                "192.0.2.1:53".parse().unwrap(),
                "[fe80::1%2]:53".parse().unwrap(),
            ]),
            Update::Resolvers(Vec::new()),
            Update::Owned(vec![
                "192.0.2.1/32".parse().unwrap(),
                "2001:db8::/64".parse().unwrap(),
            ]),
            Update::Rules(RulesUpdate {
                generation: u64::MAX,
                rules: vec![
                    "deny [2001:db8::/32]:25-26/tcp".parse().unwrap(),
                    "allow *.example.org".parse().unwrap(),
                ],
                refused: RefusedFlows::Keep,
            }),
            Update::EndFlows(EndFlows {
                number: u64::MAX,
                which: FlowSelection::To("*.example.org:443/tcp".parse().unwrap()),
            }),
            Update::EndFlows(EndFlows {
                number: 1,
                which: FlowSelection::Id(0x0102_ffff_ffff_ffff),
            }),
            Update::OwnedPart(OwnedPart {
                from: 7,
                of: 9,
                list: vec![
                    "192.0.2.0/24".parse().unwrap(),
                    "2001:db8::1/128".parse().unwrap(),
                ],
            }),
            Update::Ipv6Route(true),
            Update::Forwards(vec![
                ForwardUpdate::Add(forward(5000, 2)),
                ForwardUpdate::Remove(forward(53, 1)),
            ]),
            Update::LogLevel(LevelFilter::WARN),
            Update::DeciderConnected(true),
            Update::Verdicts(vec![
                verdict(VerdictKind::Allow),
                verdict(VerdictKind::Deny(Denial::Unreachable)),
                verdict(VerdictKind::Redirect("[::1]:80".parse().unwrap())),
            ]),
            Update::Confirm(u64::MAX),
            Update::Capture(CaptureCommand::Stop(7)),
            Update::Flows(FlowPageRequest {
                number: 7,
                worker: 3,
                from: u64::MAX,
            }),
        ] {
            assert_is_decoded(&update);
        }
    }

    #[test]
    fn decoded_reports_equal_the_encoded_ones() {
        let confirmation = Confirmation {
            round: 7,
            worker: 3,
            port_errors: vec![PortError::new(published("[::1]:53", 5353), "no more room")],
            ended: vec![EndedFlows {
                number: u64::MAX,
                count: u32::MAX,
            }],
        };
        let flow = |remote: Option<&str>| Flow {
            id: FlowId {
                kind: Kind::Udp,
                worker: WorkerId(3),
                index: 70_000,
                generation: 9,
            },
            protocol: egress::EgressProtocol::Udp,
            guest: "[fd70:6f6e:746f::15]:53".parse().unwrap(),
            remote: remote.map(|remote| remote.parse().unwrap()),
            came_in: remote.is_some(),
            phase: Phase::TimeWait,
            age: Duration::from_millis(1_234),
            traffic: Traffic {
                up: 5,
                down: u64::MAX,
            },
        };
        let page = |next| FlowPage {
            number: 7,
            page: Page {
                flows: vec![flow(None), flow(Some("192.0.2.1:999"))],
                next,
            },
        };
        let captured = |failed, why: &str| CaptureResult {
            number: 3,
            frames: 9,
            dropped: 1,
            bytes: 4096,
            failed,
            why: why.to_owned(),
        };
        for report in [
            Report::Flows(page(Some(u64::MAX))),
            Report::Flows(page(None)),
            Report::Ready,
            Report::Decide(vec![request(); 2]),
            Report::Captured(captured(true, "cannot write: no space")),
            Report::Captured(captured(false, "it was stopped")),
            Report::Confirmed(confirmation),
            Report::Confirmed(Confirmation::default()),
            Report::failed(&io::Error::other("no memory")),
        ] {
            assert_is_decoded(&report);
        }
    }

    #[test]
    fn sockets_are_passed_with_their_ports() {
        let received = null();
        let number = received.as_raw_fd();
        let update = Update::Published(vec![
            PortUpdate::Close(published("127.0.0.1:80", 80)),
            PortUpdate::Open(published("[::]:81", 8081), Arc::new(null()).into()),
            PortUpdate::Redirect(published("0.0.0.0:82", 8082)),
        ]);
        assert_eq!(update.descriptors().len(), 1);
        for (descriptors, expected) in [(Vec::new(), None), (vec![received], Some(number))] {
            let decoded = decode(&encode(&update).unwrap(), descriptors).unwrap();
            let Update::Published(ports) = decoded else {
                panic!("{decoded:?}");
            };
            let [
                PortUpdate::Close(_),
                PortUpdate::Open(opened, socket),
                PortUpdate::Redirect(_),
            ] = &ports[..]
            else {
                panic!("{ports:?}");
            };
            assert_eq!(*opened, published("[::]:81", 8081));
            assert_eq!(socket.borrow().map(|fd| fd.as_raw_fd()), expected);
        }
    }

    #[test]
    fn capture_is_decoded_with_its_file() {
        for (size, time) in [(None, None), (Some(9), Some(Duration::from_millis(7)))] {
            let start = CaptureStart {
                number: 2,
                file: Arc::new(null()).into(),
                snap: 96,
                size,
                time,
            };
            let bytes = encode(&Update::Capture(CaptureCommand::Start(start))).unwrap();
            let received = null();
            let number = received.as_raw_fd();
            let decoded = decode(&bytes, vec![received]).unwrap();
            let Update::Capture(CaptureCommand::Start(got)) = decoded else {
                panic!("{decoded:?}");
            };
            assert_eq!((got.number, got.snap, got.size, got.time), (2, 96, size, time));
            assert_eq!(got.file.borrow().map(|fd| fd.as_raw_fd()), Some(number));
            let without = decode(&bytes, Vec::new()).unwrap();
            assert!(
                matches!(&without, Update::Capture(CaptureCommand::Start(got)) if got.file.borrow().is_none())
            );
            assert!(decode::<Update>(&bytes, vec![null(), null()]).is_err());
        }
    }

    #[test]
    fn malformed_updates_are_refused() {
        let port = r#"{"protocol":"tcp","host":"0.0.0.0:80","guest_port":80}"#;
        assert!(
            decode::<Update>(
                format!(r#"{{"published":[{{"close":{port}}}]}}"#).as_bytes(),
                vec![]
            )
            .is_ok()
        );
        for message in [
            "",
            "\"ready\"",
            r#"{"owned":["192.0.2"]}"#,
            r#"{"resolvers":["192.0.2.1"]}"#,
            r#"{"owned_part":{"from":0,"list":["192.0.2.1/32"]}}"#,
            r#"{"owned_part":{"from":0,"of":1,"list":["192.0.2"]}}"#,
            r#"{"rules":["allow *"]}"#,
            r#"{"rules":{"rules":["allow *"]}}"#,
            r#"{"rules":{"generation":1,"rules":["allow"]}}"#,
            r#"{"log_level":"loud"}"#,
            r#"{"confirm":null}"#,
            r#"{"confirm":1}{"confirm":2}"#,
            r#"{"published":[{"close":{"protocol":"sctp","host":"0.0.0.0:80","guest_port":80}}]}"#,
            r#"{"published":[{"close":{"protocol":"tcp","host":"0.0.0.0:80","guest_port":80,"x":0}}]}"#,
            r#"{"flows":{"number":1,"worker":256,"from":3}}"#,
            r#"{"flows":{"number":1,"worker":2}}"#,
            r#"{"capture":{"stop":"1"}}"#,
        ] {
            assert!(
                decode::<Update>(message.as_bytes(), Vec::new()).is_err(),
                "{message}"
            );
        }
        let many = vec![PortUpdate::Close(published("[::]:1", 1)); Update::MAX_PORT_UPDATES + 1];
        let many = encode(&Update::Published(many)).unwrap();
        assert!(decode::<Update>(&many, Vec::new()).is_err());
    }

    #[test]
    fn malformed_reports_are_refused() {
        for message in [
            r#"{"ready":1}"#,
            r#"{"captured":{"number":1}}"#,
            r#"{"confirmed":{"round":1,"worker":256,"port_errors":[]}}"#,
            r#"{"flows":{"number":1}}"#,
            r#"{"flows":{"number":1,"page":{"next":null,"flows":[[0,"tcp","10.0.2.15:1",null,false,"open",0,0]]}}}"#,
            r#"{"flows":{"number":1,"page":{"next":null,"flows":[[0,"tcp","10.0.2.15:1",null,false,"opened",0,0,0]]}}}"#,
        ] {
            assert!(
                decode::<Report>(message.as_bytes(), Vec::new()).is_err(),
                "{message}"
            );
        }
        for (count, is_valid) in [(PortError::MOST, true), (PortError::MOST + 1, false)] {
            let port_error = PortError::new(published("[::1]:53", 5353), "no more room");
            let confirmation = Confirmation {
                port_errors: vec![port_error; count],
                ..Confirmation::default()
            };
            let bytes = encode(&Report::Confirmed(confirmation)).unwrap();
            assert_eq!(decode::<Report>(&bytes, Vec::new()).is_ok(), is_valid, "{count}");
        }
        let failed = Report::failed(&io::Error::other("\u{e4}".repeat(MAX_TEXT)));
        assert!(decode::<Report>(&encode(&failed).unwrap(), Vec::new()).is_ok());
        let long = encode(&Report::Failed("a".repeat(MAX_TEXT + 1))).unwrap();
        assert!(decode::<Report>(&long, Vec::new()).is_err());
        assert!(decode::<Report>(b"\"ready\"", vec![null()]).is_err());
    }
}
