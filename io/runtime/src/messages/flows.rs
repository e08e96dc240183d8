//! A worker's flows, page by page.

use std::time::Duration;

use pontoon_engine::Token;
use pontoon_engine::egress::EgressProtocol;
use pontoon_engine::flow_dump::{Flow, Page, Traffic};

/// Which page of whose flows is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The number of the question.
    pub number: u64,
    /// The worker that is asked.
    pub worker: u8,
    /// The position at which the page begins: 0, or the end of the page before.
    pub from: u64,
}

/// A page of flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flows {
    /// The number of the question.
    pub number: u64,
    /// The flows.
    pub page: Page,
}

impl Turn {
    pub(super) fn encode(self) -> [u64; 3] {
        [self.number, self.worker.into(), self.from]
    }

    pub(super) fn decode(values: &[u64]) -> Option<Self> {
        let [number, worker, from] = *values else {
            return None;
        };
        Some(Self {
            number,
            worker: worker.try_into().ok()?,
            from,
        })
    }
}

impl Flows {
    pub(super) fn encode(&self) -> Vec<String> {
        let next = self
            .page
            .next
            .map_or_else(|| NONE.to_owned(), |next| next.to_string());
        let head = [self.number.to_string(), next];
        head.into_iter().chain(self.page.flows.iter().map(line)).collect()
    }

    pub(super) fn decode(mut lines: std::str::Lines<'_>) -> Option<Self> {
        Some(Self {
            number: lines.next()?.parse().ok()?,
            page: Page {
                next: match lines.next()? {
                    NONE => None,
                    next => Some(next.parse().ok()?),
                },
                flows: lines.map(parse).collect::<Option<_>>()?,
            },
        })
    }
}

fn line(flow: &Flow) -> String {
    let remote = flow
        .remote
        .map_or_else(|| NONE.to_owned(), |remote| remote.to_string());
    format!(
        "{} {} {} {remote} {} {} {} {} {}",
        Token::from(flow.id).0,
        flow.protocol,
        flow.guest,
        if flow.came_in { IN } else { OUT },
        flow.phase,
        flow.age.as_millis(),
        flow.traffic.up,
        flow.traffic.down,
    )
}

fn parse(line: &str) -> Option<Flow> {
    let mut words = line.split(' ');
    let flow = Flow {
        id: Token(words.next()?.parse().ok()?).flow()?,
        protocol: match words.next()? {
            "tcp" => EgressProtocol::Tcp,
            "udp" => EgressProtocol::Udp,
            "icmp" => EgressProtocol::Icmp,
            _ => return None,
        },
        guest: words.next()?.parse().ok()?,
        remote: match words.next()? {
            NONE => None,
            remote => Some(remote.parse().ok()?),
        },
        came_in: match words.next()? {
            IN => true,
            OUT => false,
            _ => return None,
        },
        phase: words.next()?.parse().ok()?,
        age: Duration::from_millis(words.next()?.parse().ok()?),
        traffic: Traffic {
            up: words.next()?.parse().ok()?,
            down: words.next()?.parse().ok()?,
        },
    };
    words.next().is_none().then_some(flow)
}

const NONE: &str = "-";
const IN: &str = "in";
const OUT: &str = "out";
