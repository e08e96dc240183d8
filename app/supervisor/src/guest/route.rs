//! The guest's IPv6 default route, which exists while the host has one, so that the guest does not send IPv6 packets
//! that the host cannot forward.

use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;

use pontoon_engine::address_plan::{AddressPlan, Ipv6Plan};
use pontoon_process::netlink::{GatewayReach, Netlink};

use super::tap::reach;

/// Access to the route from outside the guest's namespace.
#[derive(Debug)]
pub(crate) struct GuestRoute {
    netlink: Netlink,
    index: u32,
    gateway: Ipv6Addr,
    reach: GatewayReach,
}

impl GuestRoute {
    /// Wraps a netlink socket that was opened in the guest's namespace, for the interface with that index in it; `None` if
    /// the plan has no IPv6.
    pub(crate) fn new(socket: OwnedFd, index: u32, plan: &AddressPlan) -> Option<Self> {
        let v6: &Ipv6Plan = plan.v6.as_ref()?;
        Some(Self {
            netlink: Netlink::of(socket),
            index,
            gateway: v6.gateway,
            reach: reach(v6.gateway.into(), plan),
        })
    }

    /// Adds the route if the host has one now, and removes it otherwise.
    pub(crate) fn follow(&mut self, exists: bool) {
        let gateway = self.gateway.into();
        let done = match exists {
            true => self.netlink.add_default_route(self.index, gateway, self.reach),
            false => self.netlink.remove_default_route(self.index, gateway),
        };
        match done {
            Ok(()) => tracing::debug!(exists, "the guest's IPv6 default route follows the host's"),
            // The guest has added or removed it itself.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EEXIST | libc::ESRCH)) => {}
            Err(error) => tracing::warn!("the guest's IPv6 default route cannot follow the host's: {error}"),
        }
    }
}
