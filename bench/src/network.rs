//! The network around the harness's host, which is the only one that a measurement uses.
//!
//! ```text
//! guest of veth ---- host (the namespace of the harness) ---- outside
//!      .2  10.77.0.0/24 .1                .1  198.51.100.0/24  .2, 203.0.113.2
//! ```
//!
//! The host's default route leads outside, where one address answers echo requests and packets to any other are
//! dropped. Servers are on the host.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{getegid, geteuid};
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, UnshareFlags, capabilities, configure_capability_in_ambient_set,
    move_into_link_name_space, set_capabilities, unshare_unsafe,
};

pub(crate) mod resolver;

/// The host's address on the veth pair.
pub(crate) const VETH_HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
/// The guest's address on the veth pair.
pub(crate) const VETH_GUEST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
/// An address that answers echo requests, one hop from the host.
pub(crate) const OUTSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 2));
/// An address that never answers.
pub(crate) const BLACKHOLE: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 99));

const CONGESTION_CONTROL: &str = "net/ipv4/tcp_congestion_control";

/// Host and outside, which exist as long as this value.
pub(crate) struct Network {
    _outside: Namespace,
    guest: Namespace,
    /// The congestion control of a new namespace, which is the machine's default.
    default_congestion_control: String,
    loopback_mtu: Cell<u32>,
    veth_mtu: Cell<u32>,
}

impl Network {
    /// Builds the network in the caller's network namespace, which is new.
    ///
    /// # Errors
    /// `ip` is missing, or the kernel lacks veth.
    pub(crate) fn new() -> Result<Self> {
        let outside = Namespace::new()?;
        let guest = Namespace::new()?;
        let lines = format!(
            "link set lo up
             link add up0 type veth peer name out0 netns {}
             address add 198.51.100.1/24 dev up0
             link set up0 up
             route add default via 198.51.100.2
             link add veth0 mtu {best} type veth peer name eth0 mtu {best} netns {}
             address add {VETH_HOST}/24 dev veth0
             link set veth0 up",
            outside.path(),
            guest.path(),
            best = BEST_MTU,
        );
        ip_with(&lines, &[&outside, &guest])?;
        outside.enter(|| {
            ip("link set lo up
                address add 198.51.100.2/24 dev out0
                address add 203.0.113.2/32 dev lo
                link set out0 up
                route add 10.77.0.0/24 via 198.51.100.1")
        })?;
        guest.enter(|| {
            ip(&format!(
                "link set lo up
                 address add {VETH_GUEST}/24 dev eth0
                 link set eth0 up
                 route add default via {VETH_HOST}"
            ))
        })?;
        sysctl("net/ipv4/ip_forward", "1")?;
        // All users that exist here may open ping sockets.
        let groups = if geteuid().is_root() {
            "0 2147483647".to_owned()
        } else {
            format!("{0} {0}", getegid().as_raw())
        };
        sysctl("net/ipv4/ping_group_range", &groups)?;
        guest.enter(|| sysctl("net/ipv4/ping_group_range", &groups))?;
        let ports = format!("{FIRST_LOCAL_PORT} 65535");
        sysctl("net/ipv4/ip_local_port_range", &ports)?;
        guest.enter(|| sysctl("net/ipv4/ip_local_port_range", &ports))?;
        let path = format!("/proc/sys/{CONGESTION_CONTROL}");
        let default_congestion_control =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        Ok(Self {
            _outside: outside,
            guest,
            default_congestion_control: default_congestion_control.trim().to_owned(),
            loopback_mtu: Cell::new(LOOPBACK_MTU),
            veth_mtu: Cell::new(BEST_MTU),
        })
    }

    /// Sets the congestion control of new sockets, on the host and in the guest of `veth`; `None` is the machine's
    /// default. Returns its name.
    ///
    /// # Errors
    /// The kernel lacks it.
    pub(crate) fn set_congestion_control(&self, name: Option<&str>) -> Result<String> {
        let name = name.unwrap_or(&self.default_congestion_control);
        set_congestion_control(name)?;
        self.guest.enter(|| set_congestion_control(name))?;
        Ok(name.to_owned())
    }

    /// Sets the MTU of the host's loopback.
    ///
    /// # Errors
    /// `ip` fails.
    pub(crate) fn set_loopback_mtu(&self, mtu: u32) -> Result<()> {
        if self.loopback_mtu.replace(mtu) != mtu {
            ip(&format!("link set lo mtu {mtu}"))?;
        }
        Ok(())
    }

    /// Sets the MTU between the host and the guest of `veth`, both ways.
    ///
    /// # Errors
    /// `ip` fails.
    pub(crate) fn set_veth_mtu(&self, mtu: u32) -> Result<()> {
        if self.veth_mtu.replace(mtu) != mtu {
            ip(&format!("link set veth0 mtu {mtu}"))?;
            self.guest.enter(|| ip(&format!("link set eth0 mtu {mtu}")))?;
        }
        Ok(())
    }

    /// Makes `command` run in the guest of `veth`.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn run_in_guest(&self, command: &mut Command) -> Result<()> {
        let namespace = self.guest.0.try_clone()?;
        let enter = move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).map_err(Into::into)
        };
        // SAFETY: between fork and exec the closure makes one system call and accesses only its own memory.
        unsafe { command.pre_exec(enter) };
        Ok(())
    }
}

/// The first ephemeral port. The range is larger than usual, so that short connections do not exhaust it.
pub(crate) const FIRST_LOCAL_PORT: u16 = 2048;

/// The kernel's default MTU of loopback interfaces.
pub(crate) const LOOPBACK_MTU: u32 = 65536;

/// The largest MTU of the translating stacks, and that of veth in cells with the best MTU.
pub(crate) const BEST_MTU: u32 = 65520;

/// Sets the congestion control of new sockets in the caller's network namespace.
///
/// # Errors
/// The kernel lacks it, or this user may not use it.
pub(crate) fn set_congestion_control(name: &str) -> Result<()> {
    let path = format!("/proc/sys/{CONGESTION_CONTROL}");
    if std::fs::read_to_string(&path).is_ok_and(|current| current.trim() == name) {
        return Ok(());
    }
    std::fs::write(path, name).with_context(|| format!("cannot set congestion control {name}"))
}

/// Returns MTU and queue length of the interface towards `address` in the network namespace of process `pid`.
///
/// # Errors
/// The process has ended.
pub(crate) fn interface_of(pid: u32, address: IpAddr) -> Result<(u32, u32)> {
    let namespace = Namespace(File::open(format!("/proc/{pid}/ns/net"))?);
    namespace.enter(|| {
        let route = output(&["-o", "route", "get", &address.to_string()])?;
        let device = word_after(&route, "dev").context("no route")?.to_owned();
        let link = output(&["-o", "link", "show", "dev", &device])?;
        let number = |key| word_after(&link, key)?.trim_end_matches('\\').parse().ok();
        Ok((
            number("mtu").context("no MTU")?,
            number("qlen").unwrap_or_default(),
        ))
    })
}

fn word_after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut words = text.split([' ', '\\', '\n']).skip_while(|word| *word != key);
    words.nth(1)
}

/// A network namespace, which exists as long as this value and processes inside.
pub(crate) struct Namespace(File);

impl Namespace {
    pub(crate) fn new() -> Result<Self> {
        let made = std::thread::spawn(|| -> Result<Self> {
            // SAFETY: only descriptors are shared with other threads, and CLONE_NEWNET closes none of them.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET)? };
            Ok(Self(File::open("/proc/thread-self/ns/net")?))
        });
        made.join().unwrap_or_else(|_| bail!("a thread panicked"))
    }

    /// Runs `inside` on a thread in this namespace.
    pub(crate) fn enter<T: Send>(&self, inside: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))?;
                inside()
            });
            thread.join().unwrap_or_else(|_| bail!("a thread panicked"))
        })
    }

    /// Returns the path of the namespace for a program that inherits the descriptor.
    pub(crate) fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }
}

/// Runs `lines` as commands of `ip` in the caller's namespace.
pub(crate) fn ip(lines: &str) -> Result<()> {
    ip_with(lines, &[])
}

/// Runs `ip` with descriptors of `namespaces`.
pub(crate) fn ip_with(lines: &str, namespaces: &[&Namespace]) -> Result<()> {
    let mut command = Command::new("ip");
    command
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let inherited: Vec<RawFd> = namespaces
        .iter()
        .map(|namespace| namespace.0.as_raw_fd())
        .collect();
    let prepare = move || {
        for fd in &inherited {
            // SAFETY: `namespaces` are borrowed until the program has been started, so they are open.
            fcntl_setfd(unsafe { BorrowedFd::borrow_raw(*fd) }, FdFlags::empty())?;
        }
        keep_net_admin()
    };
    // SAFETY: between fork and exec the closure makes some system calls, and allocates nothing.
    unsafe { command.pre_exec(prepare) };
    let mut child = command.spawn().context("cannot run ip (try: install iproute2)")?;
    let mut input = child.stdin.take().context("the pipe is missing")?;
    for line in lines.lines() {
        writeln!(input, "{}", line.trim())?;
    }
    drop(input);
    let output = child.wait_with_output()?;
    let why = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip: {}", why.trim().replace('\n', "; "));
    Ok(())
}

/// Keeps CAP_NET_ADMIN over the next exec, by which a user other than root would lose it.
fn keep_net_admin() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable |= CapabilitySet::NET_ADMIN;
    set_capabilities(None, sets)?;
    Ok(configure_capability_in_ambient_set(
        CapabilitySet::NET_ADMIN,
        true,
    )?)
}

fn output(arguments: &[&str]) -> Result<String> {
    let output = Command::new("ip").args(arguments).output()?;
    ensure!(
        output.status.success(),
        "ip {}: {}",
        arguments.join(" "),
        output.status
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Writes a sysctl of the caller's network namespace.
pub(crate) fn sysctl(path: &str, value: &str) -> Result<()> {
    std::fs::write(format!("/proc/sys/{path}"), value).with_context(|| format!("cannot write sysctl {path}"))
}
