//! `cargo xtask simulate`: simulates worlds with a range of seeds, optimised, in portions.
//!
//! After each portion it prints the command that continues there. Assertions and overflow checks are enabled.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{cargo, step};

pub(crate) const USAGE: &str = "cargo xtask simulate --from N --count M";

/// Number of seeds in one portion. Each is run with one worker and with several.
const PIECE: u64 = 10_000;

/// Time limit of a portion, which takes some seconds, and of the build before it.
const LIMIT: Duration = Duration::from_secs(30 * 60);

/// Simulates worlds with the given seeds. Returns true if none failed.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ["--from", from, "--count", count] = words[..] else {
        bail!("usage: {USAGE}");
    };
    let number = |text: &str| {
        text.parse::<u64>()
            .with_context(|| format!("invalid number '{text}'"))
    };
    let from = number(from)?;
    let end = from.checked_add(number(count)?).context("seeds are 64 bits")?;
    let begin = Instant::now();
    let mut first = from;
    while first < end {
        let piece = PIECE.min(end - first);
        let mut command = cargo(&[
            "test",
            "--profile",
            "simulate",
            "--package",
            "pontoon-simnet",
            "--test",
            "simulation",
            "many_seeds",
            "--",
            "--nocapture",
        ]);
        command
            .env("PONTOON_FIRST_SEED", first.to_string())
            .env("PONTOON_SEEDS", piece.to_string());
        if !step::run(
            &format!("seeds {first} to {}", first + piece - 1),
            &mut command,
            LIMIT,
        )? {
            return Ok(false);
        }
        first += piece;
        writeln!(
            std::io::stdout(),
            "{} of {} seeds sound in {} s; go on by: cargo xtask simulate --from {first} --count {}",
            first - from,
            end - from,
            begin.elapsed().as_secs(),
            end - first
        )?;
    }
    Ok(true)
}
