//! The registry of stacks: ways from a network namespace or a virtual machine to the network, and multicast relays.
//!
//! A stack is one module and one entry of [`KINDS`].

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
use crate::library::LibraryGuest;
use crate::relay::InstalledRelay;
use crate::schema::{self, StackRole};
use crate::tap_guest::GuestLink;

mod backend;
mod direct;
mod library;
mod machine;
mod mcr;
mod pasta;
mod pontoon;
mod pontoon_relay;
mod qemu;
mod qemu_libslirp;
mod slirp4netns;
mod smcroute;
mod socat;
mod tap_guest;
mod veth;

use backend::{BackendKind, BackendLink};

/// Every kind of stack, in the order in which they are measured.
const KINDS: &[StackKind] = &[
    direct::KIND,
    veth::KIND,
    pontoon::KIND,
    pasta::KIND,
    slirp4netns::KIND,
    StackKind::tap_guest("driver-pontoon", BackendKind::Pontoon, GuestLink::Driver),
    StackKind::tap_guest("driver-passt", BackendKind::Passt, GuestLink::Driver),
    StackKind::tap_guest("bare-driver-pontoon", BackendKind::Pontoon, GuestLink::BareDriver),
    StackKind::tap_guest("bare-driver-passt", BackendKind::Passt, GuestLink::BareDriver),
    StackKind::tap_guest("packet-pontoon", BackendKind::Pontoon, GuestLink::Packet),
    StackKind::library("library-tap", LibraryGuest::Tap),
    StackKind::library("library-vhost-user", LibraryGuest::VhostUser),
    StackKind::library("library-stream", LibraryGuest::Stream),
    StackKind::library("library-packet", LibraryGuest::Packet),
    StackKind::library("library-device", LibraryGuest::Device),
    StackKind::library("library-frames", LibraryGuest::Frames),
    StackKind::tap_guest("stream-pontoon", BackendKind::Pontoon, GuestLink::Stream),
    StackKind::tap_guest("stream-passt", BackendKind::Passt, GuestLink::Stream),
    StackKind::tap_guest(
        "lossy-stream-pontoon",
        BackendKind::Pontoon,
        GuestLink::LossyStream,
    ),
    StackKind::tap_guest("lossy-stream-passt", BackendKind::Passt, GuestLink::LossyStream),
    StackKind::qemu("qemu-pontoon", BackendKind::Pontoon, BackendLink::Stream),
    StackKind::qemu("qemu-passt", BackendKind::Passt, BackendLink::Stream),
    StackKind::qemu(
        "qemu-vhost-user-pontoon",
        BackendKind::Pontoon,
        BackendLink::VhostUser,
    ),
    StackKind::qemu(
        "qemu-vhost-user-passt",
        BackendKind::Passt,
        BackendLink::VhostUser,
    ),
    qemu_libslirp::KIND,
    pontoon_relay::KIND,
    mcr::KIND,
    smcroute::KIND,
    socat::KIND,
];

/// The name of the stack that every comparison contains.
pub(crate) const PONTOON: &str = "pontoon";

/// User id under which stacks run if root runs the harness, as they are made for unprivileged users.
const UNPRIVILEGED_USER: u32 = 65534;

/// A kind of stack, from which several stacks can be made by other programs or flags.
struct StackKind {
    name: &'static str,
    role: StackRole,
    find: StackFinder,
}

/// The function that looks for the programs of a stack on this machine, by the kind of its guest.
enum StackFinder {
    /// A stack whose guest is a network namespace. It is compared by default.
    Namespace(fn(&Selection) -> Result<FoundStack>),
    /// A stack whose guest is a virtual machine, as in the next three variants. It is compared only if it is named.
    Machine(fn(&Selection) -> Result<FoundStack>),
    Native(BackendKind, GuestLink),
    Library(LibraryGuest),
    Qemu(BackendKind, BackendLink),
    /// A multicast relay, for `pontoon bench relay`.
    Relay(fn(&Selection) -> Result<Box<dyn InstalledRelay>>),
}

/// The subcommand for which a stack is used. Names are unique within one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StackPurpose {
    /// The stack connects a namespace or a machine (`pontoon bench`).
    Network,
    /// The stack relays multicast (`pontoon bench relay`).
    Relay,
}

impl StackKind {
    const fn tap_guest(name: &'static str, backend: BackendKind, guest_link: GuestLink) -> Self {
        Self {
            name,
            role: backend.role(),
            find: StackFinder::Native(backend, guest_link),
        }
    }

    const fn library(name: &'static str, guest: LibraryGuest) -> Self {
        Self {
            name,
            role: StackRole::Pontoon,
            find: StackFinder::Library(guest),
        }
    }

    const fn qemu(name: &'static str, backend: BackendKind, link: BackendLink) -> Self {
        Self {
            name,
            role: backend.role(),
            find: StackFinder::Qemu(backend, link),
        }
    }

    fn purpose(&self) -> StackPurpose {
        match self.find {
            StackFinder::Relay(_) => StackPurpose::Relay,
            StackFinder::Namespace(_)
            | StackFinder::Machine(_)
            | StackFinder::Native(..)
            | StackFinder::Library(_)
            | StackFinder::Qemu(..) => StackPurpose::Network,
        }
    }

    fn is_default(&self) -> bool {
        matches!(self.find, StackFinder::Namespace(_))
    }

    fn find(&self, wanted: &Selection) -> Result<FoundStack> {
        match &self.find {
            StackFinder::Namespace(find) | StackFinder::Machine(find) => find(wanted),
            StackFinder::Native(backend, guest_link) => tap_guest::find(wanted, *backend, *guest_link),
            StackFinder::Library(guest) => Ok(library::find(*guest)),
            StackFinder::Qemu(backend, link) => qemu::find(wanted, *backend, *link),
            StackFinder::Relay(_) => bail!("{} is a relay", self.name),
        }
    }

    fn find_relay(&self, wanted: &Selection) -> Result<Box<dyn InstalledRelay>> {
        match &self.find {
            StackFinder::Relay(find) => find(wanted),
            StackFinder::Namespace(_)
            | StackFinder::Machine(_)
            | StackFinder::Native(..)
            | StackFinder::Library(_)
            | StackFinder::Qemu(..) => {
                bail!("{} is not a relay", self.name)
            }
        }
    }
}

/// A stack that the user has selected by its name, with an optional program and flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Name of the stack, which begins with the name of its kind.
    pub(crate) name: String,
    /// Path of the program; `None` is the one in `PATH`.
    pub(crate) program: Option<PathBuf>,
    /// Additional command-line arguments of the stack's program.
    pub(crate) flags: Vec<String>,
}

/// A stack whose programs were found, with its version.
struct FoundStack {
    version: String,
    stack: Box<dyn Stack>,
}

/// An installed stack that connects a namespace or a virtual machine.
pub(crate) trait Stack {
    /// Returns the addresses that the client inside the stack uses.
    fn addresses(&self) -> StackAddresses;

    /// Starts `program` inside the stack, with pipes on standard input, output and error.
    ///
    /// # Errors
    /// The program of the stack cannot be started.
    fn start(&self, host: &Host, config: &NetworkConfig, program: &[OsString]) -> Result<StackProcesses>;

    /// Returns the command that starts the stack, for the report.
    fn command(&self) -> String;

    /// Returns the additional time limit for the start of a program inside, such as the time to boot.
    fn boot(&self) -> Duration {
        Duration::ZERO
    }
}

/// IP addresses that the load client and the load server use in a stack.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StackAddresses {
    /// The address at which the guest reaches the load server on the host.
    pub(crate) server: IpAddr,
    /// The address of the DNS resolver for the guest.
    pub(crate) resolver: IpAddr,
    /// The host's address on which the guest's TCP ports are published.
    pub(crate) published: IpAddr,
}

/// The MTU and the published port that a measurement needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NetworkConfig {
    /// MTU of the guest's interface in bytes; `None` is the stack's best.
    pub(crate) mtu: Option<u16>,
    /// TCP port of the guest to publish under the same number on the host.
    pub(crate) publish: Option<u16>,
}

/// The processes of a started stack. The runner kills all of them at the end of the measurement.
pub(crate) struct StackProcesses {
    /// The process to whose standard input, output and error the program inside the stack is connected.
    pub(crate) guest: Child,
    pub(crate) helpers: Vec<Child>,
}

impl StackProcesses {
    fn alone(command: &mut Command) -> Result<Self> {
        Ok(Self {
            guest: spawn(command)?,
            helpers: Vec::new(),
        })
    }
}

/// A stack of a run: its description for the report, and the stack itself if it is installed.
pub(crate) struct Candidate {
    pub(crate) described: schema::StackDescription,
    pub(crate) stack: Option<Box<dyn Stack>>,
}

impl Selection {
    /// Returns the selection of a stack with its default program and no flags.
    pub(crate) fn usual(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            program: None,
            flags: Vec::new(),
        }
    }

    /// Parses `NAME[=PROGRAM]`.
    ///
    /// # Errors
    /// The name does not begin with the name of a kind, or contains characters that [`file_name`] refuses.
    pub(crate) fn parse(text: &str, purpose: StackPurpose) -> Result<Self, String> {
        let (name, program) = match text.split_once('=') {
            Some((name, program)) => (name, Some(PathBuf::from(program))),
            None => (text, None),
        };
        if kind_of(name, purpose).is_none() {
            let kinds: Vec<_> = kinds(purpose).map(|kind| kind.name).collect();
            let advice = match purpose {
                StackPurpose::Network => " (try: pontoon bench list)",
                StackPurpose::Relay => "",
            };
            return Err(format!(
                "unknown stack: known are {}, also with a suffix such as {}-old{advice}",
                kinds.join(", "),
                kinds[0]
            ));
        }
        Ok(Self {
            name: file_name(name)?,
            program,
            flags: Vec::new(),
        })
    }
}

/// Returns `name` if it can be a file name and the title of a column.
///
/// # Errors
/// The name contains a character that is not permitted.
pub(crate) fn file_name(name: &str) -> Result<String, String> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    if name.is_empty() || !name.chars().all(fits) {
        return Err("a stack's name has letters, digits, '-', '_' and '.'".into());
    }
    Ok(name.to_owned())
}

/// Returns the stacks that are compared if the user names none.
pub(crate) fn defaults() -> impl Iterator<Item = Selection> {
    KINDS
        .iter()
        .filter(|kind| kind.is_default())
        .map(|kind| Selection::usual(kind.name))
}

/// Returns true if the stack of this name is of a kind that is compared by default.
pub(crate) fn is_default(name: &str) -> bool {
    kind_of(name, StackPurpose::Network).is_some_and(StackKind::is_default)
}

/// Looks for the programs of the stacks of `wanted`, in the order of their kinds. The description of a stack that is
/// not installed has the reason.
pub(crate) fn find(wanted: &[Selection]) -> Vec<Candidate> {
    let candidate = |(kind, one): (&StackKind, &Selection)| {
        let (found, missing) = match kind.find(one) {
            Ok(found) => (Some(found), None),
            Err(error) => (None, Some(format!("{error:#}"))),
        };
        let (version, command) = match &found {
            Some(found) => (found.version.clone(), found.stack.command()),
            None => Default::default(),
        };
        Candidate {
            described: schema::StackDescription {
                name: one.name.clone(),
                role: kind.role,
                version,
                command,
                missing,
            },
            stack: found.map(|found| found.stack),
        }
    };
    in_order(wanted, StackPurpose::Network).map(candidate).collect()
}

/// Returns pontoon and the relays of `wanted`, or all installed relays if `wanted` is empty, in the order of their
/// kinds. `flags` are arguments of pontoon.
///
/// # Errors
/// Pontoon or a named relay is not installed.
pub(crate) fn find_relays(
    wanted: &[Selection],
    flags: &str,
) -> Result<Vec<(String, Box<dyn InstalledRelay>)>> {
    let is_named = !wanted.is_empty();
    let mut wanted = wanted.to_vec();
    if !is_named {
        wanted = kinds(StackPurpose::Relay)
            .map(|kind| Selection::usual(kind.name))
            .collect();
    } else if wanted.iter().all(|one| one.name != PONTOON) {
        wanted.push(Selection::usual(PONTOON));
    }
    for one in wanted.iter_mut().filter(|one| one.name.starts_with(PONTOON)) {
        one.flags = flags.split_whitespace().map(str::to_owned).collect();
    }
    let mut relays = Vec::new();
    for (kind, one) in in_order(&wanted, StackPurpose::Relay) {
        match kind.find_relay(one) {
            Ok(relay) => relays.push((one.name.clone(), relay)),
            // Without named relays those that are installed are compared.
            Err(_) if !is_named && kind.role == StackRole::Peer => {}
            Err(error) => return Err(error),
        }
    }
    Ok(relays)
}

fn kinds(purpose: StackPurpose) -> impl Iterator<Item = &'static StackKind> {
    KINDS.iter().filter(move |kind| kind.purpose() == purpose)
}

/// Returns the kind whose name is `name` or a prefix before `-`: `pasta-debian` is of the kind `pasta`.
fn kind_of(name: &str, purpose: StackPurpose) -> Option<&'static StackKind> {
    kinds(purpose).find(|kind| {
        name.strip_prefix(kind.name)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    })
}

fn in_order(
    wanted: &[Selection],
    purpose: StackPurpose,
) -> impl Iterator<Item = (&'static StackKind, &Selection)> {
    kinds(purpose).flat_map(move |kind| {
        wanted
            .iter()
            .filter(move |one| kind_of(&one.name, purpose).is_some_and(|found| found.name == kind.name))
            .map(move |one| (kind, one))
    })
}

/// Returns the path of the selected program, or of `usual` in `PATH`. `package` is named in the error.
fn program(wanted: &Selection, usual: &str, package: &str) -> Result<PathBuf> {
    if let Some(given) = &wanted.program {
        return absolute_program(given);
    }
    on_path(usual).with_context(|| {
        format!(
            "{usual} is not on PATH (try: install {package}, or --against {}=/path)",
            wanted.name
        )
    })
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        // Daemons are in /usr/sbin, which is not in every user's PATH.
        .chain([PathBuf::from("/usr/sbin")])
        .map(|directory| directory.join(name))
        .find(|program| program.is_file())
}

/// Returns the path of `pontoon` in the directory of this program, or else in `PATH`.
///
/// # Errors
/// Neither exists.
pub(crate) fn pontoon() -> Result<PathBuf> {
    let beside = std::env::current_exe()
        .context("cannot find the path of this program")?
        .with_file_name("pontoon");
    if beside.is_file() {
        return Ok(beside);
    }
    on_path("pontoon").context(
        "pontoon is neither beside pontoon-bench nor on PATH (try: cargo build --release, or --against pontoon=/path)",
    )
}

/// Returns the path of the selected program of pontoon, or the default one, and its version.
fn pontoon_program(wanted: &Selection) -> Result<(PathBuf, String)> {
    let program = match &wanted.program {
        Some(given) => absolute_program(given)?,
        None => pontoon()?,
    };
    let mut version = version(&program)?;
    // Several builds can have the same version, so the path is added.
    if wanted.program.is_some() {
        version = format!("{version} ({})", program.display());
    }
    Ok((program, version))
}

/// Returns the path and version of a program of the passt project, `usual` if none is selected.
fn passt_program(wanted: &Selection, usual: &str) -> Result<(PathBuf, String)> {
    let program = program(wanted, usual, "passt")?;
    let mut version = version(&program)?;
    // Debian 12 packages a build whose version is unknown.
    if version.ends_with("unknown version") {
        version = format!("{version} ({})", program.display());
    }
    Ok((program, version))
}

/// Returns the absolute path of a program. Symbolic links are not resolved: passt behaves as pasta if executed under
/// that name.
fn absolute_program(program: &Path) -> Result<PathBuf> {
    if !program.is_file() {
        bail!("{} does not exist", program.display());
    }
    std::path::absolute(program).with_context(|| format!("cannot make {} absolute", program.display()))
}

/// Returns the first line that `program --version` prints.
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

/// Returns a command that runs as [`UNPRIVILEGED_USER`] if this process is root.
pub(crate) fn unprivileged(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    if geteuid().is_root() {
        // `Command::uid` makes `Command` drop the supplementary groups as well.
        command.uid(UNPRIVILEGED_USER).gid(UNPRIVILEGED_USER);
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

/// Kills a helper process that has failed. Returns the last line of its standard error.
fn kill_helper(mut helper: Child) -> String {
    let _ = helper.kill();
    let mut text = String::new();
    let _ = helper
        .stderr
        .take()
        .map(|mut stderr| stderr.read_to_string(&mut text));
    let _ = helper.wait();
    text.lines().next_back().unwrap_or_default().to_owned()
}

fn command_line(command: &[&str], flags: &[String]) -> String {
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
