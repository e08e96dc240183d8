//! Tests of one behaviour each in the simulated network. They run for IPv4 and IPv6, and for both kinds of guests
//! unless the behaviour is one of the guest's stack.

mod bandwidth;
mod closing;
mod datagrams;
mod link;
mod oddities;
mod opening;
mod panics;
mod windows;
mod workers;

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pontoon_engine::Failure;
use pontoon_simnet::app::{FinalAction, ReadPause, Script, TransferPace};
use pontoon_simnet::frames::{Datagram, Packet, Segment};
use pontoon_simnet::guest::scripted::{Mischief, Scripted, ScriptedPlan};
use pontoon_simnet::host::ConnectResult;
use pontoon_simnet::net::{Filter, FilterVerdict};
use pontoon_simnet::rng::Rng;
use pontoon_simnet::scenario::{GuestPlan, Opening, Scenario, ScenarioConnection, ScenarioResult, server};
use pontoon_simnet::settings::{GUEST_V4, GUEST_V6, addressing};
use pontoon_simnet::transcript::{ACK, FIN, SYN};
use pontoon_simnet::world::SimWorld;

const SECOND: Duration = Duration::from_secs(1);

fn connection(opening: Opening, guest: Script, host: Script) -> ScenarioConnection {
    ScenarioConnection {
        port: 1000,
        v6: false,
        opening,
        guest,
        host,
        after: Duration::from_millis(1),
    }
}

/// Returns a connection that the guest opens, to a host that accepts at once.
fn dial(guest: Script, host: Script) -> ScenarioConnection {
    connection(Opening::Guest(ConnectResult::Now), guest, host)
}

/// Returns a pace of `chunk` bytes in each interval of `millis` milliseconds.
fn pace(chunk: u64, millis: u64) -> TransferPace {
    TransferPace {
        chunk,
        every: Duration::from_millis(millis),
    }
}

/// Returns a script that stops reading for a minute after `after` bytes.
fn resting_a_minute(after: u64) -> Script {
    let stall = ReadPause {
        after,
        time: 60 * SECOND,
    };
    Script {
        stall: Some(stall),
        ..Script::SINK
    }
}

/// Returns scenarios with this connection for IPv4 and IPv6 and for both kinds of guests.
fn everywhere(connection: &ScenarioConnection) -> Vec<Scenario> {
    let guests = [
        GuestPlan::Smol(64_000, 64_000),
        GuestPlan::Scripted(ScriptedPlan::default()),
    ];
    let families = [false, true];
    guests
        .iter()
        .flat_map(|guest| {
            families.map(|v6| {
                Scenario::calm(
                    guest.clone(),
                    ScenarioConnection {
                        v6,
                        ..connection.clone()
                    },
                )
            })
        })
        .collect()
}

#[track_caller]
fn check(run: ScenarioResult) -> ScenarioResult {
    if let Some(failure) = run.failure {
        panic!("{failure}\n{}", run.trace);
    }
    run
}

/// Returns a filter that drops the first `count` segments for which `is` returns true, and the number of those
/// dropped.
fn lose(count: u32, is: impl Fn(&Segment) -> bool + Send + 'static) -> (Option<Filter>, Arc<AtomicU32>) {
    let lost = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&lost);
    let filter = move |packet: &Packet| match packet {
        Packet::Tcp(segment) if is(segment) && lost.load(Ordering::Relaxed) < count => {
            lost.fetch_add(1, Ordering::Relaxed);
            FilterVerdict::Drop
        }
        _ => FilterVerdict::Pass,
    };
    (Some(Box::new(filter)), counter)
}
