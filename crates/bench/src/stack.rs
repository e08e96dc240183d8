//! Stacks: ways out of a namespace or a machine. One file and one line in [`KINDS`] each.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::geteuid;

use crate::host::Host;
use crate::schema::{self, Role};

mod backend;
mod direct;
mod machine;
mod native;
mod pasta;
mod pontoon;
mod qemu;
mod qemu_libslirp;
mod slirp4netns;
mod veth;

/// Every kind, in the order in which they take their turns.
const KINDS: &[Kind] = &[
    direct::KIND,
    veth::KIND,
    pontoon::KIND,
    pasta::KIND,
    slirp4netns::KIND,
    native::PONTOON_DRIVER,
    native::PASST_DRIVER,
    native::PONTOON_BARE_DRIVER,
    native::PASST_BARE_DRIVER,
    native::PONTOON_STREAM,
    native::PASST_STREAM,
    native::PONTOON_LOSSY_STREAM,
    native::PASST_LOSSY_STREAM,
    qemu::PONTOON_STREAM,
    qemu::PASST_STREAM,
    qemu::PONTOON_VHOST_USER,
    qemu::PASST_VHOST_USER,
    qemu_libslirp::KIND,
];

/// The user that stacks run as where root runs the harness, as they are made for users without privileges.
const NOBODY: u32 = 65534;

/// A kind of stack.
struct Kind {
    name: &'static str,
    role: Role,
    /// It takes part without being named.
    usual: bool,
    find: fn(&Wanted) -> Result<Found>,
}

impl Kind {
    /// One that has nothing to do with those that `run` would meet: it takes part by its name only.
    const fn by_name(name: &'static str, role: Role, find: fn(&Wanted) -> Result<Found>) -> Self {
        Self {
            name,
            role,
            usual: false,
            find,
        }
    }
}

/// A stack that somebody asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Begins with its kind's name.
    pub(crate) name: String,
    /// The program; none looks where its kind is usually found.
    pub(crate) program: Option<PathBuf>,
    /// More arguments for it.
    pub(crate) flags: Vec<String>,
}

/// One that is there.
struct Found {
    version: String,
    stack: Box<dyn Stack>,
}

/// What can be measured.
pub(crate) trait Stack {
    /// Addresses, as its guest has them.
    fn place(&self) -> Place;

    /// Starts `program` inside it, with pipes on standard input, output and error.
    ///
    /// # Errors
    /// It cannot be started.
    fn start(&self, host: &Host, wish: &Wish, program: &[OsString]) -> Result<Started>;

    /// How it is started, for people.
    fn command(&self) -> String;

    /// How long it may take until a program inside begins, beyond what is usual.
    fn boot(&self) -> Duration {
        Duration::ZERO
    }
}

/// Where things are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The host's servers.
    pub(crate) server: IpAddr,
    /// Somebody who answers names.
    pub(crate) resolver: IpAddr,
    /// Where the host finds what the guest publishes.
    pub(crate) published: IpAddr,
}

/// How a measurement wants its network.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wish {
    /// None is the stack's best.
    pub(crate) mtu: Option<u16>,
    /// A TCP port of the guest that the host reaches under the same number.
    pub(crate) publish: Option<u16>,
}

/// What was started; the runner kills all of it.
pub(crate) struct Started {
    /// Its standard input, output and error are the program's.
    pub(crate) guest: Child,
    pub(crate) helpers: Vec<Child>,
}

impl Started {
    fn alone(command: &mut Command) -> Result<Self> {
        Ok(Self {
            guest: spawn(command)?,
            helpers: Vec::new(),
        })
    }
}

/// A stack of a run: what the report says of it, and the thing itself if it is there.
pub(crate) struct Entry {
    pub(crate) described: schema::Stack,
    pub(crate) stack: Option<Box<dyn Stack>>,
}

/// What `--against` may name.
pub(crate) fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|kind| kind.name)
}

/// What is meant where nothing is named.
pub(crate) fn usual() -> impl Iterator<Item = &'static str> {
    KINDS.iter().filter(|kind| kind.usual).map(|kind| kind.name)
}

/// Whether the stack of this name is of a kind that takes part without being named.
pub(crate) fn is_usual(name: &str) -> bool {
    kind_of(name).is_some_and(|kind| kind.usual)
}

/// Looks for the stacks of `wanted`, in the order of their kinds. One that is missing says why.
pub(crate) fn find(wanted: &[Wanted]) -> Vec<Entry> {
    let of_kind = |kind: &'static Kind| {
        wanted.iter().filter_map(move |one| {
            kind_of(&one.name).filter(|found| found.name == kind.name)?;
            Some((kind, one))
        })
    };
    KINDS
        .iter()
        .flat_map(of_kind)
        .map(|(kind, one)| {
            let (found, missing) = match (kind.find)(one) {
                Ok(found) => (Some(found), None),
                Err(error) => (None, Some(format!("{error:#}"))),
            };
            Entry {
                described: schema::Stack {
                    name: one.name.clone(),
                    role: kind.role,
                    version: found
                        .as_ref()
                        .map(|found| found.version.clone())
                        .unwrap_or_default(),
                    command: found
                        .as_ref()
                        .map(|found| found.stack.command())
                        .unwrap_or_default(),
                    missing,
                },
                stack: found.map(|found| found.stack),
            }
        })
        .collect()
}

/// Whether `name` is a kind's, or a kind's with something behind it: `pasta-debian`.
pub(crate) fn is_known(name: &str) -> bool {
    kind_of(name).is_some()
}

fn kind_of(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| {
        name.strip_prefix(kind.name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    })
}

/// The program that was asked for, or `usual` on `PATH`.
fn program(wanted: &Wanted, usual: &str, package: &str) -> Result<PathBuf> {
    if let Some(given) = &wanted.program {
        return existing(given);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join(usual))
        .find(|program| program.is_file())
        .with_context(|| {
            format!(
                "{usual} is not on PATH (try: install {package}, or --against {}=/path)",
                wanted.name
            )
        })
}

/// This program, or another build of it, and its version.
fn ours(wanted: &Wanted) -> Result<(PathBuf, String)> {
    let program = match &wanted.program {
        Some(given) => existing(given)?,
        None => std::env::current_exe().context("cannot find this program")?,
    };
    let mut version = version(&program)?;
    // Builds of one version differ.
    if wanted.program.is_some() {
        version = format!("{version} ({})", program.display());
    }
    Ok((program, version))
}

/// A program of passt's, and its version.
fn passts(wanted: &Wanted, usual: &str) -> Result<(PathBuf, String)> {
    let program = program(wanted, usual, "passt")?;
    let mut version = version(&program)?;
    // Debian 12 packages a build that does not know its version.
    if version.ends_with("unknown version") {
        version = format!("{version} ({})", program.display());
    }
    Ok((program, version))
}

/// An absolute path to a program. Links are kept: pasta goes by its name.
fn existing(program: &Path) -> Result<PathBuf> {
    if !program.is_file() {
        bail!("{} is not there", program.display());
    }
    std::path::absolute(program).with_context(|| format!("{} is nowhere", program.display()))
}

/// The first line that `program --version` prints.
fn version(program: &Path) -> Result<String> {
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().next() {
        Some(line) if output.status.success() => Ok(line.trim().to_owned()),
        _ => bail!("{} --version: {}", program.display(), output.status),
    }
}

fn version_of_kernel() -> String {
    format!("Linux {}", rustix::system::uname().release().to_string_lossy())
}

/// A command that runs as a user without privileges.
pub(crate) fn unprivileged(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    if geteuid().is_root() {
        // Groups are dropped with it.
        command.uid(NOBODY).gid(NOBODY);
    }
    command.current_dir("/");
    command
}

fn spawn(command: &mut Command) -> Result<Child> {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", command.get_program().display()))
}

/// Ends a helper that does not do what it should. Returns the last line of its standard error.
fn give_up(mut helper: Child) -> String {
    let _ = helper.kill();
    let mut said = String::new();
    let _ = helper
        .stderr
        .take()
        .map(|mut stderr| stderr.read_to_string(&mut said));
    let _ = helper.wait();
    said.lines().next_back().unwrap_or_default().to_owned()
}

fn words(command: &[&str], flags: &[String]) -> String {
    let flags = flags.iter().map(String::as_str);
    command
        .iter()
        .copied()
        .chain(flags)
        .chain(["--", "CLIENT"])
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests;
