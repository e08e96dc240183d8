//! The case in which the engine is killed again and again under load.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::{
    AUDIT, COUNTING, Seen, check_bytes, check_ends, check_numbers, counting_server_at, end, records, start,
};
use crate::case::{Case, Context, Family};
use crate::cases::{expect, tcp_server, tmpfs, wanted};
use crate::network::Network;
use crate::process;

/// Number of servers: the guest's ports of connections to one server are not used again before all of them had some.
const SERVERS: u16 = 16;

/// Number of connections that the guest makes to one server after the other.
const BATCH: u32 = 250;

/// Time between two kills: the third crash within ten seconds would end the program.
const PAUSE: Duration = Duration::from_millis(5500);

pub(super) fn case() -> Case {
    Case::new("events.audit-engine-killed", 240, run)
}

/// Tests that the records account for every flow while the guest opens `PONTOON_AUDIT_FLOWS` connections or more as fast as it
/// can, and the engine is killed `PONTOON_AUDIT_KILLS` times: the bytes of flows with an orderly end are those that the server
/// has seen, the others are lost, and no number is missing but for records that the killed engine had begun.
fn run(context: &Context) -> Result<()> {
    let kills: u32 = wanted("PONTOON_AUDIT_KILLS", 3);
    let flows: u32 = wanted("PONTOON_AUDIT_FLOWS", 10_000);
    let network = Network::new(context)?;
    tmpfs(Path::new("/run"))?;
    let seen = Seen::default();
    for port in COUNTING..COUNTING + SERVERS {
        counting_server_at(&network, port, &seen)?;
    }
    let other = tcp_server(&network, Family::V4)?;
    let mut guest = start(&network, &["--audit", &format!("{AUDIT},size=4M,keep=900")])?;
    // Two programs, each with servers of its own, until the file exists.
    let ip = other.ip();
    let (second, last) = (COUNTING + 1, COUNTING + SERVERS - 1);
    let load = format!(
        "load() {{ while [ ! -e /run/stop ]; do \
           for port in $(seq $1 2 {last}); do \
             for nth in $(seq 10); do [ -e /run/stop ] && break; \
               $E2E guest tcp {ip}:$port send-port {BATCH} >>/run/done 2>>/run/errors; done; done; done; }}; \
         (load {COUNTING} & load {second} & wait) & echo begun"
    );
    expect(&guest.ask(&load)?, "begun")?;
    let begin = Instant::now();
    for round in 0..kills {
        // A connection that is open when the engine is killed.
        expect(&guest.ask(&format!("$E2E guest tcp {other} waits &"))?, "waiting")?;
        let pause = if round == 0 { Duration::from_secs(1) } else { PAUSE };
        // The duration is a condition of the test.
        std::thread::sleep(pause);
        context.program.kill_engine()?;
        expect(&guest.line()?, "reset")?;
    }
    let counts = || -> Result<Vec<u32>> {
        let text = std::fs::read_to_string("/run/done")?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    };
    process::wait_until("enough connections are made", Duration::from_secs(200), || {
        Ok(counts()?.iter().sum::<u32>() >= flows)
    })?;
    let took = begin.elapsed();
    std::fs::write("/run/stop", "")?;
    expect(&guest.ask("wait; echo stopped")?, "stopped")?;
    end(guest)?;

    let served: u32 = counts()?.iter().sum();
    let records = records(AUDIT)?;
    let missing = check_numbers(&records, 1)?;
    let (opened, closed, lost) = check_ends(&records)?;
    let (compared, others) = check_bytes(&records, &seen)?;
    eprintln!(
        "{served} connections in {took:?} and {kills} kills: {opened} opened, {closed} closed ({compared} in order, others: \
         {others:?}), {lost} lost, {missing} records are missing"
    );
    ensure!(lost >= kills as usize, "{lost} flows are lost");
    // Each worker of an engine that is killed may have begun one record.
    let workers = 4;
    ensure!(
        missing <= u64::from(kills * workers),
        "{missing} records are missing"
    );
    for gap in records.iter().filter(|record| record["type"] == "gap") {
        ensure!(gap["reason"] == "engine", "{gap}");
    }
    // The guest may have received the end of a connection that has no record yet when the engine is killed or ends.
    let ended = others.get("ended").copied().unwrap_or_default();
    ensure!(
        compared + lost + ended + missing as usize >= served as usize,
        "{compared} of {served} flows have ended in order"
    );
    let first = records.first().context("no record")?;
    let last = records.last().context("no record")?;
    ensure!(
        first["type"] == "start" && last["type"] == "end",
        "{first} {last}"
    );
    Ok(())
}
