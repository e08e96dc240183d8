//! Requests for decisions about new flows, and the verdicts.

use std::net::SocketAddr;
use std::time::Duration;

use pontoon_engine::decider::{Denial, Direction, FlowRequest};
use pontoon_engine::egress::EgressProtocol;
use pontoon_ipc::Descriptor;
use serde::{Deserialize, Serialize};

use super::flows::ProtocolName;

/// Request for a decision about one new flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionRequest {
    /// Number of the request, which contains that of the worker.
    pub token: u64,
    /// Protocol of the flow.
    #[serde(with = "ProtocolName")]
    pub protocol: EgressProtocol,
    /// Destination as the guest has sent it; `None` for a client of a published port.
    pub destination: Option<SocketAddr>,
    /// Host address and port of the published port to which a client has connected.
    pub published: Option<SocketAddr>,
    /// Address and port of the guest's end, or echo id.
    pub guest: SocketAddr,
    /// Address and port of the other end on the host's side.
    pub remote: SocketAddr,
    /// The egress rule that allows the flow, if there are allow rules.
    pub rule: Option<String>,
    /// Time within which the verdict has to arrive, in milliseconds.
    pub deadline_ms: u64,
}

impl DecisionRequest {
    /// Limit on the requests in one message, so that the message is no longer than [`MAX_LEN`](super::MAX_LEN).
    pub const MOST: usize = 64;

    /// Limit on the length of the text of a rule in bytes.
    const MAX_RULE: usize = 512;

    pub(super) fn is_valid(&self) -> bool {
        self.destination.is_some() != self.published.is_some()
            && self.rule.as_ref().is_none_or(|rule| rule.len() <= Self::MAX_RULE)
    }
}

impl From<&FlowRequest> for DecisionRequest {
    fn from(request: &FlowRequest) -> Self {
        let (destination, published) = match request.direction {
            Direction::Out { destination } => (Some(destination), None),
            Direction::In { published } => (None, Some(published)),
        };
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Self {
            token: request.token.0,
            protocol: request.protocol,
            destination,
            published,
            guest: request.guest,
            remote: request.remote,
            rule: request.rule.clone().filter(|rule| rule.len() <= Self::MAX_RULE),
            deadline_ms: millis(request.deadline),
        }
    }
}

/// Verdict about the flow of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecisionVerdict {
    /// Number of the request.
    pub token: u64,
    /// Decision about the flow.
    pub verdict: VerdictKind,
}

impl DecisionVerdict {
    pub(super) fn descriptor(&self) -> Option<&Descriptor> {
        match &self.verdict {
            VerdictKind::Stream(socket) => Some(socket),
            VerdictKind::Allow | VerdictKind::Deny(_) | VerdictKind::Redirect(_) => None,
        }
    }

    pub(super) fn descriptor_mut(&mut self) -> Option<&mut Descriptor> {
        match &mut self.verdict {
            VerdictKind::Stream(socket) => Some(socket),
            VerdictKind::Allow | VerdictKind::Deny(_) | VerdictKind::Redirect(_) => None,
        }
    }
}

/// Decision about a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerdictKind {
    /// The flow is opened.
    Allow,
    /// The flow is refused.
    Deny(#[serde(with = "DenialName")] Denial),
    /// The flow is opened to this address.
    Redirect(SocketAddr),
    /// The connection is carried by this connected Unix stream socket.
    Stream(Descriptor),
}

/// Variants of [`Denial`], for serde.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Denial", rename_all = "snake_case")]
enum DenialName {
    Reset,
    Unreachable,
    Drop,
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use pontoon_ipc::{ChannelMessage, decode, encode};

    use super::super::{Report, Update};
    use super::*;

    fn null() -> OwnedFd {
        std::fs::File::open("/dev/null").unwrap().into()
    }

    pub(crate) fn verdict(verdict: VerdictKind) -> DecisionVerdict {
        DecisionVerdict {
            token: u64::MAX,
            verdict,
        }
    }

    pub(crate) fn request() -> DecisionRequest {
        DecisionRequest {
            token: 1 << 51,
            protocol: EgressProtocol::Icmp,
            destination: Some("[2001:db8::1]:0".parse().unwrap()),
            published: None,
            guest: "[fd70:6f6e:746f::15]:7".parse().unwrap(),
            remote: "[2001:db8::1]:0".parse().unwrap(),
            rule: Some("allow *".to_owned()),
            deadline_ms: 2000,
        }
    }

    #[test]
    fn most_requests_and_verdicts_fit_into_a_message() {
        let longest = DecisionRequest {
            rule: Some("\u{1}".repeat(80)),
            ..request()
        };
        for (count, is_valid) in [(DecisionRequest::MOST, true), (DecisionRequest::MOST + 1, false)] {
            let bytes = encode(&Report::Decide(vec![longest.clone(); count])).unwrap();
            assert_eq!(decode::<Report>(&bytes, Vec::new()).is_ok(), is_valid);
        }
        let rule = Some("a".repeat(513));
        let long = Report::Decide(vec![DecisionRequest { rule, ..request() }]);
        assert!(decode::<Report>(&encode(&long).unwrap(), Vec::new()).is_err());
        let neither = DecisionRequest {
            destination: None,
            ..request()
        };
        let bytes = encode(&Report::Decide(vec![neither])).unwrap();
        assert!(decode::<Report>(&bytes, Vec::new()).is_err());
        for (count, is_valid) in [(Update::MAX_VERDICTS, true), (Update::MAX_VERDICTS + 1, false)] {
            let bytes = encode(&Update::Verdicts(vec![verdict(VerdictKind::Allow); count])).unwrap();
            assert_eq!(decode::<Update>(&bytes, Vec::new()).is_ok(), is_valid);
        }
    }

    #[test]
    fn sockets_are_passed_with_their_verdicts() {
        let socket = || verdict(VerdictKind::Stream(Arc::new(null()).into()));
        let update = Update::Verdicts(vec![socket(), verdict(VerdictKind::Allow), socket()]);
        assert_eq!(update.descriptors().len(), 2);
        let bytes = encode(&update).unwrap();
        // The last descriptors may be missing; the connection is reset then.
        for (count, expected) in [(0, [false; 2]), (1, [true, false]), (2, [true; 2])] {
            let descriptors = (0..count).map(|_| null()).collect();
            let decoded: Update = decode(&bytes, descriptors).unwrap();
            let has: Vec<_> = decoded
                .descriptors()
                .into_iter()
                .map(|descriptor| descriptor.borrow().is_some())
                .collect();
            assert_eq!(has, expected);
        }
        assert!(decode::<Update>(&bytes, (0..3).map(|_| null()).collect()).is_err());
    }

    #[test]
    fn verdicts_are_events_and_the_connection_is_a_state() {
        let verdicts = Update::Verdicts(vec![verdict(VerdictKind::Allow)]);
        assert!(!verdicts.replaces(&verdicts));
        let connected = Update::DeciderConnected(true);
        assert!(connected.replaces(&Update::DeciderConnected(false)));
    }
}
