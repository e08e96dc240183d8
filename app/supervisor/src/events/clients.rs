//! Clients of the control socket that read events, each with a buffer of its own.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use pontoon_control::role::Role;
use pontoon_engine::egress::EgressProtocol;
use pontoon_worker::events::recorder::{GAP, OMITTED, Record, gap};

/// Clients that read events.
#[derive(Debug, Default)]
pub(super) struct Clients(Vec<(Role, Weak<RefCell<Subscription>>)>);

/// A client's selection of events, and those that it has not received yet.
#[derive(Debug, Default)]
pub(crate) struct Subscription {
    filter: Filter,
    unsent: Vec<u8>,
    /// Numbers of the first and last event that the client does not get, because its buffer was full.
    missing: Option<(u64, u64)>,
}

/// Selection of events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    /// Types of events; all if it is empty.
    pub(crate) types: Vec<&'static str>,
    /// Protocols of flows; all if it is empty.
    pub(crate) protocols: Vec<EgressProtocol>,
}

/// Types of events by which a client may select.
pub(crate) const TYPES: [&str; 8] = [
    "start", "opened", "decided", "peer", "refused", "closed", "lost", "end",
];

/// Limit on the clients of each role that read events: those that may only inspect the instance do not keep the operator
/// from reading them. A control socket serves 16 clients.
pub(crate) const MOST: usize = 8;

/// Maximum number of bytes of events that wait for a client, in addition to those that the server has taken from
/// [`Subscription::take`].
const BUFFER: usize = 256 << 10;

impl Clients {
    /// Adds a client; `None` if there are [`MOST`] of its role.
    pub(super) fn add(&mut self, filter: Filter, role: Role) -> Option<Rc<RefCell<Subscription>>> {
        self.count();
        if self.0.iter().filter(|(of, _)| *of == role).count() >= MOST {
            return None;
        }
        let subscription = Rc::new(RefCell::new(Subscription {
            filter,
            ..Subscription::default()
        }));
        self.0.push((role, Rc::downgrade(&subscription)));
        Some(subscription)
    }

    /// Returns the number of clients.
    pub(super) fn count(&mut self) -> usize {
        self.0.retain(|(_, client)| client.strong_count() > 0);
        self.0.len()
    }

    /// Adds a record to the buffers of the clients that select it.
    pub(super) fn publish(&self, record: &Record<'_>) {
        for client in self.open() {
            client.borrow_mut().push(record);
        }
    }

    /// Returns true if events wait for at least one client.
    pub(super) fn have_unsent(&self) -> bool {
        self.open().any(|client| !client.borrow().unsent.is_empty())
    }

    fn open(&self) -> impl Iterator<Item = Rc<RefCell<Subscription>>> {
        self.0.iter().filter_map(|(_, client)| client.upgrade())
    }
}

impl Filter {
    /// Returns true if the client gets the record. A record about no flow is selected by its type only.
    fn selects(&self, record: &Record<'_>) -> bool {
        if [GAP, OMITTED].contains(&record.kind) {
            return true;
        }
        let of_type = self.types.is_empty() || self.types.contains(&record.kind);
        let of_protocol = |protocol| self.protocols.is_empty() || self.protocols.contains(&protocol);
        of_type && record.protocol.is_none_or(of_protocol)
    }
}

impl Subscription {
    fn push(&mut self, record: &Record<'_>) {
        if !self.filter.selects(record) {
            return;
        }
        let (from, to) = record.numbers;
        if self.missing.is_some() || self.unsent.len() + record.line.len() > BUFFER {
            let first = self.missing.map_or(from, |(first, _)| first);
            self.missing = Some((first, to));
            return;
        }
        self.unsent.extend_from_slice(record.line.as_bytes());
    }

    /// Moves the events that wait to `part`, followed by a record about missing ones if there are any.
    pub(crate) fn take(&mut self, part: &mut Vec<u8>) {
        part.append(&mut self.unsent);
        if let Some(missing) = self.missing.take() {
            part.extend_from_slice(gap(missing, "client").as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record<'a>(
        number: u64,
        kind: &'static str,
        protocol: Option<EgressProtocol>,
        line: &'a str,
    ) -> Record<'a> {
        Record {
            numbers: (number, number),
            kind,
            protocol,
            event: None,
            line,
        }
    }

    fn taken(client: &Rc<RefCell<Subscription>>) -> String {
        let mut part = Vec::new();
        client.borrow_mut().take(&mut part);
        String::from_utf8(part).unwrap()
    }

    #[test]
    fn client_that_does_not_read_delays_no_other() {
        let mut clients = Clients::default();
        let [slow, quick] = [0; 2].map(|_| clients.add(Filter::default(), Role::Operate).unwrap());
        let line = format!("{}\n", "x".repeat(999));
        for number in 1..=300 {
            clients.publish(&record(number, "opened", Some(EgressProtocol::Tcp), &line));
            assert_eq!(taken(&quick).len(), 1000);
        }
        let slow = taken(&slow);
        let (last, rest) = (slow.lines().last().unwrap(), slow.lines().count() - 1);
        assert_eq!(rest, BUFFER / 1000);
        let gap: serde_json::Value = serde_json::from_str(last).unwrap();
        let expected = (Some(rest as u64 + 1), Some(300));
        assert_eq!((gap["from"].as_u64(), gap["to"].as_u64()), expected);
        assert_eq!(
            (gap["type"].as_str(), gap["reason"].as_str()),
            (Some("gap"), Some("client"))
        );
        assert!(!clients.have_unsent());
    }

    #[test]
    fn filters_select_by_type_and_protocol() {
        let mut clients = Clients::default();
        let filter = Filter {
            types: vec!["closed", "start"],
            protocols: vec![EgressProtocol::Udp],
        };
        let client = clients.add(filter, Role::Operate).unwrap();
        for (kind, protocol) in [
            ("closed", Some(EgressProtocol::Udp)),
            ("closed", Some(EgressProtocol::Tcp)),
            ("opened", Some(EgressProtocol::Udp)),
            ("start", None),
            (GAP, None),
        ] {
            clients.publish(&record(1, kind, protocol, &format!("{kind}\n")));
        }
        assert_eq!(taken(&client), "closed\nstart\ngap\n");
    }

    #[test]
    fn readers_keep_no_operator_from_reading() {
        let mut clients = Clients::default();
        let readers: Vec<_> = (0..2 * MOST)
            .filter_map(|_| clients.add(Filter::default(), Role::Read))
            .collect();
        assert_eq!(readers.len(), MOST);
        assert!(clients.add(Filter::default(), Role::Operate).is_some());
    }

    #[test]
    fn clients_are_limited_and_removed_when_they_disconnect() {
        let mut clients = Clients::default();
        let mut all: Vec<_> = (0..MOST)
            .map(|_| clients.add(Filter::default(), Role::Operate).unwrap())
            .collect();
        assert!(clients.add(Filter::default(), Role::Operate).is_none());
        all.pop();
        assert!(clients.add(Filter::default(), Role::Operate).is_some());
        all.clear();
        assert_eq!(clients.count(), 0);
    }
}
