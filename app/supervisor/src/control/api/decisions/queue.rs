//! Requests that wait for the decider to read them, with a queue for each source.
//!
//! The decider gets a request of the guest and one of a published port in turn, and the ports take turns. With one queue, the
//! clients of a port, who may be any host, would delay the guest's requests until their deadline.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::ops::Bound;

/// Requests with their lines, the oldest of each source first.
#[derive(Debug, Default)]
pub(super) struct RequestQueue {
    /// Requests for flows that the guest opens.
    guest: VecDeque<QueuedRequest>,
    /// Requests for clients, by published port. No queue is empty.
    ports: BTreeMap<SocketAddr, VecDeque<QueuedRequest>>,
    /// The port whose request was returned last.
    last_port: Option<SocketAddr>,
    /// True if the last request was of the guest.
    was_guest: bool,
    len: usize,
}

/// Token and line of a request.
#[derive(Debug)]
struct QueuedRequest {
    token: u64,
    line: Vec<u8>,
}

impl RequestQueue {
    /// Returns the number of requests.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Removes all requests.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Adds a request for a client of the port `published`, or of the guest.
    pub(super) fn push(&mut self, published: Option<SocketAddr>, token: u64, line: Vec<u8>) {
        let queue = match published {
            None => &mut self.guest,
            Some(port) => self.ports.entry(port).or_default(),
        };
        queue.push_back(QueuedRequest { token, line });
        self.len += 1;
    }

    /// Removes the next request that is pending, and returns its line. Earlier ones that are not pending are removed as well.
    pub(super) fn pop(&mut self, is_pending: impl Fn(u64) -> bool) -> Option<Vec<u8>> {
        loop {
            let of_port = self.ports_are_next().then(|| self.pop_port()).flatten();
            let QueuedRequest { token, line } = match of_port {
                Some(request) => request,
                None => self.pop_guest()?,
            };
            if is_pending(token) {
                return Some(line);
            }
        }
    }

    /// Removes the requests that are not pending.
    pub(super) fn retain(&mut self, is_pending: impl Fn(u64) -> bool) {
        let is_pending = |request: &QueuedRequest| is_pending(request.token);
        self.guest.retain(is_pending);
        self.ports.retain(|_, queue| {
            queue.retain(is_pending);
            !queue.is_empty()
        });
        self.len = self.guest.len() + self.ports.values().map(VecDeque::len).sum::<usize>();
    }

    fn ports_are_next(&self) -> bool {
        self.was_guest || self.guest.is_empty()
    }

    fn pop_guest(&mut self) -> Option<QueuedRequest> {
        let request = self.guest.pop_front()?;
        self.was_guest = true;
        self.len -= 1;
        Some(request)
    }

    /// Removes the oldest request of the port behind the last one.
    fn pop_port(&mut self) -> Option<QueuedRequest> {
        let behind = self.last_port.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.ports.range((behind, Bound::Unbounded)).next();
        let (port, _) = next.or_else(|| self.ports.first_key_value())?;
        let port = *port;
        let queue = self.ports.get_mut(&port)?;
        let request = queue.pop_front();
        if queue.is_empty() {
            self.ports.remove(&port);
        }
        self.last_port = Some(port);
        self.was_guest = false;
        self.len -= usize::from(request.is_some());
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(number: u16) -> Option<SocketAddr> {
        Some(SocketAddr::from(([127, 0, 0, 1], number)))
    }

    /// Returns a queue with requests whose line is the token, and their sources.
    fn queue(requests: &[(u8, Option<SocketAddr>)]) -> RequestQueue {
        let mut queue = RequestQueue::default();
        for (token, source) in requests {
            queue.push(*source, (*token).into(), vec![*token]);
        }
        queue
    }

    /// Removes all requests, and returns their tokens.
    fn drain(queue: &mut RequestQueue, is_pending: impl Fn(u64) -> bool) -> Vec<u8> {
        let lines = std::iter::from_fn(|| queue.pop(&is_pending));
        lines.flatten().collect()
    }

    #[test]
    fn guest_and_published_ports_take_turns() {
        let mut queue = queue(&[
            (1, port(80)),
            (2, port(80)),
            (3, port(80)),
            (4, port(81)),
            (5, port(81)),
            (6, None),
            (7, None),
            (8, None),
        ]);
        assert_eq!(queue.len(), 8);
        assert_eq!(drain(&mut queue, |_| true), [6, 1, 7, 4, 8, 2, 5, 3]);
        assert_eq!(queue.len(), 0);
    }

    #[test]
    fn request_that_arrives_later_is_next_if_the_other_source_was_last() {
        let mut queue = queue(&[(1, port(80)), (2, port(80)), (3, port(80))]);
        assert_eq!(queue.pop(|_| true), Some(vec![1]));
        queue.push(None, 4, vec![4]);
        queue.push(port(79), 5, vec![5]);
        assert_eq!(drain(&mut queue, |_| true), [4, 5, 2, 3]);
    }

    #[test]
    fn requests_that_are_not_pending_are_removed() {
        let requests = [(1, port(80)), (2, None), (3, port(80)), (4, None)];
        assert_eq!(drain(&mut queue(&requests), |token| token > 2), [4, 3]);
        let mut retained = queue(&requests);
        retained.retain(|token| token > 2);
        assert_eq!(retained.len(), 2);
        assert_eq!(drain(&mut retained, |_| true), [4, 3]);
        assert!(retained.ports.is_empty());
    }
}
