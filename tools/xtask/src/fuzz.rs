//! `cargo xtask fuzz`: runs every fuzz target for its share of the time, and prints the number of executions and the
//! coverage.
//!
//! A target starts with the committed corpus and with the inputs of earlier runs in `target/fuzz`. New inputs are
//! written to `target/fuzz` only, so that the committed corpus stays small.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::rustup::nightly;
use crate::{step, workspace};

pub(crate) const USAGE: &str = "cargo xtask fuzz --minutes N [TARGET...]";

/// Time limit of a build. The first one compiles all dependencies with the sanitizer.
const BUILD: Duration = Duration::from_secs(20 * 60);

/// Additional time limit of libFuzzer, for reading the corpus and for the last input.
const GRACE: Duration = Duration::from_secs(120);

/// libFuzzer's option for the longest input in bytes, which is a script of a few hundred steps.
const LONGEST: &str = "-max_len=4096";

/// libFuzzer's option for the time in seconds after which an input counts as a hang.
const INPUT_TIMEOUT: &str = "-timeout=60";

/// Runs the fuzz targets. Returns true if none failed.
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

/// Returns the command that runs a target for `time`. It writes new inputs to `target/fuzz`.
pub(crate) fn command(target: &str, time: Duration) -> Result<Command> {
    let committed = committed(target);
    let gathered = gathered(target)?;
    let seconds = format!("-max_total_time={}", time.as_secs());
    let corpora = [path(&gathered)?, path(&committed)?];
    let limits = ["--", &seconds, LONGEST, INPUT_TIMEOUT, "-print_final_stats=1"];
    Ok(cargo_fuzz(
        "run",
        &[&[target], &corpora[..], &limits[..]].concat(),
    ))
}

/// Runs one target. Returns true if it has found no failure, and a summary line.
fn fuzz(target: &str, time: Duration) -> Result<(bool, String)> {
    let mut seen = FuzzStatistics::default();
    let survived = step::errors(
        &format!("fuzz: {target}"),
        command(target, time)?,
        time + GRACE,
        |line| seen.note(line),
    )?;
    let inputs = std::fs::read_dir(gathered(target)?)?.count();
    let verdict = if survived {
        "sound"
    } else {
        "FAILED, see tools/fuzz/artifacts"
    };
    let line = format!(
        "{target}: {verdict}, {} s, {} executions, {} edges, {} features, {inputs} inputs in target/fuzz",
        time.as_secs(),
        seen.executions,
        seen.edges,
        seen.features
    );
    Ok((survived, line))
}

/// The most recent statistics that libFuzzer has printed.
#[derive(Debug, Default, PartialEq, Eq)]
struct FuzzStatistics {
    executions: u64,
    edges: u64,
    features: u64,
}

impl FuzzStatistics {
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

/// Returns the names of the targets, which are the files in `tools/fuzz/fuzz_targets`.
pub(crate) fn targets() -> Result<Vec<String>> {
    let directory = workspace().join("tools/fuzz/fuzz_targets");
    let files =
        std::fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut names = files
        .map(|file| Ok(file?.path().file_stem().map(|name| name.display().to_string())))
        .collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names.into_iter().flatten().collect())
}

pub(crate) fn committed(target: &str) -> PathBuf {
    workspace().join("tools/fuzz/corpus").join(target)
}

pub(crate) fn gathered(target: &str) -> Result<PathBuf> {
    let directory = workspace().join("target/fuzz").join(target);
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    Ok(directory)
}

pub(crate) fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is not UTF-8")
}

/// Returns true if cargo-fuzz is installed.
pub(crate) fn installed() -> bool {
    step::succeeds(&mut nightly(&["fuzz", "--version"]))
}

/// Returns the command of a subcommand of cargo-fuzz for the targets in `tools/fuzz`.
pub(crate) fn cargo_fuzz(subcommand: &str, arguments: &[&str]) -> Command {
    nightly(&[&["fuzz", subcommand, "--fuzz-dir", "tools/fuzz"], arguments].concat())
}

#[cfg(test)]
mod tests {
    use super::FuzzStatistics;

    #[test]
    fn last_statistics_of_libfuzzer_are_kept() {
        let mut seen = FuzzStatistics::default();
        seen.note("#2097152\tpulse  cov: 2011 ft: 9431 corp: 900/99Kb lim: 4096 exec/s: 34952 rss: 486Mb");
        seen.note("stat::number_of_executed_units: 3000000");
        seen.note("cov: nonsense");
        let expected = FuzzStatistics {
            executions: 3_000_000,
            edges: 2011,
            features: 9431,
        };
        assert_eq!(seen, expected);
    }
}
