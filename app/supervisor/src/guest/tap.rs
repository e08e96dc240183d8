//! The guest's interface: created and configured by a process in the guest's network namespace.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use ipnet::IpNet;
use pontoon_engine::address_plan::AddressPlan;
use pontoon_process::Error;
use pontoon_process::error::{Context as _, reason};
use pontoon_process::netlink::{GatewayReach, Interface, Netlink};
use pontoon_sys::tun::{self, TapOffload};
use pontoon_wire::Mac;
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

/// Settings of the interface.
#[derive(Clone, Debug)]
pub(crate) struct TapConfig {
    /// Its name.
    pub(crate) ifname: String,
    /// Its Ethernet address.
    pub(crate) mac: Mac,
    /// Its MTU.
    pub(crate) mtu: u16,
    /// Its addresses, gateways and routes.
    pub(crate) plan: AddressPlan,
    /// Offloads to ask for.
    pub(crate) offload: TapOffload,
    /// Its queues: one for each worker.
    pub(crate) queues: u8,
}

/// A tap that was created, with access to its namespace.
#[derive(Debug)]
pub(crate) struct Made {
    /// Its queues, one at least.
    pub(crate) queues: Vec<OwnedFd>,
    /// Their offloads.
    pub(crate) offload: TapOffload,
    /// A netlink socket of the namespace.
    pub(crate) netlink: OwnedFd,
    /// The tap's index in the namespace.
    pub(crate) index: u32,
}

/// Transmit queue length in frames. The kernel drops further frames silently; with 4,000 none was lost at 468,000 per second.
const QUEUE: u32 = 4000;

/// Index of the loopback interface in every network namespace.
const LOOPBACK: u32 = 1;

/// Creates the tap, brings it and the loopback up, and sets addresses and routes, without duplicate address detection. The
/// interface ignores router advertisements.
///
/// # Errors
/// `/dev/net/tun` cannot be opened, or the kernel refused a step.
pub(crate) fn create(config: &TapConfig) -> Result<Made, Error> {
    let tap = tun::open(&config.ifname, config.offload, config.queues)
        .map_err(|error| refused(&error, config.queues))?;
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).context("cannot open a socket")?;
    let index = netdevice::name_to_index(&socket, &tap.name).context("cannot find the tap")?;
    settle_ipv6(&tap.name, config.plan.v6.is_some());

    let mut netlink = Netlink::open().context("cannot open a netlink socket")?;
    let untouched = Interface {
        mac: None,
        mtu: None,
        queue: None,
    };
    netlink
        .bring_up(LOOPBACK, &untouched)
        .context("cannot bring lo up")?;
    let interface = Interface {
        mac: Some(config.mac.0),
        mtu: Some(config.mtu),
        queue: Some(QUEUE),
    };
    netlink
        .bring_up(index, &interface)
        .context(format_args!("cannot bring {} up", tap.name))?;

    if let Some(v4) = &config.plan.v4 {
        let addresses = v4.addresses().map(IpNet::V4);
        let gateway = v4.default_route.then_some(IpAddr::V4(v4.gateway));
        set_addresses(&mut netlink, index, addresses, gateway, &config.plan)
            .map_err(|error| taken(&tap.name, &error))?;
    }
    if let Some(v6) = &config.plan.v6 {
        let addresses = v6.addresses().map(IpNet::V6);
        let gateway = v6.default_route.then_some(IpAddr::V6(v6.gateway));
        set_addresses(&mut netlink, index, addresses, gateway, &config.plan)
            .map_err(|error| taken(&tap.name, &error).advise("--no-ipv6"))?;
    }
    for route in &config.plan.routes {
        let gateway = route
            .gateway
            .map(|gateway| (gateway, reach(gateway, &config.plan)));
        match netlink.add_route(index, route.destination, gateway) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
            result => result.map_err(|error| taken(&tap.name, &error))?,
        }
    }
    Ok(Made {
        queues: tap.queues,
        offload: tap.offload,
        netlink: netlink.into_socket(),
        index,
    })
}

/// Binds the lifetime of the tap to its namespace instead of its descriptor. Closing the descriptor would otherwise wait some
/// 14 ms for its removal.
///
/// # Errors
/// The kernel's.
pub(crate) fn leave_to_namespace(tap: &Made) -> io::Result<()> {
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
    let in_subnet = match gateway {
        IpAddr::V4(gateway) => {
            let own = plan.v4.as_ref();
            own.is_some_and(|own| own.addresses().any(|net| net.contains(&gateway)))
        }
        // Each interface has a link-local subnet.
        IpAddr::V6(gateway) => {
            let own = plan.v6.as_ref();
            gateway.is_unicast_link_local()
                || own.is_some_and(|own| own.addresses().any(|net| net.contains(&gateway)))
        }
    };
    if in_subnet {
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

fn refused(error: &io::Error, queues: u8) -> Error {
    if error.kind() == io::ErrorKind::Unsupported {
        let text = format!("cannot use {queues} workers: this kernel's tap has only one queue");
        return Error::new(text).advise("--workers 1");
    }
    // The text names the step and the reason.
    let text = error.to_string();
    let (step, why) = text.rsplit_once(": ").unwrap_or(("cannot create a tap", &text));
    let plain = Error::io(step, &io::Error::other(why));
    if error.to_string().starts_with("cannot open") {
        return match error.kind() {
            io::ErrorKind::NotFound => {
                plain.advise("as root: mkdir -p /dev/net && mknod -m 666 /dev/net/tun c 10 200")
            }
            io::ErrorKind::PermissionDenied => plain.advise("as root: chmod 666 /dev/net/tun"),
            // ENXIO, ENODEV: a node without the driver.
            _ => plain.advise("as root: modprobe tun"),
        };
    }
    match error.kind() {
        io::ErrorKind::ResourceBusy => plain.advise("--ifname with another name"),
        io::ErrorKind::PermissionDenied => plain.advise("as the owner of the namespace, or as root"),
        _ => plain,
    }
}

/// Sets the IPv6 sysctls of the interface. To be called before it is up, so that it never sends a router solicitation or
/// waits for duplicate address detection. `/proc/sys` shows the reading process's network namespace. If it is read-only (in
/// a container), the interface works, with one more address, and its link-local address a second late.
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
