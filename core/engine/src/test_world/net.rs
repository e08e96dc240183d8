//! The state of a worker with the default addresses, for tests.

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::SeedableRng;

use pontoon_wire::Mac;

use super::ip;
use crate::address_plan::AddressPlan;
use crate::config::Config;
use crate::ctx::Net;
use crate::flow_events::{FlowEvent, FlowEventKind, FlowEvents, Reported};
use crate::{Counters, Instant, WorkerId};

pub(crate) const OUR_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);
pub(crate) const GUEST_MAC: Mac = Mac([2, 0, 0, 0, 0, 2]);

/// Address and port of a UDP endpoint of the guest.
pub(crate) const GUEST: &str = "10.0.2.15:4000";
pub(crate) const GUEST_V6: &str = "[fd70:6f6e:746f::15]:4000";

/// Addresses of the host in tests.
pub(crate) const OWNED: [&str; 4] = ["192.168.7.1", "2001:db8:7::1", "127.0.0.1", "::1"];

pub(crate) fn net() -> Net {
    let config = Config {
        our_mac: OUR_MAC,
        guest_mac: GUEST_MAC,
        hostname: Some("box".to_owned()),
        search: vec!["example.org".to_owned(), "corp.example".to_owned()],
        resolvers: vec!["192.0.2.53:53".parse().unwrap()],
        max_udp_ports: 10_000,
        ..Config::new(AddressPlan::usual(true))
    };
    let random = ChaCha12Rng::from_seed([7; 32]);
    let mut net = Net::new(config, WorkerId(0), random, Instant::default());
    net.policy.owned = OWNED.map(|owned| ip(owned).into()).into_iter().collect();
    net
}

/// Returns names and differences of the counters that have changed since `before`.
pub(crate) fn moved(net: &Net, before: &Counters) -> Vec<(&'static str, u64)> {
    net.counters
        .iter()
        .zip(before.iter())
        .filter(|(now, before)| now != before)
        .map(|((name, now), (_, before))| (name, now - before))
        .collect()
}

/// Receiver of flow events that writes each as a line of text.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventRecorder(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl EventRecorder {
    /// Records the events of `net` from now on.
    pub(crate) fn of(net: &mut Net) -> Self {
        let recorder = Self::default();
        net.events = Some(Box::new(recorder.clone()));
        recorder
    }

    /// Returns the events since the previous call of this function.
    pub(crate) fn take(&self) -> Vec<String> {
        core::mem::take(&mut self.0.lock().unwrap())
    }
}

impl FlowEvents for EventRecorder {
    fn report(&mut self, event: &FlowEvent) -> Reported {
        let what = match event.kind {
            FlowEventKind::Opened { .. } => "opened".to_owned(),
            FlowEventKind::Decided { ground } => format!("decided {ground:?}"),
            FlowEventKind::ServerName { part } => {
                format!("name {}", String::from_utf8_lossy(part.octets()))
            }
            FlowEventKind::Proof { result, ground } => format!("proof {result:?} {ground:?}"),
            FlowEventKind::Peer { target: None } => "peer".to_owned(),
            FlowEventKind::Peer { target: Some(target) } => format!("peer at {target}"),
            FlowEventKind::Refused { reason } => format!("refused {reason}"),
            FlowEventKind::Closed { reason, traffic, .. } => {
                format!("closed {reason} {} {}", traffic.up, traffic.down)
            }
        };
        let remote = event.ends.remote.map(|remote| remote.to_string());
        let way = if event.ends.came_in { "<" } else { ">" };
        let line = format!(
            "{what}: {} {way} {}",
            event.ends.guest,
            remote.unwrap_or_default()
        );
        self.0.lock().unwrap().push(line);
        Reported::Kept
    }
}
