//! Cases about the control socket of `pontoon relay`: rules that change, and queries.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::traffic::{Receiver, Sender};
use super::workers::worker;
use super::world::{RelayRow, RelayStats, RunningRelay, command, on_the_right};
use super::{MANY, group, onward, reload, usual};
use crate::case::{Case, Context, Family};
use crate::http::HttpClient;
use crate::lint;
use crate::process::{Stopwatch, output, wait_until};

pub(super) fn cases() -> Vec<Case> {
    let one = [
        Case::new("relay.control-shows-rates", 20, rates),
        Case::new("relay.control-request-is-atomic", 20, refuses),
        Case::new("relay.stopped-worker-does-not-delay-others", 20, stopped),
        Case::new(
            "relay.worker-stopped-at-start-does-not-delay-control",
            20,
            stopped_at_start,
        ),
        Case::new("relay.control-changes-do-not-affect-other-rules", 30, churn).alone(),
    ];
    Case::both("relay.control", 30, control)
        .into_iter()
        .chain(one)
        .collect()
}

const SOCKET: &str = "/mnt/control";

/// Runs `pontoon ctl relay`, whose exit status must be `status`. Returns its output, or its error message.
fn ctl(context: &Context, words: &[&str], status: i32) -> Result<String> {
    let mut ctl = command(context)?;
    let output = ctl
        .args(["ctl", "--control", SOCKET, "relay"])
        .args(words)
        .output()?;
    let printed = if status == 0 { output.stdout } else { output.stderr };
    let printed = String::from_utf8(printed)?;
    ensure!(
        output.status.code() == Some(status),
        "{words:?}: {}: {printed}",
        output.status
    );
    Ok(printed)
}

fn json(context: &Context, words: &[&str]) -> Result<Value> {
    let words = [words, &["--json"]].concat();
    Ok(serde_json::from_str(&ctl(context, &words, 0)?)?)
}

/// Tests that added and removed rules lose no datagram of the other rules, and that queries report every change.
fn control(context: &Context, family: Family) -> Result<()> {
    let row = RelayRow::new(1)?;
    let at = |number| group(family, number);
    let (first, second) = (onward(at(1), at(2)), onward(at(3), at(4)));
    let absent = format!("absent {} -> right *:*", at(5));
    let at_tcp = SocketAddr::new(on_the_right(family, 0), 9100).to_string();
    let options = ["--control", SOCKET, "--metrics", &at_tcp, "--rule", &first];
    let mut relay = RunningRelay::start(context, row.relay(0), options)?;
    let kept = Receiver::new(row.receiver(), at(2))?;
    let other = Receiver::new(row.receiver(), at(4))?;
    let sender = Sender::new(row.sender(), at(1), 8)?;
    std::thread::scope(|scope| -> Result<()> {
        let changing = scope.spawn(|| {
            (0..10).try_for_each(|_| {
                ctl(context, &["add", &second, &absent], 0)?;
                ctl(context, &["remove", &format!("left {}", at(3)), &absent], 0).map(drop)
            })
        });
        let sending = scope.spawn(|| sender.send(0..10 * MANY, usual));
        let mut received = 0;
        while !sending.is_finished() {
            received += kept.count(usual)?;
        }
        joined(sending)?;
        joined(changing)?;
        received += kept.count(usual)?;
        // The receiver may be delayed for longer than its buffer lasts, which is not a loss of the relay.
        let missed = kept.missed()?;
        eprintln!("{received} received, {missed} missed");
        ensure!(
            received + missed == 10 * MANY,
            "{received} received and {missed} missed are not {}",
            10 * MANY
        );
        Ok(())
    })?;

    let printed = ctl(context, &["add", &second, &absent], 0)?;
    let wanted = format!("added {second}\nadded {absent} (waits: absent: no such interface)\n");
    ensure!(printed == wanted, "{printed}");
    let listed = ctl(context, &["list"], 0)?;
    let wanted = format!("{first}\n{second}\n{absent} (waits: absent: no such interface)\n");
    ensure!(listed == wanted, "{listed}");
    ensure!(
        json(context, &["list"])?["rules"][2]["waits"][0] == "absent: no such interface",
        "the reply does not contain what the relay waits for"
    );

    Sender::new(row.sender(), at(3), 8)?.send(0..MANY, usual)?;
    other.expect(0..MANY, usual)?;
    let stats = relay.stats()?;
    stats.add_up()?;
    stats.expect("/rules/0/outputs/0/sent", (10 * MANY).into())?;
    stats.expect("/rules/1/outputs/0/sent", MANY.into())?;
    let url = |at: &str| format!("http://{at}/metrics");
    let metrics = curl(&["--unix-socket", SOCKET, &url("pontoon")])?;
    lint::check(&metrics)?;
    let over_tcp = row.sender().enter(|| curl(&[&url(&at_tcp)]))?;
    ensure!(
        over_tcp.contains("pontoon_relay_received_datagrams_total"),
        "{over_tcp}"
    );
    for line in [
        format!("pontoon_relay_received_datagrams_total{{rule=\"{second}\"}} {MANY}"),
        format!(
            "pontoon_relay_sent_datagrams_total{{rule=\"{second}\",output=\"right {}\"}} {MANY}",
            at(4)
        ),
        format!(
            "pontoon_relay_worker_sent_datagrams_total{{worker=\"0\"}} {}",
            11 * MANY
        ),
        format!(
            "pontoon_relay_output_up{{rule=\"{second}\",output=\"right {}\"}} 1",
            at(4)
        ),
    ] {
        ensure!(
            metrics.lines().any(|other| other == line),
            "no {line} in\n{metrics}"
        );
    }

    let printed = ctl(context, &["remove", &second], 0)?;
    ensure!(printed == format!("removed {second}\n"), "{printed}");
    Sender::new(row.sender(), at(3), 8)?.send(0..10, usual)?;
    other.expect_silence()?;
    relay.signal(Signal::TERM)?;
    ensure!(relay.ended()?.success(), "the relay's exit status is not 0");
    ensure!(
        !std::path::Path::new(SOCKET).exists(),
        "the file of the control socket was not removed"
    );
    Ok(())
}

fn joined(thread: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread
        .join()
        .unwrap_or_else(|_| anyhow::bail!("a thread panicked"))
}

fn curl(arguments: &[&str]) -> Result<String> {
    output(Command::new("curl").args(["-sS", "--fail"]).args(arguments))
}

/// Tests the rates that the statistics contain for the rule, its output and the worker.
fn rates(context: &Context) -> Result<()> {
    let row = RelayRow::new(1)?;
    let (from, to) = (group(Family::V4, 1), group(Family::V4, 2));
    let options = ["--control", SOCKET, "--rule", &onward(from, to)];
    let _relay = RunningRelay::start(context, row.relay(0), options)?;
    let sender = Sender::new(row.sender(), from, 8)?;
    let (stats, text) = std::thread::scope(|scope| -> Result<_> {
        let sending = scope.spawn(|| -> Result<()> {
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(3) {
                sender.send(0..50, usual)?;
            }
            Ok(())
        });
        let seen = json(context, &["stats"]).and_then(|stats| Ok((stats, ctl(context, &["stats"], 0)?)));
        joined(sending)?;
        seen
    })?;
    for what in ["/rules/0", "/rules/0/outputs/0", "/workers/0"] {
        let of = stats.pointer(what).context("the statistics lack the entry")?;
        let rate = |name: &str| of["rate"][name].as_u64().unwrap_or_default();
        let (datagrams, bytes) = (rate("datagrams"), rate("bytes"));
        ensure!(datagrams > 100, "{what}: {datagrams} a second");
        // Both rates are rounded down.
        ensure!((bytes / 1400).abs_diff(datagrams) <= 1, "{what}: {of}");
    }
    let lines = text
        .lines()
        .filter(|line| line.contains("/s, ") && line.ends_with("Mbit/s)"));
    ensure!(lines.count() == 3, "{text}");
    Ok(())
}

/// Rules come and go, far more than fit a worker's socket, while it is stopped, and statistics are served at once. When it
/// continues, it applies all rules.
fn stopped(context: &Context) -> Result<()> {
    const RULES: u8 = 200;
    let row = RelayRow::new(1)?;
    let at = |number| group(Family::V4, number);
    let first = onward(at(1), at(2));
    let options = ["--control", SOCKET, "--rule", &first];
    let mut relay = RunningRelay::start(context, row.relay(0), options)?;
    let worker = worker(&mut relay)?;
    let rules: Vec<String> = (0..RULES)
        .map(|number| format!("left {} -> right *:*", input_of(number)))
        .collect();
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    kill_process(worker, Signal::STOP)?;
    for turn in rules.chunks(50) {
        ctl(context, &[&["add"], turn].concat(), 0)?;
    }
    ctl(context, &["remove", &first], 0)?;
    ctl(context, &[&["remove"], &rules[1..]].concat(), 0)?;
    ensure!(
        ctl(context, &["list"], 0)? == format!("{}\n", rules[0]),
        "the rules are others"
    );
    let mut http = HttpClient::connect(SOCKET)?;
    for _ in 0..3 {
        let stats: Value = serde_json::from_str(&http.get_at_once("/v1/relay/stats")?)?;
        ensure!(stats["workers"][0]["restarts"] == 0, "{stats}");
        let metrics = http.get_at_once("/metrics")?;
        ensure!(
            metrics.contains("pontoon_relay_worker_sent_datagrams_total"),
            "{metrics}"
        );
    }
    kill_process(worker, Signal::CONT)?;

    let [gone, left, removed] = [at(1), input_of(0), input_of(1)];
    let (silent, receiver) = (
        Receiver::new(row.receiver(), at(2))?,
        Receiver::new(row.receiver(), left)?,
    );
    for to in [gone, removed, left] {
        Sender::new(row.sender(), to, 8)?.send(0..100, usual)?;
    }
    // Other groups use the same port and interface; the receiver gets only the group that it has joined.
    receiver.expect(0..100, usual)?;
    silent.expect_silence()?;
    let stats = relay.stats()?;
    stats.add_up()?;
    stats.expect("/rules/0/outputs/0/sent", 100)?;
    stats.expect("/workers/0/restarts", 0)
}

/// Tests that a worker that is stopped during its start delays neither the restart of another worker nor queries, and
/// loses no datagram.
fn stopped_at_start(context: &Context) -> Result<()> {
    const FLOWS: u32 = 16;
    let row = RelayRow::new(1)?;
    let (from, to) = (group(Family::V4, 1), group(Family::V4, 2));
    let rule = onward(from, to);
    let options = ["--control", SOCKET, "--workers", "2", "--rule", &rule];
    let mut relay = RunningRelay::start(context, row.relay(0), options)?;
    let receiver = Receiver::new(row.receiver(), to)?;
    let starting = stop_starting_worker(&mut relay)?;
    let other = pid_of(&relay.stats()?, 1)?;
    kill_process(other, Signal::KILL)?;
    let restart = Stopwatch::start();
    relay.stats_when("the other has a successor", |stats| {
        pid_of(stats, 1).is_ok_and(|pid| pid != other)
    })?;
    ensure!(
        ctl(context, &["list"], 0)? == format!("{rule}\n"),
        "the rules are others"
    );
    for number in 0..FLOWS {
        Sender::new(row.sender(), from, 8)?.send(number..number + 1, usual)?;
    }
    // Datagrams of flows that belong to the running worker.
    ensure!(
        receiver.next(Duration::from_secs(5))?.is_some(),
        "nothing comes while one is stopped"
    );
    restart.within(Duration::from_secs(5), Duration::from_secs(20))?;
    let stats = relay.stats()?;
    stats.expect("/workers/0/restarts", u64::from(starting.restarts))?;
    stats.expect("/workers/1/restarts", 1)?;

    kill_process(starting.pid, Signal::CONT)?;
    let stats = relay.stats_when("what has waited is sent", |stats| {
        stats.number("/rules/0/outputs/0/sent") == u64::from(FLOWS)
    })?;
    stats.add_up()?;
    stats.expect("/workers/0/restarts", starting.restarts.into())
}

/// A worker that was stopped before it has entered its sandbox.
struct StartingWorker {
    pid: Pid,
    restarts: u32,
}

/// Kills workers until a successor could be stopped before it has entered its sandbox. Returns that successor.
fn stop_starting_worker(relay: &mut RunningRelay) -> Result<StartingWorker> {
    const TRIES: u32 = 50;
    for restarts in 1..=TRIES {
        // A worker that has run for less than 50 ms would be restarted after a back-off.
        std::thread::sleep(Duration::from_millis(60));
        let old = relay.children()?;
        kill_process(worker(relay)?, Signal::KILL)?;
        let pid = loop {
            if let Some(new) = relay.children()?.into_iter().find(|pid| !old.contains(pid)) {
                break new;
            }
        };
        let new = Pid::from_raw(pid.cast_signed()).context("no process")?;
        kill_process(new, Signal::STOP)?;
        let status = || Ok(std::fs::read_to_string(format!("/proc/{pid}/status"))?);
        wait_until("the worker is stopped", Duration::from_secs(5), || {
            status().map(|status| status.contains("\nState:\tT"))
        })?;
        if status()?.contains("\nSeccomp:\t0\n") {
            return Ok(StartingWorker { pid: new, restarts });
        }
        kill_process(new, Signal::CONT)?;
    }
    bail!("{TRIES} workers have entered their sandbox before the signal")
}

fn pid_of(stats: &RelayStats, worker: usize) -> Result<Pid> {
    let pid = stats.number(&format!("/workers/{worker}/pid"));
    Pid::from_raw(i32::try_from(pid)?).context("there is no worker")
}

/// Tests a thousand rules of which a hundred are removed and a hundred added each second: the others lose no
/// datagram.
fn churn(context: &Context) -> Result<()> {
    const RULES: u16 = 1000;
    const FLOWS: u16 = 5;
    const TURNS: u16 = 20;
    const EACH: u16 = 10;
    const TURN: Duration = Duration::from_millis(100);
    let row = RelayRow::new(1)?;
    let flow = |number: u16| (group(Family::V4, number), group(Family::V4, 100 + number));
    let other = |number: u16| format!("left 239.2.{}.{}:7000 -> right *:*", number / 250, number % 250);
    let kept = (0..FLOWS).map(flow).map(|(from, to)| onward(from, to));
    reload::write(&kept.chain((FLOWS..RULES).map(other)).collect::<Vec<_>>())?;
    let options = ["--control", SOCKET, "--config", reload::FILE];
    let mut relay = RunningRelay::start(context, row.relay(0), options)?;
    let flows = (0..FLOWS)
        .map(|number| {
            let (from, to) = flow(number);
            let sender = Sender::new(row.sender(), from, 8)?;
            Ok((sender, Receiver::new(row.receiver(), to)?))
        })
        .collect::<Result<Vec<_>>>()?;
    let turn = |turn: u16| {
        let first = FLOWS + turn * EACH;
        let gone: Vec<String> = (first..first + EACH).map(other).collect();
        let come: Vec<String> = (first..first + EACH)
            .map(|number| other(RULES + number))
            .collect();
        for (what, rules) in [("remove", gone), ("add", come)] {
            let rules = rules.iter().map(String::as_str);
            ctl(context, &[what].into_iter().chain(rules).collect::<Vec<_>>(), 0)?;
        }
        Ok(())
    };
    let done = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| -> Result<u32> {
        let changing = scope.spawn(|| -> Result<()> {
            let (begin, stopwatch) = (Instant::now(), Stopwatch::start());
            let result = (0..TURNS).try_for_each(|number| {
                // Changes at a constant rate.
                std::thread::sleep((begin + TURN * number.into()).saturating_duration_since(Instant::now()));
                turn(number)
            });
            done.store(true, Ordering::Relaxed);
            let time = TURN * TURNS.into();
            let took = stopwatch.within(2 * time, 10 * time)?;
            eprintln!("{} rules added and removed in {took:?}", TURNS * EACH);
            result
        });
        let (mut begin, mut passed) = (0, Ok(()));
        while passed.is_ok() && !done.load(Ordering::Relaxed) {
            let numbers = begin..begin + 100;
            passed = flows
                .iter()
                .try_for_each(|(sender, _)| sender.send(numbers.clone(), usual));
            let received = || {
                flows
                    .iter()
                    .try_for_each(|(_, receiver)| receiver.take(numbers.clone(), usual))
            };
            passed = passed.and_then(|()| received());
            begin = numbers.end;
        }
        joined(changing)?;
        passed.map(|()| begin)
    })?;
    eprintln!("{sent} of each flow");
    let stats = relay.stats()?;
    stats.add_up()?;
    for number in 0..FLOWS {
        stats.expect(&format!("/rules/{number}/outputs/0/sent"), sent.into())?;
    }
    ensure!(
        !stats.text("/rules/999/rule").is_empty() && stats.text("/rules/1000/rule").is_empty(),
        "there are not as many rules as before"
    );
    stats.expect("/interfaces/0/kernel_dropped", 0)?;
    stats.expect("/workers/0/restarts", 0)
}

/// Returns the input of rule `number`.
fn input_of(number: u8) -> SocketAddr {
    SocketAddr::from(([239, 2, 0, number], 7000))
}

/// Tests that a batch of rules with an error changes nothing, and that an existing rule may be added again.
fn refuses(context: &Context) -> Result<()> {
    let row = RelayRow::new(1)?;
    let at = |number| group(Family::V4, number);
    let first = onward(at(1), at(2));
    let options = ["--control", SOCKET, "--rule", &first];
    let mut relay = RunningRelay::start(context, row.relay(0), options)?;
    let good = onward(at(3), at(4));
    ensure!(
        ctl(context, &["add", &first], 0)?.is_empty(),
        "it was there already"
    );
    for (words, status, wanted) in [
        (["add", &good, &onward(at(1), at(6))], 1, "is in another rule"),
        (
            ["add", &good, "left 239.1.1.1 -> right *:*"],
            2,
            "invalid endpoint",
        ),
        (["remove", &first, &onward(at(7), at(8))], 1, "no rule for"),
        (["remove", &first, "left 239.1.1.1"], 1, "invalid endpoint"),
    ] {
        let printed = ctl(context, &words, status)?;
        ensure!(printed.contains(wanted), "{words:?}: {printed}");
        ensure!(
            ctl(context, &["list"], 0)? == format!("{first}\n"),
            "{words:?}: it changed"
        );
    }
    relay.stats()?.expect("/workers/0/restarts", 0)
}
