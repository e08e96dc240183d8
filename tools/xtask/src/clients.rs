//! `cargo xtask clients`: runs programs that start slirp4netns, pasta or passt, and their own tests, with the original and with
//! Pontoon's program in its place, and compares the results check by check.
//!
//! Each case runs on a host of its own (`clients/host.sh`): network, mount and PID namespaces with one neighbour. The
//! clients run as an unprivileged user. At the end of each case, a check fails if a process, device, socket or
//! namespace is left. Programs are downloaded and built once, below `target/clients`.

mod bench;
mod cases;
mod known;
mod machine;
mod passt;
mod podman;
mod programs;
mod results;
mod table;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::clients::cases::{Case, Client};
use crate::clients::programs::Programs;
use crate::clients::results::Results;
use crate::clients::table::{Comparison, print};
use crate::setup::{self, USER};
use crate::{packages, step, target};

pub(crate) const USAGE: &str =
    "cargo xtask clients [--list | --bench] [--original PATH] [--ours PATH] [FILTER...]";

/// Scripts of the cases and the documents that they read, by file name.
const SCRIPTS: &[(&str, &str)] = &[
    ("host.sh", include_str!("clients/host.sh")),
    ("lib.sh", include_str!("clients/lib.sh")),
    ("bench.sh", include_str!("clients/bench.sh")),
    ("buildah.sh", include_str!("clients/buildah.sh")),
    (
        "containers.md",
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/containers.md")),
    ),
    ("docker.sh", include_str!("clients/docker.sh")),
    ("host-machine.sh", include_str!("clients/host-machine.sh")),
    ("host-passt.sh", include_str!("clients/host-passt.sh")),
    ("host-podman.sh", include_str!("clients/host-podman.sh")),
    ("host-reach.sh", include_str!("clients/host-reach.sh")),
    ("libvirt.sh", include_str!("clients/libvirt.sh")),
    ("machine.sh", include_str!("clients/machine.sh")),
    ("machine-checks.sh", include_str!("clients/machine-checks.sh")),
    ("machine-init.sh", include_str!("clients/machine-init.sh")),
    ("machine-lease.sh", include_str!("clients/machine-lease.sh")),
    ("machine-lease6.sh", include_str!("clients/machine-lease6.sh")),
    ("memory.sh", include_str!("clients/memory.sh")),
    ("passt.sh", include_str!("clients/passt.sh")),
    ("passt-guest.sh", include_str!("clients/passt-guest.sh")),
    ("passt-guest-init.sh", include_str!("clients/passt-guest-init.sh")),
    ("passt-run.sh", include_str!("clients/passt-run.sh")),
    ("passt-tcp-crr.pl", include_str!("clients/passt-tcp-crr.pl")),
    ("podman.sh", include_str!("clients/podman.sh")),
    ("podman-bats.sh", include_str!("clients/podman-bats.sh")),
    ("podman-bench.sh", include_str!("clients/podman-bench.sh")),
    ("podman-many.sh", include_str!("clients/podman-many.sh")),
    ("podman-reach.sh", include_str!("clients/podman-reach.sh")),
    ("qemu.sh", include_str!("clients/qemu.sh")),
    ("reach-probe.sh", include_str!("clients/reach-probe.sh")),
    ("rootlesskit.sh", include_str!("clients/rootlesskit.sh")),
    ("slirp4netns.sh", include_str!("clients/slirp4netns.sh")),
];

/// Arguments of the command line.
#[derive(Default)]
struct Arguments {
    list: bool,
    bench: bool,
    original: Option<PathBuf>,
    ours: Option<PathBuf>,
    filters: Vec<String>,
}

/// Runs the cases whose names contain one of the filters in `arguments`. Returns false if a check that is not a known
/// difference is worse with Pontoon's program than with the original.
///
/// # Errors
///
/// Without root, or if a program cannot be installed, downloaded or built.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let arguments = parse(arguments)?;
    let chosen: Vec<&Case> = cases::CASES
        .iter()
        .filter(|case| {
            let filters = &arguments.filters;
            filters.is_empty() || filters.iter().any(|filter| case.to_string().contains(filter))
        })
        .collect();
    if arguments.list {
        for case in chosen {
            writeln!(std::io::stdout(), "{case}")?;
        }
        return Ok(true);
    }
    ensure!(!chosen.is_empty(), "no case has such a name (try: --list)");
    ensure!(
        rustix::process::geteuid().is_root(),
        "the cases make hosts of their own, which needs root (try: sudo cargo xtask clients)"
    );
    let ours = arguments
        .ours
        .clone()
        .unwrap_or_else(|| target().join("release/pontoon"));
    let ours = program(&ours, "--ours")?;
    let original = arguments.original.as_deref();
    let original = original.map(|path| program(path, "--original")).transpose()?;
    let home = setup::home_of_user()?;
    packages::install(programs::NEEDED)?;
    let clients: Vec<Client> = chosen.iter().map(|case| case.client).collect();
    let programs = Programs::install(&target().join("clients"), &clients)?;
    let host = Host::create(programs, home)?;
    if arguments.bench {
        return bench::run(&host, &ours, &arguments.filters);
    }
    let mut comparisons = Vec::new();
    for case in chosen {
        let originals = host.programs.originals(case.client, original.as_deref());
        comparisons.push(Comparison {
            case,
            version: host.programs.version(case.client),
            original: host.run(case, "original", &originals)?,
            ours: host.run(case, "ours", &links(case.client, &ours))?,
        });
    }
    print(&comparisons)
}

/// Returns the programs that a client executes, all of which are `program`.
fn links(client: Client, program: &Path) -> Vec<Link> {
    let link = |name: &&'static str| (*name, program.to_path_buf());
    client.links().iter().map(link).collect()
}

fn program(path: &Path, option: &str) -> Result<PathBuf> {
    path.canonicalize()
        .with_context(|| format!("cannot find {} (try: {option} PATH)", path.display()))
}

/// Returns lines of name, `=` and path.
fn lines(links: &[Link]) -> String {
    let line = |(name, program): &Link| format!("{name}={}", program.display());
    links.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn parse(arguments: &[String]) -> Result<Arguments> {
    let mut parsed = Arguments::default();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--list" => parsed.list = true,
            "--bench" => parsed.bench = true,
            "--original" => parsed.original = Some(arguments.next().context("--original: no path")?.into()),
            "--ours" => parsed.ours = Some(arguments.next().context("--ours: no path")?.into()),
            option if option.starts_with('-') => bail!("unknown option {option}\nusage: {USAGE}"),
            filter => parsed.filters.push(filter.to_owned()),
        }
    }
    Ok(parsed)
}

/// A name by which a client executes a program, and the program.
type Link = (&'static str, PathBuf);

/// The programs and scripts of all cases.
struct Host {
    programs: Programs,
    /// The directory of the scripts.
    scripts: PathBuf,
    /// The directory that contains a directory of results for each case and program.
    results: PathBuf,
    /// The home directory of the unprivileged user.
    home: String,
}

impl Host {
    fn create(programs: Programs, home: String) -> Result<Self> {
        let scripts = programs.directory.join("scripts");
        fs::create_dir_all(&scripts).with_context(|| format!("cannot create {}", scripts.display()))?;
        for (name, text) in SCRIPTS {
            fs::write(scripts.join(name), text)?;
        }
        let results = programs.directory.join("results");
        Ok(Self {
            programs,
            scripts,
            results,
            home,
        })
    }

    /// Runs a case with the programs `links`. `column` is their name in the table.
    fn run(&self, case: &Case, column: &str, links: &[Link]) -> Result<Results> {
        Ok(self.run_with(case, column, links, &[])?.0)
    }

    /// Same as [`Self::run`], with additional variables `NAME=VALUE` for the case. Also returns the output of the case.
    fn run_with(
        &self,
        case: &Case,
        column: &str,
        links: &[Link],
        variables: &[String],
    ) -> Result<(Results, String)> {
        let name = format!("{case}, {column}");
        let directory = self.results.join(case.to_string()).join(column);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory)?;
        let log = fs::File::create(directory.join("log"))?;
        let mut command = Command::new("unshare");
        command
            .args([
                "--net",
                "--mount",
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "bash",
            ])
            .arg(self.scripts.join("host.sh"))
            .arg(&self.scripts)
            .arg(&self.programs.directory)
            .arg(&directory)
            .args([case.library, case.function])
            .args(self.programs.variables(case.client))
            .args(variables)
            .env("CLIENTS_USER", USER)
            .env("CLIENTS_HOME", &self.home)
            .env("CLIENTS_LINKS", lines(links))
            .env("PATH", packages::PATH)
            .stdout(log.try_clone()?)
            .stderr(log);
        let ended = step::run(&name, &mut command, Duration::from_secs(case.deadline))?;
        let text = fs::read_to_string(directory.join("checks")).unwrap_or_default();
        let mut results = Results::parse(&text);
        if !ended {
            let reason = format!("see {}", directory.join("log").display());
            results.fail("ends-before-its-deadline", &reason);
        }
        Ok((results, text))
    }
}
