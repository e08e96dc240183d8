//! Tests of connections in the ledger whose engine has exited.

use std::sync::{Arc, Mutex};

use pontoon_engine::Ledger;
use pontoon_engine::ledger::Ends;
use pontoon_wire::Mac;

use super::*;

/// A ledger that keeps its changes in order.
#[derive(Clone, Debug, Default)]
struct RecordedLog(Arc<Mutex<LedgerLines>>);

/// Changes of a ledger: a slot with the recorded connection, or `None` if the entry was removed.
type LedgerLines = Vec<(u32, Option<Ends>)>;

impl RecordedLog {
    fn take(&self) -> LedgerLines {
        core::mem::take(&mut *self.0.lock().expect("no panic"))
    }
}

impl Ledger for RecordedLog {
    fn enter(&self, slot: u32, ends: Ends) {
        self.0.lock().expect("no panic").push((slot, Some(ends)));
    }

    fn strike(&self, slot: u32) {
        self.0.lock().expect("no panic").push((slot, None));
    }

    fn guest_moved(&self, _: Mac) {}
}

const ENDS: Ends = Ends {
    guest: GUEST,
    remote: SERVER,
};

#[test]
fn ledger_lists_connections_while_they_last() {
    let mut given = Given::serving(Script::SINK);
    let book = RecordedLog::default();
    given.engine.keep_ledger(Box::new(book.clone()));
    given.up(syn());
    assert_eq!(book.take(), [(0, Some(ENDS))]);
    given.down(syn_ack());
    given.up(up(ACK, 1001, 1));
    assert!(book.take().is_empty());
    given.up(up(RST, 1001, 0));
    assert_eq!(book.take(), [(0, None)]);
}

/// Tests the reset of a connection whose engine has exited. A guest in ESTABLISHED answers a segment outside of its
/// window by an acknowledgement; the new engine answers that by a reset, which the guest accepts.
#[test]
fn orphaned_connection_of_an_idle_guest_is_reset() {
    let mut given = Given::server();
    given.engine.ask_about(vec![ENDS]);
    given.pass(Duration::ZERO);
    let probes = [0, 1 << 31].map(|seq| {
        Packet::Tcp(Segment {
            window: 0,
            ..down(ACK, seq, 0)
        })
    });
    assert_eq!(given.take(), probes);
    given.up(up(ACK, 5000, 7000));
    let reset = given.take_one();
    assert_eq!((reset.flags, reset.seq), (RST, 7000));
    given.quiet();
    given.counted(|counters| {
        counters.frames_up += 1;
        counters.frames_down += 3;
        counters.tcp_unknown += 1;
    });
}

#[test]
fn orphans_are_probed_64_at_a_time() {
    let mut given = Given::server();
    let orphans = (0..1000).map(|port| Ends {
        guest: (GUEST_V4, 10_000 + port).into(),
        remote: SERVER,
    });
    given.engine.ask_about(orphans.collect());
    given.engine.handle_ready(&mut given.link, &mut given.host, START);
    assert!(given.engine.has_ready());
    assert_eq!(given.engine.counters().frames_down, 128);
    // Another guest is not probed for the others.
    given.forget_guest();
    assert!(!given.engine.has_ready());
    assert_eq!(given.engine.counters().frames_down, 128);
}
