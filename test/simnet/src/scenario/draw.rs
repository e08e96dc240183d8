//! Derives a scenario from a seed: network, host, guest and scripts.

use core::time::Duration;

use pontoon_engine::{Failure, Limits};

use super::{GuestPlan, Opening, Scenario, ScenarioConnection};
use crate::app::{FinalAction, ReadPause, Script, TransferPace};
use crate::guest::scripted::{Mischief, ScriptedPlan};
use crate::host::{ConnectResult, HostPlan};
use crate::link::LinkPlan;
use crate::net::Impairment;
use crate::net::offload::Merging;
use crate::rng::Rng;
use crate::settings;
use crate::world::{WorkersPlan, WorldPlan};

pub(super) fn scenario(seed: u64) -> Scenario {
    let mut rng = Rng::new(seed);
    let rng = &mut rng;
    let limits = limits(rng);
    let mut config = settings::config(limits.mtu as u16);
    config.connect_timeout = rng.pick(&[None, Some(Duration::from_secs(10)), Some(Duration::from_secs(3))]);
    let bad = rng.chance(700);
    let world = WorldPlan {
        config,
        up: impairment(rng, bad),
        down: impairment(rng, bad),
        merging: Merging {
            most: rng.pick(&[0, 8_000, 30_000, 60_000]),
            partial: rng.pick(&[0, 500, 1000]),
        },
        loose: rng.chance(500),
        link: LinkPlan {
            limits,
            refusals: rng.pick(&[0, 0, 5, 50, 200]),
            rejections: 0,
            depth: rng.pick(&[8, 64, 1024]),
            pause: rng.micros(10..=2000),
        },
        host: host(rng),
        workers: WorkersPlan::ONE,
        hand_overs: 0,
    };
    let guest = guest(rng, limits.mtu);
    let count = rng.pick(&[1, 1, 1, 2, 3, 6]);
    let connections = (0..count).map(|index| connection(rng, 1000 + index)).collect();
    Scenario {
        seed,
        world,
        guest,
        connections,
        limit: Duration::from_secs(4 * 3600),
    }
}

pub(super) fn workers(seed: u64) -> WorkersPlan {
    let mut rng = Rng::new(seed ^ 0x3077);
    WorkersPlan {
        count: rng.within(2..=4) as u8,
        missteering: rng.pick(&[0, 50, 500, 1000]),
        room: rng.pick(&[16, 256]),
    }
}

pub(super) fn hand_overs(seed: u64) -> u32 {
    Rng::new(seed ^ 0x5ca1e).pick(&[100, 300, 1_000, 5_000])
}

pub(super) fn calm(guest: GuestPlan, connection: ScenarioConnection) -> Scenario {
    let calm = Impairment {
        delay: Duration::from_micros(50),
        ..Impairment::default()
    };
    Scenario {
        seed: 1,
        world: WorldPlan {
            config: settings::config(1500),
            up: calm.clone(),
            down: calm,
            merging: Merging {
                most: 60_000,
                partial: 1000,
            },
            loose: false,
            link: LinkPlan {
                limits: Limits {
                    mtu: 1500,
                    max_gso: 65_535,
                    tso4: true,
                    tso6: true,
                    uso: true,
                },
                refusals: 0,
                rejections: 0,
                depth: 1024,
                pause: Duration::from_micros(100),
            },
            host: HostPlan::default(),
            workers: WorkersPlan::ONE,
            hand_overs: 0,
        },
        guest,
        connections: vec![connection],
        limit: Duration::from_secs(3600),
    }
}

fn limits(rng: &mut Rng) -> Limits {
    let tso = rng.chance(700);
    Limits {
        mtu: rng.pick(&[1280, 1400, 1500, 1500, 9000, 65_520]),
        max_gso: rng.pick(&[65_535, 65_535, 16_000]).max(1500),
        tso4: tso,
        tso6: tso,
        uso: tso,
    }
}

fn impairment(rng: &mut Rng, bad: bool) -> Impairment {
    let base = Impairment {
        delay: rng.micros(20..=30_000),
        grain: rng.pick(&[
            Duration::ZERO,
            Duration::from_micros(50),
            Duration::from_millis(2),
        ]),
        ..Impairment::default()
    };
    if !bad {
        return base;
    }
    Impairment {
        loss: rng.pick(&[0, 5, 20, 50, 100]),
        burst: rng.pick(&[0, 0, 2, 5]),
        burst_len: rng.within(2..=12),
        duplicate: rng.pick(&[0, 0, 20, 50]),
        reorder: rng.pick(&[0, 0, 20, 100]),
        hold: rng.micros(10..=50_000),
        ..base
    }
}

fn host(rng: &mut Rng) -> HostPlan {
    HostPlan {
        send_buffer: rng.pick(&[4_000, 20_000, 100_000, 400_000]),
        receive_buffer: rng.pick(&[4_000, 20_000, 100_000, 400_000]),
        short_writes: rng.pick(&[0, 0, 100, 400]),
        blocks: rng.pick(&[0, 0, 50, 200]),
        block_time: rng.micros(100..=20_000),
        peeks_at_offset: rng.chance(800),
        peek_limit: None,
        delay: rng.micros(10..=10_000),
        descriptors: 1000,
    }
}

fn guest(rng: &mut Rng, mtu: usize) -> GuestPlan {
    let buffers = [3_000, 16_000, 64_000, 256_000];
    if rng.chance(500) {
        return GuestPlan::Smol(rng.pick(&buffers), rng.pick(&buffers));
    }
    let most = mtu.min(9000) as u64 - 60;
    let receive_buffer = rng.pick(&buffers) as u64;
    // A scale that is so coarse that the window field would always be 0 is not drawn.
    let coarsest = (receive_buffer / 16).ilog2() as u8;
    let scale = rng.pick(&[None, Some(0), Some(3), Some(7), Some(14)]);
    GuestPlan::Scripted(ScriptedPlan {
        mss: rng.pick(&[most, most, 536, 1200]).min(most) as u16,
        scale: scale.map(|scale| scale.min(coarsest)),
        sack: rng.chance(700),
        receive_buffer,
        send_buffer: rng.pick(&buffers) as u64,
        iss: rng.pick(&[1, 0xffff_0000, 0xffff_ffff, 0x7fff_f000]),
        quick_ack: rng.chance(300),
        mischief: if rng.chance(500) {
            Mischief::ALL
        } else {
            Mischief::default()
        },
    })
}

fn connection(rng: &mut Rng, port: u16) -> ScenarioConnection {
    let opening = match rng.below(20) {
        0 => Opening::Guest(ConnectResult::Fail(rng.pick(&FAILURES))),
        1 => Opening::Guest(ConnectResult::FailAfter(
            rng.micros(1..=1_000_000),
            rng.pick(&FAILURES),
        )),
        2 => Opening::Guest(ConnectResult::Never),
        3..=5 => Opening::Guest(ConnectResult::After(rng.micros(1..=2_000_000))),
        6..=9 => Opening::Host,
        _ => Opening::Guest(ConnectResult::Now),
    };
    let (guest, host) = scripts(rng);
    ScenarioConnection {
        port,
        v6: rng.chance(500),
        opening,
        guest,
        host,
        after: rng.micros(0..=20_000),
    }
}

/// Returns scripts of guest and host that end: one side closes first, and the condition of a reset is met.
fn scripts(rng: &mut Rng) -> (Script, Script) {
    let (up, down) = (amount(rng), amount(rng));
    let mut guest = manner(rng, up);
    let mut host = manner(rng, down);
    match rng.below(10) {
        0..=2 => {
            guest.end = FinalAction::AfterSending;
            host.end = rng.pick(&[FinalAction::AfterSending, FinalAction::AfterPeer]);
        }
        3 | 4 => host.end = FinalAction::AfterSending,
        5 => {
            guest.end = FinalAction::AfterSending;
            host.echo = true;
        }
        6 => {
            host.end = FinalAction::AfterSending;
            guest.echo = true;
        }
        7 => guest.end = FinalAction::Reset(rng.within(0..=up + down)),
        8 => host.end = FinalAction::Reset(rng.within(0..=up + down)),
        _ => {
            guest.end = FinalAction::Reset(rng.within(0..=up + down));
            host.end = FinalAction::Reset(rng.within(0..=up + down));
        }
    }
    (guest, host)
}

fn manner(rng: &mut Rng, send: u64) -> Script {
    let stall = rng.chance(200).then(|| ReadPause {
        after: rng.within(0..=50_000),
        time: rng.micros(1_000..=90_000_000),
    });
    Script {
        send,
        read: pace(rng),
        write: pace(rng),
        stall,
        ..Script::SINK
    }
}

fn pace(rng: &mut Rng) -> TransferPace {
    if rng.chance(600) {
        return TransferPace::UNLIMITED;
    }
    TransferPace {
        chunk: rng.pick(&[700, 5_000, 40_000]),
        every: rng.micros(10..=5_000),
    }
}

fn amount(rng: &mut Rng) -> u64 {
    match rng.below(8) {
        0 => 0,
        1 => rng.within(1..=10),
        2..=4 => rng.within(1..=20_000),
        5 | 6 => rng.within(1..=100_000),
        _ => rng.within(1..=400_000),
    }
}

const FAILURES: [Failure; 6] = [
    Failure::Refused,
    Failure::NetUnreachable,
    Failure::HostUnreachable,
    Failure::TimedOut,
    Failure::Prohibited,
    Failure::Exhausted,
];
