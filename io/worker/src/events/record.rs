//! A record of a ring: an event in words.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use pontoon_engine::egress::{DecisionGround, EgressProtocol, UnprovenCause};
use pontoon_engine::flow_dump::Traffic;
use pontoon_engine::flow_events::{
    CloseReason, FlowEnds, FlowEvent, FlowEventKind, NamePart, RefusalReason, failure_code, failure_of_code,
};
use pontoon_engine::policy::Refusal;
use pontoon_engine::{FlowId, Instant, Kind, Token};

/// Words of a record: number, header, addresses of guest and remote host, flow, time, and four words that depend on the kind.
/// The header has kind, protocol, flags, code and both ports.
pub(super) const RECORD: usize = 12;

/// An event as the reader has decoded it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRecord {
    /// The event. Its time is not checked.
    pub event: FlowEvent,
    /// Generation of the egress rules to which the index of a rule refers.
    pub generation: u64,
}

/// Codes of the kinds of events in a header.
const OPENED: u8 = 1;
const DECIDED: u8 = 2;
const PEER: u8 = 3;
const REFUSED: u8 = 4;
const CLOSED: u8 = 5;
const SERVER_NAME: u8 = 6;
const PROOF: u8 = 7;

/// Flags in a header.
const GUEST_V6: u8 = 1;
const REMOTE_V6: u8 = 1 << 1;
const TARGET_V6: u8 = 1 << 2;
const HAS_REMOTE: u8 = 1 << 3;
const HAS_TARGET: u8 = 1 << 4;
const HAS_FLOW: u8 = 1 << 5;
const CAME_IN: u8 = 1 << 6;
const ANNOUNCED: u8 = 1 << 7;

/// Codes of the grounds of decisions and the reasons of refusals. The code of the host's failure is in the lower byte of
/// [`REFUSED_HOST`].
const RULE: u16 = 1;
const UNLISTED: u16 = 2;
const RESOLVER: u16 = 3;
const CLASS: u16 = 4;
const UNASSIGNED: u16 = 5;
const HOST_LOOPBACK: u16 = 6;
const HOST_ADDRESS: u16 = 7;
const LIMIT: u16 = 8;
const DECIDER: u16 = 9;
const REDIRECT: u16 = 10;
const TLS_ONLY: u16 = 11;
const PROXY: u16 = 12;
const TO_PROXY: u16 = 13;
const REFUSED_HOST: u8 = 1;

/// Code of a part of a name: its length, and this bit if it is the first.
const FIRST_PART: u16 = 1 << 8;

/// Code of a proof that has succeeded; those of causes of failures follow.
const PROVEN: u16 = 0;

/// Word of a proof without a rule.
const NO_RULE: u64 = u64::MAX;

/// The part of a record that depends on the kind of event.
#[derive(Clone, Copy, Default)]
struct Detail {
    kind: u8,
    flags: u8,
    code: u16,
    words: [u64; 4],
}

/// Encodes an event with its number.
pub(super) fn encode(event: &FlowEvent, number: u64, generation: u64) -> [u64; RECORD] {
    let detail = Detail::of(&event.kind, generation);
    let FlowEnds {
        protocol,
        guest,
        remote,
        came_in,
    } = event.ends;
    let flags = detail.flags
        | flag(guest.is_ipv6(), GUEST_V6)
        | flag(remote.is_some(), HAS_REMOTE)
        | flag(remote.is_some_and(|remote| remote.is_ipv6()), REMOTE_V6)
        | flag(event.flow.is_some(), HAS_FLOW)
        | flag(came_in, CAME_IN);
    let protocol = match protocol {
        EgressProtocol::Tcp => 0,
        EgressProtocol::Udp => 1,
        EgressProtocol::Icmp => 2_u64,
    };
    let head = u64::from(detail.kind) << 60
        | protocol << 56
        | u64::from(flags) << 48
        | u64::from(detail.code) << 32
        | u64::from(guest.port()) << 16
        | u64::from(remote.map_or(0, |remote| remote.port()));
    let [guest_high, guest_low] = halves(guest.ip());
    let [remote_high, remote_low] = remote.map_or([0; 2], |remote| halves(remote.ip()));
    let flow = event.flow.map_or(0, |flow| Token::from(flow).0);
    let [a, b, c, d] = detail.words;
    [
        number,
        head,
        guest_high,
        guest_low,
        remote_high,
        remote_low,
        flow,
        event.at.0,
        a,
        b,
        c,
        d,
    ]
}

/// Decodes a record of the worker `worker`; `None` if [`encode`] returns no such record.
#[expect(
    clippy::cast_possible_truncation,
    reason = "takes the fields of the head apart"
)]
pub(super) fn decode(words: &[u64; RECORD], worker: u8) -> Option<EventRecord> {
    let [
        _,
        head,
        guest_high,
        guest_low,
        remote_high,
        remote_low,
        flow,
        at,
        a,
        b,
        c,
        d,
    ] = *words;
    let flags = (head >> 48) as u8;
    let has = |flag| flags & flag != 0;
    let address = |high, low, v6: bool, port| Some(SocketAddr::new(address(high, low, v6)?, port));
    let guest = address(guest_high, guest_low, has(GUEST_V6), (head >> 16) as u16)?;
    let remote = match has(HAS_REMOTE) {
        true => Some(address(remote_high, remote_low, has(REMOTE_V6), head as u16)?),
        false => None,
    };
    let protocol = match head >> 56 & 0xf {
        0 => EgressProtocol::Tcp,
        1 => EgressProtocol::Udp,
        2 => EgressProtocol::Icmp,
        _ => return None,
    };
    let target = match has(HAS_TARGET) {
        true => Some(address(a, b, has(TARGET_V6), u16::try_from(c).ok()?)?),
        false => None,
    };
    let code = (head >> 32) as u16;
    let kind = match (head >> 60) as u8 {
        OPENED => FlowEventKind::Opened { target },
        PEER => FlowEventKind::Peer { target },
        DECIDED => FlowEventKind::Decided {
            ground: ground(code, a)?,
        },
        REFUSED => FlowEventKind::Refused {
            reason: refusal(code, a)?,
        },
        SERVER_NAME => FlowEventKind::ServerName {
            part: name_part(code, [a, b, c, d])?,
        },
        PROOF => FlowEventKind::Proof {
            result: proof(code)?,
            ground: match a {
                NO_RULE => None,
                rule => Some(ground(RULE, rule)?),
            },
        },
        CLOSED => FlowEventKind::Closed {
            reason: CloseReason::of_code(code)?,
            traffic: Traffic { up: a, down: b },
            age: Duration::from_nanos(c),
            announced: has(ANNOUNCED),
        },
        _ => return None,
    };
    let flow = match has(HAS_FLOW) {
        true => Some(flow_of(flow, worker, protocol)?),
        false => None,
    };
    if flow.is_none() != matches!(kind, FlowEventKind::Refused { .. }) {
        return None;
    }
    let ends = FlowEnds {
        protocol,
        guest,
        remote,
        came_in: has(CAME_IN),
    };
    let event = FlowEvent {
        at: Instant(at),
        flow,
        ends,
        kind,
    };
    Some(EventRecord { event, generation: d })
}

impl Detail {
    fn of(kind: &FlowEventKind, generation: u64) -> Self {
        match *kind {
            FlowEventKind::Opened { target } => Self::with_target(OPENED, target),
            FlowEventKind::Peer { target } => Self::with_target(PEER, target),
            FlowEventKind::Decided { ground } => Self {
                kind: DECIDED,
                code: ground_code(ground),
                words: [rule(ground), 0, 0, generation],
                ..Self::default()
            },
            FlowEventKind::Refused { reason } => Self {
                kind: REFUSED,
                code: refusal_code(reason),
                words: [
                    match reason {
                        RefusalReason::Egress(ground) => rule(ground),
                        _ => 0,
                    },
                    0,
                    0,
                    generation,
                ],
                ..Self::default()
            },
            FlowEventKind::ServerName { part } => {
                let octets = part.octets();
                let len = u16::try_from(octets.len()).unwrap_or(0);
                Self {
                    kind: SERVER_NAME,
                    code: len | if part.is_first { FIRST_PART } else { 0 },
                    words: name_words(octets),
                    ..Self::default()
                }
            }
            FlowEventKind::Proof { result, ground } => Self {
                kind: PROOF,
                code: match result {
                    Ok(()) => PROVEN,
                    Err(cause) => {
                        let codes = (PROVEN + 1..).zip(UnprovenCause::ALL);
                        codes.fold(
                            PROVEN,
                            |found, (code, other)| if other == cause { code } else { found },
                        )
                    }
                },
                words: [ground.map_or(NO_RULE, rule), 0, 0, generation],
                ..Self::default()
            },
            FlowEventKind::Closed {
                reason,
                traffic,
                age,
                announced,
            } => Self {
                kind: CLOSED,
                flags: flag(announced, ANNOUNCED),
                code: reason.code(),
                words: [
                    traffic.up,
                    traffic.down,
                    u64::try_from(age.as_nanos()).unwrap_or(u64::MAX),
                    0,
                ],
            },
        }
    }

    fn with_target(kind: u8, target: Option<SocketAddr>) -> Self {
        let Some(target) = target else {
            return Self {
                kind,
                ..Self::default()
            };
        };
        let [high, low] = halves(target.ip());
        Self {
            kind,
            flags: HAS_TARGET | flag(target.is_ipv6(), TARGET_V6),
            code: 0,
            words: [high, low, target.port().into(), 0],
        }
    }
}

/// Returns the octets of a part of a name in words.
fn name_words(octets: &[u8]) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, octets) in words.iter_mut().zip(octets.chunks(8)) {
        let mut all = [0; 8];
        all.iter_mut().zip(octets).for_each(|(to, from)| *to = *from);
        *word = u64::from_be_bytes(all);
    }
    words
}

/// Returns the part of a name that [`name_words`] has encoded. Host names consist of letters, digits, hyphens, underscores and
/// dots.
fn name_part(code: u16, words: [u64; 4]) -> Option<NamePart> {
    let octets = words.map(u64::to_be_bytes).concat();
    let text = octets.get(..usize::from(code & !FIRST_PART))?;
    let fits = |octet: &u8| octet.is_ascii_alphanumeric() || b"-_.".contains(octet);
    text.iter()
        .all(fits)
        .then(|| NamePart::new(text, code & FIRST_PART != 0))?
}

/// Returns the result of a proof with this code.
fn proof(code: u16) -> Option<Result<(), UnprovenCause>> {
    match code.checked_sub(PROVEN + 1) {
        None => Some(Ok(())),
        Some(place) => UnprovenCause::ALL
            .get(usize::from(place))
            .map(|cause| Err(*cause)),
    }
}

const fn flag(is_set: bool, flag: u8) -> u8 {
    if is_set { flag } else { 0 }
}

/// Returns the index of the rule, if it is the ground, or 0.
fn rule(ground: DecisionGround) -> u64 {
    match ground {
        DecisionGround::Rule(index) | DecisionGround::TlsOnly(index) => index.into(),
        DecisionGround::Unlisted
        | DecisionGround::Resolver
        | DecisionGround::Decider
        | DecisionGround::Redirect
        | DecisionGround::Proxy => 0,
    }
}

const fn ground_code(ground: DecisionGround) -> u16 {
    match ground {
        DecisionGround::Rule(_) => RULE,
        DecisionGround::Unlisted => UNLISTED,
        DecisionGround::Resolver => RESOLVER,
        DecisionGround::Decider => DECIDER,
        DecisionGround::Redirect => REDIRECT,
        DecisionGround::Proxy => PROXY,
        DecisionGround::TlsOnly(_) => TLS_ONLY,
    }
}

fn ground(code: u16, rule: u64) -> Option<DecisionGround> {
    match code {
        RULE => u32::try_from(rule).ok().map(DecisionGround::Rule),
        UNLISTED => Some(DecisionGround::Unlisted),
        RESOLVER => Some(DecisionGround::Resolver),
        DECIDER => Some(DecisionGround::Decider),
        REDIRECT => Some(DecisionGround::Redirect),
        PROXY => Some(DecisionGround::Proxy),
        TLS_ONLY => u32::try_from(rule).ok().map(DecisionGround::TlsOnly),
        _ => None,
    }
}

fn refusal_code(reason: RefusalReason) -> u16 {
    match reason {
        RefusalReason::Egress(ground) => ground_code(ground),
        RefusalReason::Policy(Refusal::Class) => CLASS,
        RefusalReason::Policy(Refusal::Unassigned) => UNASSIGNED,
        RefusalReason::Policy(Refusal::HostLoopback) => HOST_LOOPBACK,
        RefusalReason::Policy(Refusal::HostAddress) => HOST_ADDRESS,
        RefusalReason::Policy(Refusal::Proxy) => TO_PROXY,
        RefusalReason::Policy(Refusal::Rule) => UNLISTED,
        RefusalReason::Limit => LIMIT,
        RefusalReason::Host(failure) => u16::from_be_bytes([REFUSED_HOST, failure_code(failure)]),
    }
}

fn refusal(code: u16, rule: u64) -> Option<RefusalReason> {
    Some(match code {
        CLASS => RefusalReason::Policy(Refusal::Class),
        UNASSIGNED => RefusalReason::Policy(Refusal::Unassigned),
        HOST_LOOPBACK => RefusalReason::Policy(Refusal::HostLoopback),
        HOST_ADDRESS => RefusalReason::Policy(Refusal::HostAddress),
        TO_PROXY => RefusalReason::Policy(Refusal::Proxy),
        LIMIT => RefusalReason::Limit,
        _ => match code.to_be_bytes() {
            [REFUSED_HOST, failure] => RefusalReason::Host(failure_of_code(failure)?),
            _ => RefusalReason::Egress(ground(code, rule)?),
        },
    })
}

/// Returns the flow of a token, if the worker could have such a flow of this protocol.
fn flow_of(token: u64, worker: u8, protocol: EgressProtocol) -> Option<FlowId> {
    let flow = Token(token).flow()?;
    let is_of_protocol = match protocol {
        EgressProtocol::Tcp => matches!(flow.kind, Kind::Tcp | Kind::Joined),
        EgressProtocol::Udp => flow.kind == Kind::Udp,
        EgressProtocol::Icmp => flow.kind == Kind::Icmp,
    };
    (flow.worker.0 == worker && is_of_protocol).then_some(flow)
}

/// Returns the upper and lower half of an address; an IPv4 address is in the lower half.
fn halves(address: IpAddr) -> [u64; 2] {
    match address {
        IpAddr::V4(v4) => [0, u64::from(u32::from(v4))],
        IpAddr::V6(v6) => {
            let [a, b, c, d, e, f, g, h] = v6.segments().map(u64::from);
            [a << 48 | b << 32 | c << 16 | d, e << 48 | f << 32 | g << 16 | h]
        }
    }
}

fn address(high: u64, low: u64, v6: bool) -> Option<IpAddr> {
    if v6 {
        return Some(Ipv6Addr::from(u128::from(high) << 64 | u128::from(low)).into());
    }
    u32::try_from(low).ok().map(|bits| IpAddr::V4(bits.into()))
}
