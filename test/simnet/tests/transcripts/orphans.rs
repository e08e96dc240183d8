//! Connections of an earlier engine that has exited.

use std::sync::{Arc, Mutex};

use pontoon_engine::Ledger;
use pontoon_engine::ledger::Ends;
use pontoon_wire::Mac;

use super::*;

/// A log of lines, in order.
#[derive(Clone, Debug, Default)]
struct Book(Arc<Mutex<Lines>>);

/// Slots with the connections that were recorded there; `None` where the record was removed.
type Lines = Vec<(u32, Option<Ends>)>;

impl Book {
    fn take(&self) -> Lines {
        core::mem::take(&mut *self.0.lock().expect("no panic"))
    }
}

impl Ledger for Book {
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
    let book = Book::default();
    given.engine.keep_ledger(Box::new(book.clone()));
    given.up(syn());
    assert_eq!(book.take(), [(0, Some(ENDS))]);
    given.down(syn_ack());
    given.up(up(ACK, 1001, 1));
    assert!(book.take().is_empty());
    given.up(up(RST, 1001, 0));
    assert_eq!(book.take(), [(0, None)]);
}

/// A guest in ESTABLISHED answers a segment outside its window by an acknowledgement; the engine answers that by a reset,
/// which the guest accepts.
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
}
