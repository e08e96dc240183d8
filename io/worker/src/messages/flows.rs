//! Pages in which a worker reports its flows to the supervisor.

use std::net::SocketAddr;
use std::time::Duration;

use pontoon_engine::Token;
use pontoon_engine::egress::EgressProtocol;
use pontoon_engine::flow_dump::{Flow, MAX_PAGE, Page, Phase, Traffic};
use pontoon_ipc::text;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Request for a page of a worker's flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowPageRequest {
    /// Number of the request, which the reply repeats.
    pub number: u64,
    /// Index of the worker.
    pub worker: u8,
    /// Position at which the page begins: 0, or the end of the preceding page.
    pub from: u64,
}

/// Page of a worker's flows, in reply to [`FlowPageRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowPage {
    /// Number of the request.
    pub number: u64,
    /// Flows of the page, and the position of the next page.
    #[serde(with = "self")]
    pub page: Page,
}

impl FlowPage {
    pub(super) fn is_valid(&self) -> bool {
        self.page.flows.len() <= MAX_PAGE
    }
}

/// Page of flows in its serialized form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PageRecord {
    next: Option<u64>,
    flows: Vec<FlowRecord>,
}

/// Flow in its serialized form: without names of fields, so that the longest page fits into a message. The fields are id,
/// protocol, both addresses, direction, phase, age in milliseconds, and bytes in both directions.
#[derive(Serialize, Deserialize)]
struct FlowRecord(
    u64,
    ProtocolField,
    SocketAddr,
    Option<SocketAddr>,
    bool,
    #[serde(with = "text")] Phase,
    u64,
    u64,
    u64,
);

#[derive(Serialize, Deserialize)]
struct ProtocolField(#[serde(with = "ProtocolName")] EgressProtocol);

/// Variants of [`EgressProtocol`], for serde.
#[derive(Serialize, Deserialize)]
#[serde(remote = "EgressProtocol", rename_all = "snake_case")]
pub(super) enum ProtocolName {
    Tcp,
    Udp,
    Icmp,
}

fn serialize<S: Serializer>(page: &Page, serializer: S) -> Result<S::Ok, S::Error> {
    let flow = |flow: &Flow| {
        FlowRecord(
            Token::from(flow.id).0,
            ProtocolField(flow.protocol),
            flow.guest,
            flow.remote,
            flow.came_in,
            flow.phase,
            u64::try_from(flow.age.as_millis()).unwrap_or(u64::MAX),
            flow.traffic.up,
            flow.traffic.down,
        )
    };
    let record = PageRecord {
        next: page.next,
        flows: page.flows.iter().map(flow).collect(),
    };
    record.serialize(serializer)
}

fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Page, D::Error> {
    let flow = |record| {
        let FlowRecord(id, ProtocolField(protocol), guest, remote, came_in, phase, age, up, down) = record;
        Some(Flow {
            id: Token(id).flow()?,
            protocol,
            guest,
            remote,
            came_in,
            phase,
            age: Duration::from_millis(age),
            traffic: Traffic { up, down },
        })
    };
    let PageRecord { next, flows } = PageRecord::deserialize(deserializer)?;
    let flows = flows.into_iter().map(flow).collect::<Option<_>>();
    let flows = flows.ok_or_else(|| D::Error::custom("invalid id of a flow"))?;
    Ok(Page { flows, next })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use pontoon_engine::{FlowId, Kind, WorkerId};

    use super::*;
    use crate::messages::Report;

    #[test]
    fn longest_page_fits_into_a_message() {
        let mapped = |last: u8| Ipv6Addr::from([0xff; 16]).to_bits() - u128::from(last);
        let address = |last| (Ipv6Addr::from_bits(mapped(last)), u16::MAX).into();
        let flow = Flow {
            id: FlowId {
                kind: Kind::Icmp,
                worker: WorkerId(u8::MAX),
                index: (1 << 20) - 1,
                generation: u16::MAX,
            },
            protocol: EgressProtocol::Icmp,
            guest: address(0),
            remote: Some(address(1)),
            came_in: false,
            phase: Phase::Connecting,
            age: Duration::from_millis(u64::MAX),
            traffic: Traffic {
                up: u64::MAX,
                down: u64::MAX,
            },
        };
        let page = |len| {
            let page = Page {
                flows: vec![flow; len],
                next: Some(u64::MAX),
            };
            Report::Flows(FlowPage {
                number: u64::MAX,
                page,
            })
        };
        let bytes = pontoon_ipc::encode(&page(MAX_PAGE)).unwrap();
        assert!(pontoon_ipc::decode::<Report>(&bytes, Vec::new()).is_ok());
        assert!(!FlowPage::is_valid(match &page(MAX_PAGE + 1) {
            Report::Flows(page) => page,
            other => panic!("{other:?}"),
        }));
    }
}
