//! The guest's IPv6 default route: there while the host has one, so that a guest is never sent where nothing goes.

use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;

use pontoon_process::netlink::Netlink;

/// A way to change it from outside the guest's namespace.
#[derive(Debug)]
pub(crate) struct GuestRoute {
    netlink: Netlink,
    index: u32,
    gateway: Ipv6Addr,
}

impl GuestRoute {
    /// By a netlink socket that was opened in the guest's namespace, for the interface with that index there.
    pub(crate) fn new(socket: OwnedFd, index: u32, gateway: Ipv6Addr) -> Self {
        Self {
            netlink: Netlink::of(socket),
            index,
            gateway,
        }
    }

    /// The host has got, or lost, its IPv6 default route.
    pub(crate) fn follow(&mut self, exists: bool) {
        let gateway = self.gateway.into();
        let done = match exists {
            true => self.netlink.add_default_route(self.index, gateway),
            false => self.netlink.remove_default_route(self.index, gateway),
        };
        match done {
            Ok(()) => tracing::debug!(exists, "the guest's IPv6 default route follows the host's"),
            // Somebody inside was faster.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EEXIST | libc::ESRCH)) => {}
            Err(error) => tracing::warn!("the guest's IPv6 default route cannot follow the host's: {error}"),
        }
    }
}
