//! Cases about clients of the control socket that hang.

use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::{ControlScene, SOCKET};
use crate::case::{Case, Context};
use crate::process::{self, QuietMachine, Stopwatch};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("control.half-a-request", 30, others),
        Case::new("control.half-a-request-round-trips", 90, round_trips).alone(),
    ]
}

/// Tests that hanging clients delay neither other clients nor new connections of the guest.
fn others(context: &Context) -> Result<()> {
    let mut scene = ControlScene::new(context)?;
    let _stuck = stuck()?;
    let stats = Stopwatch::start();
    scene.ctl(&["stats"])?;
    stats.within(Duration::from_secs(1), Duration::from_secs(10))?;
    ensure!(scene.reaches()?, "the guest does not reach the server");
    Ok(())
}

/// Number of measurements with hanging clients, and the same number without, in turn.
const MEASUREMENTS: usize = 12;
/// Number of round trips in each measurement.
const ROUNDS: usize = 2000;

/// Largest ratio of the 99th percentiles of the round-trip time with and without hanging clients. Hanging clients
/// affect every measurement and other load does not, so the third best measurement of each kind is compared.
const BOUND: f64 = 1.5;

/// Tests that hanging clients wake up no process, and that they do not raise the 99th percentile of the guest's round
/// trips.
fn round_trips(context: &Context) -> Result<()> {
    let mut scene = ControlScene::new(context)?;
    let line = format!("$E2E guest tcp {} rr-p99 {ROUNDS}", scene.server);
    let mut p99 = || -> Result<f64> { Ok(scene.guest.ask(&line)?.parse()?) };
    p99()?;
    let machine = QuietMachine::begin()?;
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..MEASUREMENTS {
        without.push(p99()?);
        let stuck = stuck()?;
        with.push(p99()?);
        drop(stuck);
    }
    let [with, without] = [with, without].map(|mut all| {
        all.sort_by(f64::total_cmp);
        all[MEASUREMENTS / 4 - 1]
    });
    let ratio = with / without;
    eprintln!("round trips, p99: {without} ns, with stuck clients {with} ns, {ratio:.3} times as much");
    machine.judge(
        ratio <= BOUND,
        &format!("{without} ns without them, {with} ns with them"),
    )?;

    let supervisor = || -> Result<_> {
        let engine = context.program.engine()?;
        let others = context.program.processes().into_iter();
        let others = others.filter(|process| *process != engine);
        others
            .map(|process| process.activity())
            .collect::<Result<Vec<_>>>()
    };
    let _stuck = stuck()?;
    scene.ctl(&["stats"])?;
    let mut before = supervisor()?;
    let what = "the supervisor has read the requests and the end of this client";
    process::wait_until(what, Duration::from_secs(10), || {
        std::thread::sleep(Duration::from_millis(100));
        let last = std::mem::replace(&mut before, supervisor()?);
        Ok(before == last)
    })?;
    // The test measures that nothing happens during this time.
    std::thread::sleep(Duration::from_secs(2));
    let after = supervisor()?;
    // The supervisor looks every 5 s whether the engine hangs.
    ensure!(
        before
            .iter()
            .zip(&after)
            .all(|(before, after)| after.0 <= before.0 + 1 && after.1 == before.1),
        "(wake-ups, CPU ticks) of the supervisor went from {before:?} to {after:?} in 2 s"
    );
    Ok(())
}

/// Opens more connections to the control socket than are served at one time. Each has sent half of a request, except
/// the last one, which does not read its replies.
fn stuck() -> Result<Vec<UnixStream>> {
    let mut stuck = Vec::new();
    for _ in 0..40 {
        let mut client = UnixStream::connect(SOCKET)?;
        // The supervisor may have closed the connection in favour of a later one.
        let _ = client.write_all(b"PUT /v1/policy HTTP/1.1\r\nContent-Length: 9\r\n\r\n{");
        stuck.push(client);
    }
    let mut unread = UnixStream::connect(SOCKET)?;
    unread.set_write_timeout(Some(Duration::from_millis(20)))?;
    loop {
        match unread.write_all(&b"GET /v1/openapi.json HTTP/1.1\r\n\r\n".repeat(100)) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => {
                return Err(error).context("cannot write the requests of the client that reads no reply");
            }
        }
    }
    stuck.push(unread);
    Ok(stuck)
}
