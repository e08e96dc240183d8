//! `cargo xtask fuzz`: every target for its share of the time, and what that came to.
//!
//! A target begins with the corpus that is committed and with what earlier runs left in `target/fuzz`, which is where it
//! adds; afterwards what reaches new code goes into the committed corpus.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::rustup::nightly;
use crate::{step, workspace};

pub(crate) const USAGE: &str = "cargo xtask fuzz --minutes N [TARGET...]";

/// The first build is one of everything, with the sanitizer.
const BUILD: Duration = Duration::from_secs(20 * 60);

/// What libFuzzer may take beyond its time: reading the corpus, and the unit at hand.
const GRACE: Duration = Duration::from_secs(120);

/// Longest input, in bytes: scripts of a few hundred steps.
const LONGEST: &str = "-max_len=4096";

/// Seconds that one input may take: it is a hang otherwise.
const PATIENCE: &str = "-timeout=60";

/// Runs the targets; returns true if none failed.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ["--minutes", minutes, wanted @ ..] = &words[..] else {
        bail!("usage: {USAGE}");
    };
    let minutes: u64 = minutes.parse().with_context(|| format!("--minutes {minutes}"))?;
    let all = targets()?;
    if let Some(unknown) = wanted
        .iter()
        .find(|name| !all.iter().any(|target| target == *name))
    {
        bail!("no fuzz target {unknown} (try: {})", all.join(", "));
    }
    let chosen: Vec<&String> = all
        .iter()
        .filter(|target| wanted.is_empty() || wanted.contains(&target.as_str()))
        .collect();
    let share = Duration::from_secs(minutes * 60 / chosen.len() as u64);
    if !step::run("fuzz: build", &mut cargo_fuzz("build", &[]), BUILD)? {
        bail!("the fuzz targets do not build (try: cargo install --locked cargo-fuzz)");
    }
    let mut sound = true;
    let mut lines = Vec::new();
    for target in chosen {
        let (survived, summary) = fuzz(target, share)?;
        sound &= survived;
        lines.push(summary);
    }
    for line in lines {
        writeln!(std::io::stdout(), "{line}")?;
    }
    Ok(sound)
}

/// A target with the committed corpus, for so long; what it finds goes to `target/fuzz`.
pub(crate) fn command(target: &str, time: Duration) -> Result<Command> {
    let committed = committed(target);
    let gathered = gathered(target)?;
    let seconds = format!("-max_total_time={}", time.as_secs());
    let corpora = [path(&gathered)?, path(&committed)?];
    let limits = ["--", &seconds, LONGEST, PATIENCE, "-print_final_stats=1"];
    Ok(cargo_fuzz(
        "run",
        &[&[target], &corpora[..], &limits[..]].concat(),
    ))
}

/// Runs one target. Whether it found nothing, and a line that says how much it tried.
fn fuzz(target: &str, time: Duration) -> Result<(bool, String)> {
    let mut seen = Seen::default();
    let survived = step::errors(
        &format!("fuzz: {target}"),
        command(target, time)?,
        time + GRACE,
        |line| seen.note(line),
    )?;
    let (committed, gathered) = (committed(target), gathered(target)?);
    if survived {
        let (committed, gathered) = (path(&committed)?, path(&gathered)?);
        let merge = [target, committed, gathered, "--", "-merge=1", LONGEST];
        step::run(
            &format!("fuzz: keep the corpus of {target}"),
            &mut cargo_fuzz("run", &merge),
            BUILD,
        )?;
    }
    let inputs = std::fs::read_dir(committed)?.count();
    let verdict = if survived {
        "sound"
    } else {
        "FAILED, see tools/fuzz/artifacts"
    };
    let line = format!(
        "{target}: {verdict}, {} s, {} executions, {} edges, {} features, {inputs} inputs",
        time.as_secs(),
        seen.executions,
        seen.edges,
        seen.features
    );
    Ok((survived, line))
}

/// What libFuzzer said last.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    executions: u64,
    edges: u64,
    features: u64,
}

impl Seen {
    fn note(&mut self, line: &str) {
        let mut words = line.split_whitespace();
        while let Some(word) = words.next() {
            let field = match word {
                "stat::number_of_executed_units:" => &mut self.executions,
                "cov:" => &mut self.edges,
                "ft:" => &mut self.features,
                _ => continue,
            };
            if let Some(value) = words.next().and_then(|value| value.parse().ok()) {
                *field = value;
            }
        }
    }
}

/// Names of the targets: a file each.
fn targets() -> Result<Vec<String>> {
    let directory = workspace().join("tools/fuzz/fuzz_targets");
    let files =
        std::fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut names = files
        .map(|file| Ok(file?.path().file_stem().map(|name| name.display().to_string())))
        .collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names.into_iter().flatten().collect())
}

fn committed(target: &str) -> PathBuf {
    workspace().join("tools/fuzz/corpus").join(target)
}

fn gathered(target: &str) -> Result<PathBuf> {
    let directory = workspace().join("target/fuzz").join(target);
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    Ok(directory)
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is not UTF-8")
}

/// Returns whether cargo-fuzz is installed.
pub(crate) fn installed() -> bool {
    step::succeeds(&mut nightly(&["fuzz", "--version"]))
}

/// A subcommand of cargo-fuzz on the targets in `tools/fuzz`.
pub(crate) fn cargo_fuzz(subcommand: &str, arguments: &[&str]) -> Command {
    nightly(&[&["fuzz", subcommand, "--fuzz-dir", "tools/fuzz"], arguments].concat())
}

#[cfg(test)]
mod tests {
    use super::Seen;

    #[test]
    fn reads_what_libfuzzer_says() {
        let mut seen = Seen::default();
        seen.note("#2097152\tpulse  cov: 2011 ft: 9431 corp: 900/99Kb lim: 4096 exec/s: 34952 rss: 486Mb");
        seen.note("stat::number_of_executed_units: 3000000");
        seen.note("cov: nonsense");
        let expected = Seen {
            executions: 3_000_000,
            edges: 2011,
            features: 9431,
        };
        assert_eq!(seen, expected);
    }
}
