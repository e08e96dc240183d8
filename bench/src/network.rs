//! The network around the host of the harness. Measurements use no other network.
//!
//! ```text
//! guest of veth ---- host (the namespace of the harness) ---- outside
//!      .2  10.77.0.0/24 .1                .1  198.51.100.0/24  .2, 203.0.113.2
//! ```
//!
//! The default route of the host leads to the namespace `outside`, in which one address answers echo
//! requests, and packets to any other address are dropped. The load servers are on the host.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use pontoon_netns::{Namespace, add_address, ip, sysctl, veth};
use rustix::process::{getegid, geteuid};

pub(crate) mod resolver;

/// The host's address on the veth pair.
pub(crate) const VETH_HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
/// The guest's address on the veth pair.
pub(crate) const VETH_GUEST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2));
/// An address in the namespace `outside` that answers echo requests, one hop from the host.
pub(crate) const OUTSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 2));
/// An address behind the namespace `outside` that never answers.
pub(crate) const BLACKHOLE: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 99));

const CONGESTION_CONTROL: &str = "net/ipv4/tcp_congestion_control";

/// The network namespaces of host and outside, which exist as long as this value.
pub(crate) struct Network {
    _outside: Namespace,
    guest: Namespace,
    /// TCP congestion control of a new network namespace, which is the machine's default.
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
        pontoon_netns::prepare()?;
        veth("up0", &outside, "out0")?;
        add_address("up0", "198.51.100.1/24")?;
        ip("route add default via 198.51.100.2")?;
        outside.enter(|| {
            ip(&format!(
                "address add 198.51.100.2/24 dev out0
                 address add {OUTSIDE}/32 dev lo
                 route add 10.77.0.0/24 via 198.51.100.1"
            ))
        })?;
        veth("veth0", &guest, "eth0")?;
        ip(&format!("link set veth0 mtu {BEST_MTU}"))?;
        add_address("veth0", &format!("{VETH_HOST}/24"))?;
        guest.enter(|| {
            ip(&format!(
                "link set eth0 mtu {BEST_MTU}
                 address add {VETH_GUEST}/24 dev eth0
                 route add default via {VETH_HOST}"
            ))
        })?;
        sysctl("net/ipv4/ip_forward", "1")?;
        // All groups of this user namespace may open ping sockets.
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

    /// Sets the TCP congestion control of new sockets, on the host and in the guest of `veth`; `None` is the
    /// machine's default. Returns its name.
    ///
    /// # Errors
    /// The kernel lacks the congestion control.
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

    /// Sets the MTU of both ends of the veth pair between the host and the guest of `veth`.
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

    /// Makes `command` enter the network namespace of the guest of `veth` before it is executed.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn run_in_guest(&self, command: &mut Command) -> Result<()> {
        self.guest.run_inside(command)
    }
}

/// The first ephemeral port (`net.ipv4.ip_local_port_range`). The range is larger than the default, so that
/// short connections do not exhaust it.
pub(crate) const FIRST_LOCAL_PORT: u16 = 2048;

/// The kernel's default MTU of loopback interfaces.
pub(crate) const LOOPBACK_MTU: u32 = 65536;

/// The largest MTU that pontoon, pasta and slirp4netns support, in bytes; also that of veth in cells with the
/// best MTU.
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

/// Returns the MTU and the transmit queue length of the interface that routes to `address` in the network
/// namespace of process `pid`.
///
/// # Errors
/// The process has ended.
pub(crate) fn interface_of(pid: u32, address: IpAddr) -> Result<(u32, u32)> {
    Namespace::of_process(pid)?.enter(|| {
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
