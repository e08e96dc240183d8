//! Network namespaces for tests and measurements: threads and programs inside of a namespace, veth pairs, addresses
//! and sysctls.
//!
//! The functions act on the network namespace of the calling thread.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::geteuid;
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, UnshareFlags, capabilities, configure_capability_in_ambient_set,
    move_into_link_name_space, set_capabilities, unshare_unsafe,
};

pub mod unit_test;

/// A network namespace, which exists as long as this value or a process inside.
pub struct Namespace(File);

impl Namespace {
    /// Creates a network namespace whose loopback is up, and in which IPv6 addresses can be used at once.
    ///
    /// # Errors
    /// The caller may not create namespaces, or `ip` is missing.
    pub fn new() -> Result<Self> {
        let thread = std::thread::spawn(|| -> Result<Self> {
            // SAFETY: only descriptors are shared with other threads, and CLONE_NEWNET closes none of them.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.context("cannot make a network namespace")?;
            prepare()?;
            Ok(Self(File::open("/proc/thread-self/ns/net")?))
        });
        thread
            .join()
            .unwrap_or_else(|_| bail!("the thread that makes a namespace panicked"))
    }

    /// Opens the network namespace of process `pid`.
    ///
    /// # Errors
    /// The process has exited.
    pub fn of_process(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/ns/net");
        let file = File::open(&path).with_context(|| format!("cannot open {path}"))?;
        Ok(Self(file))
    }

    /// Runs `inside` on a thread in this namespace. Sockets, threads and programs that `inside` creates stay in the
    /// namespace.
    ///
    /// # Errors
    /// Those of `inside`.
    pub fn enter<T: Send>(&self, inside: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                set_namespace(&self.0)?;
                inside()
            });
            thread
                .join()
                .unwrap_or_else(|_| bail!("a thread in a namespace panicked"))
        })
    }

    /// Makes `command` enter this namespace before it is executed.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn run_inside(&self, command: &mut Command) -> Result<()> {
        let namespace = self.0.try_clone()?;
        let enter = move || set_namespace(&namespace);
        // SAFETY: between fork and exec the closure makes one system call and accesses only its own memory.
        unsafe { command.pre_exec(enter) };
        Ok(())
    }
}

fn set_namespace(namespace: &File) -> io::Result<()> {
    Ok(move_into_link_name_space(
        namespace.as_fd(),
        Some(LinkNameSpaceType::Network),
    )?)
}

/// Prepares the caller's new network namespace: sets loopback up, and disables duplicate address detection, so that
/// IPv6 addresses can be used at once.
///
/// # Errors
/// The caller may not configure the namespace, or `ip` is missing.
pub fn prepare() -> Result<()> {
    if Path::new("/proc/sys/net/ipv6").exists() {
        sysctl("net/ipv6/conf/default/accept_dad", "0")?;
        sysctl("net/ipv6/conf/default/dad_transmits", "0")?;
    }
    ip("link set lo up")
}

/// Creates a veth pair with the end `name` in the caller's namespace and `peer_name` in `peer`. Both ends are up
/// before they have addresses: otherwise the first IPv6 packets wait a second until the kernel notices the carrier.
///
/// # Errors
/// `ip` fails.
pub fn veth(name: &str, peer: &Namespace, peer_name: &str) -> Result<()> {
    let namespace = peer.0.as_raw_fd();
    run_ip(
        &format!("link add {name} type veth peer name {peer_name} netns /proc/self/fd/{namespace}"),
        Some(&peer.0),
    )?;
    peer.enter(|| ip(&format!("link set {peer_name} up")))?;
    ip(&format!("link set {name} up"))
}

/// Adds an address with its prefix length, such as `10.0.0.1/24`, to an interface.
///
/// # Errors
/// `ip` fails.
pub fn add_address(interface: &str, address: &str) -> Result<()> {
    let nodad = if address.contains(':') { " nodad" } else { "" };
    ip(&format!("address add {address} dev {interface}{nodad}"))
}

/// Writes a sysctl, given by its path below /proc/sys, such as `net/ipv4/ip_forward`.
///
/// # Errors
/// The sysctl does not exist, or the caller may not write it.
pub fn sysctl(path: &str, value: &str) -> Result<()> {
    std::fs::write(format!("/proc/sys/{path}"), value).with_context(|| format!("cannot write sysctl {path}"))
}

/// Runs each of `lines` as a command of ip(8).
///
/// # Errors
/// A command fails; later commands are not run.
pub fn ip(lines: &str) -> Result<()> {
    run_ip(lines, None)
}

/// Runs each of `lines` as a command of ip(8), which inherits the descriptor of `namespace`.
fn run_ip(lines: &str, namespace: Option<&File>) -> Result<()> {
    let mut command = Command::new("ip");
    command
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let inherited: Option<RawFd> = namespace.map(AsRawFd::as_raw_fd);
    let is_root = geteuid().is_root();
    let prepare = move || {
        if let Some(fd) = inherited {
            // SAFETY: `namespace` is borrowed until the program has been started, so it is open.
            fcntl_setfd(unsafe { BorrowedFd::borrow_raw(fd) }, FdFlags::empty())?;
        }
        if is_root { Ok(()) } else { keep_net_admin() }
    };
    // SAFETY: between fork and exec the closure makes some system calls, and allocates nothing.
    unsafe { command.pre_exec(prepare) };
    let mut child = command.spawn().context("cannot run ip (try: install iproute2)")?;
    let mut input = child.stdin.take().context("the child process has no pipe")?;
    for line in lines.lines() {
        writeln!(input, "{}", line.trim())?;
    }
    drop(input);
    let output = child.wait_with_output()?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "ip: {}: {}",
        lines.split_whitespace().collect::<Vec<_>>().join(" "),
        stderr.trim().replace('\n', "; ")
    );
    Ok(())
}

/// Adds CAP_NET_ADMIN to the ambient set, as a user other than root would lose it at the next exec.
fn keep_net_admin() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable |= CapabilitySet::NET_ADMIN;
    set_capabilities(None, sets)?;
    Ok(configure_capability_in_ambient_set(
        CapabilitySet::NET_ADMIN,
        true,
    )?)
}
