//! The server side of UDP jobs: counts the datagrams of a session.

use std::convert::Infallible;
use std::net::UdpSocket;
use std::time::Instant;

use pontoon_sys::batch::Batch;
use pontoon_sys::udp::Ancillary;

use super::control::Checkpoint;
use super::fault::Fault;
use super::session::{ServerState, lock};

/// Number of messages that one recvmmsg(2) receives.
const BATCH: usize = 64;

/// Receive buffer of a single datagram, in bytes; the rest of a longer one is discarded.
const ONE: usize = 2048;

/// Receive buffer of coalesced datagrams (`UDP_GRO`), in bytes.
const RUN: usize = 65536;

/// Number of datagrams of one session. The first eight bytes of each datagram are the session's number.
#[derive(Default)]
pub(crate) struct DatagramCounter {
    session: u64,
    count: u64,
    first: Option<Instant>,
    last: Option<Instant>,
}

impl DatagramCounter {
    pub(crate) fn of(session: u64) -> Self {
        Self {
            session,
            ..Self::default()
        }
    }

    pub(crate) fn checkpoint(&self) -> Checkpoint {
        let between = self.first.zip(self.last).map(|(first, last)| last - first);
        Checkpoint {
            count: self.count,
            seconds: between.unwrap_or_default().as_secs_f64(),
        }
    }

    fn add(&mut self, datagram: &[u8]) {
        let session = datagram.first_chunk().map(|tag| u64::from_le_bytes(*tag));
        self.count += u64::from(session == Some(self.session));
    }
}

/// Counts the datagrams that `socket` receives, one in each message.
pub(crate) fn count<F: Fault>(shared: &ServerState, socket: &UdpSocket) -> Infallible {
    receive::<F>(shared, socket, ONE)
}

/// Counts the datagrams that `socket` receives coalesced (`UDP_GRO`).
pub(crate) fn count_runs<F: Fault>(shared: &ServerState, socket: &UdpSocket) -> Infallible {
    receive::<F>(shared, socket, RUN)
}

fn receive<F: Fault>(shared: &ServerState, socket: &UdpSocket, room: usize) -> Infallible {
    let mut batch = Batch::new(BATCH, room);
    loop {
        // Receive errors report ICMP errors for sent datagrams, and this socket sends none.
        let Ok(messages) = batch.receive(socket) else {
            continue;
        };
        let now = Instant::now();
        let mut datagram_counter = lock(&shared.datagram_counter);
        let before = datagram_counter.count;
        for index in 0..messages {
            let (bytes, control) = batch.message(index);
            let stride = Ancillary::decode(control).stride.unwrap_or(bytes.len()).max(1);
            for datagram in bytes.chunks_mut(stride) {
                F::corrupt(datagram);
                datagram_counter.add(datagram);
            }
        }
        if datagram_counter.count != before {
            datagram_counter.first.get_or_insert(now);
            datagram_counter.last = Some(now);
        }
    }
}
