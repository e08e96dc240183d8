//! Test of the simulated network without an engine: two smoltcp stacks exchange streams over a network that loses,
//! duplicates, reorders, merges and splits segments, and every stream must be received exactly.

use core::net::IpAddr;
use core::time::Duration;

use pontoon_engine::Instant;
use pontoon_simnet::app::{ConnectionEnd, FinalAction, Script, TransferPace};
use pontoon_simnet::clock::earlier;
use pontoon_simnet::guest::smol::{Side, Smol};
use pontoon_simnet::guest::{Addressing, Guest, GuestCall, GuestListener};
use pontoon_simnet::net::offload::{Merging, merge, split};
use pontoon_simnet::net::{Impairment, Pipe};
use pontoon_simnet::rng::Rng;
use pontoon_simnet::settings::{GUEST_MAC, OUR_MAC, SERVER_V4, SERVER_V6, addressing};

/// Two smoltcp stacks, joined by two pipes.
struct SmolPair {
    near: Smol,
    far: Smol,
    up: Pipe,
    down: Pipe,
    rng: Rng,
    now: Instant,
    merged: usize,
}

impl SmolPair {
    fn new(seed: u64, impairment: &Impairment) -> Self {
        let mut rng = Rng::new(seed);
        let far = Addressing {
            addresses: [IpAddr::V4(SERVER_V4), IpAddr::V6(SERVER_V6)],
            mac: OUR_MAC,
            gateway: GUEST_MAC,
        };
        Self {
            near: Smol::new(addressing(), 1500, 32 << 10, 32 << 10, rng.fork()),
            far: Smol::new(far, 1500, 32 << 10, 32 << 10, rng.fork()),
            up: Pipe::new(impairment.clone(), rng.fork()),
            down: Pipe::new(impairment.clone(), rng.fork()),
            rng,
            now: Instant(1 << 40),
            merged: 0,
        }
    }

    fn step(&mut self) -> bool {
        let apps = earlier(self.near.next(self.now), self.far.next(self.now));
        let Some(next) = earlier(apps, earlier(self.up.next(), self.down.next())) else {
            return false;
        };
        self.now = self.now.max(next);
        let arrived = core::iter::from_fn(|| self.up.receive(self.now)).collect();
        let merging = Merging {
            most: 20_000,
            partial: 500,
        };
        for (offload, frame) in merge(&mut self.rng, merging, arrived) {
            let parts = split(&mut self.rng, true, offload, &frame).expect("what was merged");
            self.merged += usize::from(parts.len() > 1);
            for part in parts {
                self.far.receive(&part, self.now);
            }
        }
        while let Some(frame) = self.down.receive(self.now) {
            self.near.receive(&frame, self.now);
        }
        for frame in self.near.poll(self.now) {
            self.up.send(frame, self.now);
        }
        for frame in self.far.poll(self.now) {
            self.down.send(frame, self.now);
        }
        true
    }

    fn outcomes(&self) -> [Vec<(Option<ConnectionEnd>, u64)>; 2] {
        [&self.near, &self.far].map(|guest| {
            let of = |report: pontoon_simnet::guest::GuestReport| {
                (report.outcome, report.app.map_or(0, |app| app.received()))
            };
            guest.reports().into_iter().map(of).collect()
        })
    }
}

fn bad_network() -> Impairment {
    Impairment {
        loss: 50,
        burst: 5,
        burst_len: 6,
        duplicate: 30,
        reorder: 50,
        hold: Duration::from_millis(20),
        delay: Duration::from_millis(3),
        grain: Duration::from_millis(1),
    }
}

#[test]
fn streams_are_exact_over_a_lossy_network() {
    let (mut merged, mut lost) = (0, 0);
    for seed in 0..200 {
        let mut pair = SmolPair::new(seed, &bad_network());
        let to = if seed % 2 == 0 {
            IpAddr::V4(SERVER_V4)
        } else {
            IpAddr::V6(SERVER_V6)
        };
        pair.far.listen_as(
            GuestListener {
                port: 80,
                script: Script {
                    send: 7000,
                    ..Script::echo()
                },
            },
            Side::Host,
        );
        let script = Script {
            read: TransferPace {
                chunk: 4000,
                every: Duration::from_millis(2),
            },
            ..Script::source(50_000)
        };
        pair.near.call(GuestCall {
            to: (to, 80).into(),
            from: 4000,
            script,
            at: pair.now,
        });
        while pair.step() {
            assert!(
                pair.now.since(Instant(1 << 40)) < Duration::from_secs(3600),
                "seed {seed} does not end"
            );
            assert_eq!([pair.near.wrong(), pair.far.wrong()], [[""; 0]; 2], "seed {seed}");
        }
        assert_eq!(
            pair.outcomes(),
            [
                [(Some(ConnectionEnd::Closed), 57_000)],
                [(Some(ConnectionEnd::Closed), 50_000)]
            ],
            "seed {seed}"
        );
        merged += pair.merged;
        lost += pair.up.lost + pair.down.lost;
    }
    assert!(
        merged > 1000 && lost > 1000,
        "{merged} frames merged, {lost} lost"
    );
}

#[test]
fn reset_is_received_as_a_reset() {
    let mut pair = SmolPair::new(
        1,
        &Impairment {
            delay: Duration::from_millis(1),
            ..Impairment::default()
        },
    );
    pair.far.listen_as(
        GuestListener {
            port: 80,
            script: Script::echo(),
        },
        Side::Host,
    );
    let write = TransferPace {
        chunk: 1000,
        every: Duration::from_millis(1),
    };
    let script = Script {
        end: FinalAction::Reset(9000),
        write,
        ..Script::source(10_000)
    };
    pair.near.call(GuestCall {
        to: (SERVER_V4, 80).into(),
        from: 4000,
        script,
        at: pair.now,
    });
    while pair.step() {}
    let [near, far] = pair.outcomes();
    assert_eq!(
        (near[0].0, far[0].0),
        (Some(ConnectionEnd::Aborted), Some(ConnectionEnd::Reset))
    );
}
