//! Tap of the guest: opened and configured by a process in the guest's network namespace.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use ipnet::IpNet;
use pontoon_engine::address_plan::AddressPlan;
use pontoon_process::Error;
use pontoon_process::error::{Context as _, reason};
use pontoon_process::netlink::{GatewayReach, Interface, Netlink};
use pontoon_sys::tun::{self, TapOffload};
use pontoon_wire::Mac;
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::host::ephemeral_ports;
use crate::listeners::ListenerReader;
use crate::publish::port_range::PortRange;

/// Settings of the guest's tap.
#[derive(Clone, Debug)]
pub(crate) struct TapConfig {
    /// Name of the tap.
    pub(crate) ifname: String,
    /// Ethernet address of the tap.
    pub(crate) mac: Mac,
    /// MTU of the tap in bytes.
    pub(crate) mtu: u16,
    /// Its addresses, gateways and routes.
    pub(crate) plan: AddressPlan,
    /// Offloads to request from the kernel.
    pub(crate) offload: TapOffload,
    /// Number of queues of the tap: one for each worker.
    pub(crate) queues: u8,
    /// False if another program configures the tap: its Ethernet address, MTU, addresses and routes are not changed.
    pub(crate) configure: bool,
    /// True if the loopback interface is brought up.
    pub(crate) loopback: bool,
}

/// Tap that was created or existed, with access to its network namespace.
#[derive(Debug)]
pub(crate) struct CreatedTap {
    /// Descriptors of the tap's queues, at least one.
    pub(crate) queues: Vec<OwnedFd>,
    /// Offloads that the kernel has granted for the queues.
    pub(crate) offload: TapOffload,
    /// Ethernet address of the tap.
    pub(crate) mac: Mac,
    /// Netlink socket that was opened in the tap's network namespace.
    pub(crate) netlink: OwnedFd,
    /// Netlink socket that was opened in the tap's network namespace, by which the listening sockets there are read; `None` if
    /// the kernel does not support that.
    pub(crate) listeners: Option<OwnedFd>,
    /// Ephemeral ports of the tap's network namespace.
    pub(crate) ephemeral: PortRange,
    /// Interface index of the tap in its network namespace.
    pub(crate) index: u32,
}

/// Length of the tap's transmit queue in frames. The kernel drops further frames silently; with 4,000 none was lost at
/// 468,000 frames per second.
const QUEUE: u32 = 4000;

/// Settings of an interface that is only brought up.
const UNTOUCHED: Interface = Interface {
    mac: None,
    mtu: None,
    queue: None,
};

/// Index of the loopback interface in every network namespace.
const LOOPBACK: u32 = 1;

/// Creates the tap, or attaches to an existing one, and configures it unless another program does.
///
/// # Errors
/// `/dev/net/tun` cannot be opened, or the kernel refuses a step.
pub(crate) fn create(config: &TapConfig) -> Result<CreatedTap, Error> {
    let tap = tun::open(&config.ifname, config.offload, config.queues)
        .map_err(|error| refused(&error, config.queues))?;
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).context("cannot open a socket")?;
    let index = netdevice::name_to_index(&socket, &tap.name).context("cannot find the tap")?;
    let mut netlink = Netlink::open().context("cannot open a netlink socket")?;
    if config.loopback {
        netlink
            .bring_up(LOOPBACK, &UNTOUCHED)
            .context("cannot bring lo up")?;
    }
    if config.configure {
        configure(config, &tap.name, index, &mut netlink)?;
    }
    let first = tap.queues.first().map(AsFd::as_fd).expect("a tap has a queue");
    let mac = tun::ethernet_address(first).context("cannot read the tap's Ethernet address")?;
    Ok(CreatedTap {
        queues: tap.queues,
        offload: tap.offload,
        mac: Mac(mac),
        netlink: netlink.into_socket(),
        listeners: ListenerReader::open_socket().ok(),
        ephemeral: ephemeral_ports(),
        index,
    })
}

/// Brings the tap up, and sets addresses and routes, without duplicate address detection. The
/// tap ignores router advertisements.
fn configure(config: &TapConfig, name: &str, index: u32, netlink: &mut Netlink) -> Result<(), Error> {
    settle_ipv6(name, config.plan.v6.is_some());
    let interface = Interface {
        mac: Some(config.mac.0),
        mtu: Some(config.mtu),
        queue: Some(QUEUE),
    };
    netlink
        .bring_up(index, &interface)
        .context(format_args!("cannot bring {name} up"))?;

    if let Some(v4) = &config.plan.v4 {
        let addresses = v4.addresses().map(IpNet::V4);
        let gateway = v4.default_route.then_some(IpAddr::V4(v4.gateway));
        set_addresses(netlink, index, addresses, gateway, &config.plan)
            .map_err(|error| taken(name, &error))?;
    }
    if let Some(v6) = &config.plan.v6 {
        let addresses = v6.addresses().map(IpNet::V6);
        let gateway = v6.default_route.then_some(IpAddr::V6(v6.gateway));
        set_addresses(netlink, index, addresses, gateway, &config.plan)
            .map_err(|error| taken(name, &error).advise("--no-ipv6"))?;
        for address in v6.addresses() {
            if let Err(error) = netlink.wait_until_local(address.addr().into()) {
                tracing::debug!(%address, %error, "the guest has no route to its own address yet");
            }
        }
    }
    for route in &config.plan.routes {
        let gateway = route
            .gateway
            .map(|gateway| (gateway, reach(gateway, &config.plan)));
        match netlink.add_route(index, route.destination, gateway) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            result => result.map_err(|error| taken(name, &error))?,
        }
    }
    Ok(())
}

/// Makes the tap exist until its network namespace is removed (TUNSETPERSIST), so that closing its last descriptor does not
/// wait about 14 ms for its removal.
///
/// # Errors
/// The kernel refuses the request.
pub(crate) fn leave_to_namespace(tap: &CreatedTap) -> io::Result<()> {
    let queue = tap.queues.first().map_or(-1, AsRawFd::as_raw_fd);
    // SAFETY: TUNSETPERSIST takes a number and accesses no memory of this process.
    match unsafe { libc::ioctl(queue, libc::TUNSETPERSIST, 1) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Sets the addresses of one family, and the default route.
fn set_addresses(
    netlink: &mut Netlink,
    index: u32,
    addresses: impl Iterator<Item = IpNet>,
    gateway: Option<IpAddr>,
    plan: &AddressPlan,
) -> io::Result<()> {
    for address in addresses {
        netlink.add_address(index, address)?;
    }
    gateway.map_or(Ok(()), |gateway| {
        netlink.add_default_route(index, gateway, reach(gateway, plan))
    })
}

/// Returns the way to a gateway from the guest's interface.
pub(super) fn reach(gateway: IpAddr, plan: &AddressPlan) -> GatewayReach {
    if plan.has_neighbour(gateway) {
        GatewayReach::Subnet
    } else {
        GatewayReach::OnLink
    }
}

fn taken(name: &str, error: &io::Error) -> Error {
    let plain = Error::new(format!(
        "cannot set addresses and routes on {name}: {}",
        reason(error)
    ));
    match error.raw_os_error() {
        Some(libc::EEXIST) => plain.advise("removing the namespace's own default route and addresses"),
        _ => plain,
    }
}

/// Returns the error for a tap that cannot be opened.
pub(crate) fn refused(error: &io::Error, queues: u8) -> Error {
    if error.kind() == io::ErrorKind::Unsupported {
        let text = format!("cannot use {queues} workers: this kernel's tap has only one queue");
        return Error::new(text).advise("--workers 1");
    }
    // The text of the error has the step and the reason.
    let text = error.to_string();
    let (step, why) = text.rsplit_once(": ").unwrap_or(("cannot create a tap", &text));
    let plain = Error::io(step, &io::Error::other(why));
    let denied = io::Error::from_raw_os_error(libc::EPERM).to_string();
    if text.starts_with("cannot open") {
        return match error.kind() {
            io::ErrorKind::NotFound => {
                plain.advise("as root: mkdir -p /dev/net && mknod -m 666 /dev/net/tun c 10 200")
            }
            // EPERM is of the device controller of cgroups.
            io::ErrorKind::PermissionDenied if text.ends_with(&denied) => {
                plain.advise("the container option --device /dev/net/tun")
            }
            io::ErrorKind::PermissionDenied => plain.advise("as root: chmod 666 /dev/net/tun"),
            // ENXIO and ENODEV mean that the device node exists and the driver is missing.
            _ => plain.advise("as root: modprobe tun"),
        };
    }
    match error.kind() {
        io::ErrorKind::ResourceBusy => plain.advise("another name: a process uses the tap with this one"),
        io::ErrorKind::InvalidInput => {
            plain.advise("another name, or for an existing tap as many --workers as it has queues")
        }
        io::ErrorKind::PermissionDenied => plain.advise("as the owner of the namespace, or as root"),
        _ => plain,
    }
}

/// Sets the IPv6 sysctls of the tap. It is called before the tap is up, so that the tap never sends a router solicitation
/// or waits for duplicate address detection. `/proc/sys` shows the network namespace of the process that reads it. If it is
/// read-only (in a container), the tap works, but has one more address, and its link-local address is a second late.
fn settle_ipv6(name: &str, wanted: bool) {
    let settings: &[(&str, &str)] = if wanted {
        &[
            ("accept_ra", "0"),
            ("accept_dad", "0"),
            ("router_solicitations", "0"),
        ]
    } else {
        &[("disable_ipv6", "1")]
    };
    for (key, value) in settings {
        let path = format!("/proc/sys/net/ipv6/conf/{name}/{key}");
        if let Err(error) = fs::write(&path, value) {
            tracing::debug!(path, %error, "not set");
        }
    }
}
