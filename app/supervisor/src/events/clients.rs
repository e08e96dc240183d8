//! Clients of the control socket that read events, each with a buffer of its own.

use std::cell::RefCell;
use std::rc::{Rc, Weak};

use pontoon_engine::egress::EgressProtocol;

use super::json;

/// Clients that read events.
#[derive(Debug, Default)]
pub(super) struct Clients(Vec<Weak<RefCell<Subscription>>>);

/// A client's selection of events, and those that it has not received yet.
#[derive(Debug, Default)]
pub(crate) struct Subscription {
    filter: Filter,
    unsent: Vec<u8>,
    /// Numbers of the first and last event that the client does not get because it did not read.
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

/// Properties of a record that a filter compares.
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    pub(super) kind: &'static str,
    /// `None` for records about no flow, which only the type selects.
    pub(super) protocol: Option<EgressProtocol>,
}

/// Types of events by which a client may select.
pub(crate) const TYPES: [&str; 8] = [
    "start", "opened", "decided", "peer", "refused", "closed", "lost", "end",
];

/// Limit on the clients that read events; a control socket serves 16 clients.
pub(crate) const MOST: usize = 8;

/// Limit on the bytes of events that wait for a client, beside those that the server has taken.
const BUFFER: usize = 256 << 10;

impl Clients {
    /// Adds a client; `None` if there are [`MOST`].
    pub(super) fn add(&mut self, filter: Filter) -> Option<Rc<RefCell<Subscription>>> {
        if self.count() >= MOST {
            return None;
        }
        let subscription = Rc::new(RefCell::new(Subscription {
            filter,
            ..Subscription::default()
        }));
        self.0.push(Rc::downgrade(&subscription));
        Some(subscription)
    }

    /// Returns the number of clients.
    pub(super) fn count(&mut self) -> usize {
        self.0.retain(|client| client.strong_count() > 0);
        self.0.len()
    }

    /// Adds the records `from` to `to`, which one line describes, to the buffers of the clients that select it.
    pub(super) fn publish(&self, numbers: (u64, u64), class: Class, line: &str) {
        for client in self.0.iter().filter_map(Weak::upgrade) {
            client.borrow_mut().push(numbers, class, line);
        }
    }

    /// Returns true if there are events for a client.
    pub(super) fn have_unsent(&self) -> bool {
        let mut clients = self.0.iter().filter_map(Weak::upgrade);
        clients.any(|client| !client.borrow().unsent.is_empty())
    }
}

impl Filter {
    fn selects(&self, class: Class) -> bool {
        if [GAP, OMITTED].contains(&class.kind) {
            return true;
        }
        let of_type = self.types.is_empty() || self.types.contains(&class.kind);
        let of_protocol = |protocol| self.protocols.is_empty() || self.protocols.contains(&protocol);
        of_type && class.protocol.is_none_or(of_protocol)
    }
}

/// Type of the record about missing records, which every client gets.
pub(super) const GAP: &str = "gap";

/// Type of the record about events without records, which every client gets.
pub(super) const OMITTED: &str = "omitted";

impl Subscription {
    fn push(&mut self, (from, to): (u64, u64), class: Class, line: &str) {
        if !self.filter.selects(class) {
            return;
        }
        if self.missing.is_some() || self.unsent.len() + line.len() > BUFFER {
            let first = self.missing.map_or(from, |(first, _)| first);
            self.missing = Some((first, to));
            return;
        }
        self.unsent.extend_from_slice(line.as_bytes());
    }

    /// Moves the events that wait to `part`, and a record about missing ones behind them.
    pub(crate) fn take(&mut self, part: &mut Vec<u8>) {
        part.append(&mut self.unsent);
        if let Some(missing) = self.missing.take() {
            let mut line = String::new();
            json::gap(&mut line, json::now(), missing, "client");
            part.extend_from_slice(line.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(kind: &'static str, protocol: EgressProtocol) -> Class {
        Class {
            kind,
            protocol: Some(protocol),
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
        let [slow, quick] = [0; 2].map(|_| clients.add(Filter::default()).unwrap());
        let line = format!("{}\n", "x".repeat(999));
        for number in 1..=300 {
            clients.publish((number, number), class("opened", EgressProtocol::Tcp), &line);
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
        let client = clients.add(filter).unwrap();
        for class in [
            class("closed", EgressProtocol::Udp),
            class("closed", EgressProtocol::Tcp),
            class("opened", EgressProtocol::Udp),
            Class {
                kind: "start",
                protocol: None,
            },
            Class {
                kind: GAP,
                protocol: None,
            },
        ] {
            clients.publish((1, 1), class, &format!("{}\n", class.kind));
        }
        assert_eq!(taken(&client), "closed\nstart\ngap\n");
    }

    #[test]
    fn clients_are_limited_and_forgotten_when_they_leave() {
        let mut clients = Clients::default();
        let mut all: Vec<_> = (0..MOST)
            .map(|_| clients.add(Filter::default()).unwrap())
            .collect();
        assert!(clients.add(Filter::default()).is_none());
        all.pop();
        assert!(clients.add(Filter::default()).is_some());
        all.clear();
        assert_eq!(clients.count(), 0);
    }
}
