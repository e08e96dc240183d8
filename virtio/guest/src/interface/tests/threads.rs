//! Tests with an interface and an echoing device in two threads, each of which sleeps when it has nothing to do.

use std::time::Instant;

use pontoon_ring::memory::{Raw, Window};

use super::peer::{MAP, Peer, SharedMemory};
use super::*;
use crate::DeviceGone;
use pontoon_test_support::notifier::Notifier;

const FRAMES: u32 = if cfg!(miri) { 64 } else { 100_000 };

/// Number of frames in flight.
const WINDOW: u32 = 8;

struct Thread<'d> {
    begin: Instant,
    kick: &'d Notifier,
    call: &'d Notifier,
}

impl Platform for Thread<'_> {
    fn now(&mut self) -> Duration {
        self.begin.elapsed()
    }

    fn notify(&mut self, _: Ring) {
        self.kick.notify();
    }

    fn sleep(&mut self, until: Option<Duration>) -> Result<(), DeviceGone> {
        assert_eq!(until, None);
        self.call.wait();
        Ok(())
    }
}

#[test]
fn no_notification_is_lost() {
    for pacing in PACINGS {
        for event_idx in [false, true] {
            converse(pacing, event_idx);
        }
    }
}

fn converse(pacing: Pacing, event_idx: bool) {
    let features = Features {
        event_idx,
        indirect: false,
    };
    let shared = SharedMemory::new();
    let memory = shared.window();
    let (kick, call) = (Notifier::default(), Notifier::default());
    let thread = Thread {
        begin: Instant::now(),
        kick: &kick,
        call: &call,
    };
    let net = Interface::new(memory, MAP, features, thread, pacing).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| echo(memory, features, &kick, &call));
        request_echoes(net);
    });
}

/// Sends frames, [`WINDOW`] at a time, and receives their echoes.
fn request_echoes(mut net: Interface<Window<Raw<'_>>, Thread<'_>, 16>) {
    net.start();
    let mut buffer = [0; 64];
    for first in (0..FRAMES).step_by(WINDOW as usize) {
        for number in first..first + WINDOW {
            net.queue(&number.to_le_bytes()).unwrap();
        }
        for number in first..first + WINDOW {
            let len = loop {
                match net.read(&mut buffer).unwrap() {
                    Some(len) => break len,
                    None => assert!(net.poll(None).unwrap().frame),
                }
            };
            assert_eq!(buffer[..len], number.to_le_bytes());
        }
    }
}

fn echo(memory: Window<Raw<'_>>, features: Features, kick: &Notifier, call: &Notifier) {
    let mut peer = Peer::new(memory, features);
    let mut echoed = 0;
    while echoed < FRAMES {
        let frames = peer.take();
        for frame in &frames {
            peer.send(frame);
            echoed += 1;
        }
        if peer.calls() > 0 {
            call.notify();
        }
        if frames.is_empty() && peer.rearm() == 0 {
            kick.wait();
        }
    }
}
