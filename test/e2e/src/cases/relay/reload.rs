//! Cases about rules that are reloaded from a file while others forward.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;

use super::traffic::{Receiver, Sender};
use super::world::{RelayRow, RunningRelay};
use super::{MANY, group, onward, usual};
use crate::case::{Case, Context, Family};

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("relay.reload", 30, reload),
        Case::new("relay.reload-does-not-affect-other-rules", 60, changes).alone(),
    ]
}

/// Path of the file of rules.
pub(super) const FILE: &str = "/mnt/relay.toml";

/// Replaces the file of relay rules by these rules.
pub(super) fn write(rules: &[String]) -> Result<()> {
    let rules: Vec<String> = rules.iter().map(|rule| format!("  \"{rule}\",\n")).collect();
    // The new file is renamed over the old one, so that the relay never reads a part of it.
    std::fs::write("/mnt/new", format!("rules = [\n{}]\n", rules.concat()))?;
    Ok(std::fs::rename("/mnt/new", FILE)?)
}

fn reload(context: &Context) -> Result<()> {
    let row = RelayRow::new(1)?;
    let at = |number| group(Family::V4, number);
    write(&[onward(at(1), at(2)), onward(at(3), at(4))])?;
    let mut relay = RunningRelay::start(context, row.relay(0), ["--config", FILE])?;
    let (kept, changed) = (
        Sender::new(row.sender(), at(1), 8)?,
        Sender::new(row.sender(), at(3), 8)?,
    );
    let [second, fourth, sixth] = [2, 4, 6].map(|number| Receiver::new(row.receiver(), at(number)));
    let (second, fourth, sixth) = (second?, fourth?, sixth?);
    kept.send(0..100, usual)?;
    changed.send(0..100, usual)?;
    second.expect(0..100, usual)?;
    fourth.expect(0..100, usual)?;

    // The second rule changes its output; the first is unchanged and keeps its counters.
    write(&[onward(at(1), at(2)), onward(at(3), at(6)), onward(at(5), at(6))])?;
    relay.signal(Signal::HUP)?;
    relay.stats_when("there are three rules", |stats| {
        !stats.text("/rules/2/rule").is_empty()
    })?;
    relay.wait_until_idle()?;
    changed.send(0..100, usual)?;
    sixth.expect(0..100, usual)?;
    fourth.expect_silence()?;
    let stats = relay.stats()?;
    stats.expect("/rules/0/datagrams", 100)?;
    stats.expect("/rules/1/datagrams", 100)?;

    // A file with an error changes nothing.
    std::fs::write(FILE, "rules = [\n  \"left 239.1.1.1 -> right\",\n]\n")?;
    relay.signal(Signal::HUP)?;
    relay.wait_until_idle()?;
    ensure!(
        !relay.stats()?.text("/rules/2/rule").is_empty(),
        "the rules are gone"
    );
    kept.send(0..100, usual)?;
    second.expect(0..100, usual)?;
    relay.stats()?.expect("/rules/0/datagrams", 200)
}

/// Tests a thousand rules of which a hundred are removed and added by reloads, while another rule loses no datagram.
fn changes(context: &Context) -> Result<()> {
    const RULES: u16 = 1000;
    let row = RelayRow::new(1)?;
    let other = |number: u16| {
        format!(
            "left 239.2.{}.{}:7000 -> right 239.3.{}.{0}:7000",
            number / 250,
            number % 250,
            number % 7
        )
    };
    let rules = |turn: u16| {
        let mut rules = vec![onward(group(Family::V4, 1), group(Family::V4, 2))];
        rules.extend((0..RULES).filter(|number| number % 10 != turn).map(other));
        rules
    };
    write(&rules(0))?;
    let mut relay = RunningRelay::start(context, row.relay(0), ["--config", FILE])?;
    let receiver = Receiver::new(row.receiver(), group(Family::V4, 2))?;
    let sender = Sender::new(row.sender(), group(Family::V4, 1), 8)?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let changing = scope.spawn(|| -> Result<u16> {
            let mut turns = 0;
            while !done.load(Ordering::Relaxed) {
                turns += 1;
                write(&rules(turns % 10))?;
                relay.signal(Signal::HUP)?;
                // Interval of the reloads, so that datagrams are sent between them.
                std::thread::sleep(Duration::from_millis(200));
            }
            Ok(turns)
        });
        let passed = (0..20 * MANY).step_by(1000).try_for_each(|begin| {
            sender.send(begin..begin + 1000, |_| 200)?;
            receiver.take(begin..begin + 1000, |_| 200)
        });
        done.store(true, Ordering::Relaxed);
        let turns = changing
            .join()
            .unwrap_or_else(|_| anyhow::bail!("a thread panicked"))?;
        eprintln!("{turns} turns");
        passed?;
        receiver.expect_silence()?;
        ensure!(turns >= 3, "the rules were reloaded only {turns} times");
        Ok(())
    })?;
    ensure!(Path::new(FILE).exists());
    let stats = relay.stats()?;
    stats.expect("/rules/0/datagrams", u64::from(20 * MANY))?;
    stats.expect("/workers/0/restarts", 0)
}
