//! IPv6 default route in the guest's namespace. It exists while the host has an IPv6 default route, so that the guest does
//! not send IPv6 packets that the host cannot forward.

use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;

use pontoon_engine::address_plan::{AddressPlan, Ipv6Plan};
use pontoon_process::netlink::{GatewayReach, Netlink};

use super::tap::reach;

/// IPv6 default route of the guest, changed through a netlink socket of the guest's network namespace.
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

    /// Adds the guest's route if `exists`, because the host has a default route, and removes it otherwise.
    pub(crate) fn follow(&mut self, exists: bool) {
        let gateway = self.gateway.into();
        let done = match exists {
            true => self.netlink.add_default_route(self.index, gateway, self.reach),
            false => self.netlink.remove_default_route(self.index, gateway),
        };
        match done {
            Ok(()) => tracing::debug!(exists, "the guest's IPv6 default route follows the host's"),
            // The guest itself has added or removed the route.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EEXIST | libc::ESRCH)) => {}
            Err(error) => tracing::warn!("the guest's IPv6 default route cannot follow the host's: {error}"),
        }
    }
}
