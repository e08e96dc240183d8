//! Attachment of a tap link to an engine: the tap's queues that the supervisor has opened, with or without vhost-net.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pontoon_sys::context;
use pontoon_sys::tun::TapOffload;
use tracing::info;

use super::Tap;
use crate::attachment::{Attach, LinkServer};
use crate::vhost_net::{VhostNet, VhostPair};

/// The queues of a tap, and how the engine uses them.
#[derive(Debug)]
pub struct TapQueues {
    /// File descriptors of the queues, one for each worker and at least one: `IFF_TAP | IFF_NO_PI`, with `IFF_VNET_HDR`
    /// and TUNSETOFFLOAD if `offload` has metadata, and with `IFF_MULTI_QUEUE` if there are several.
    pub queues: Vec<OwnedFd>,
    /// Offloads that were negotiated with the kernel.
    pub offload: TapOffload,
    /// Use of the kernel's vhost-net for the tap's frames; `None` if frames are read from and written to the tap.
    pub vhost: Option<Vhost>,
}

/// Requirement to use `/dev/vhost-net`. The engine process opens the device itself, because a device belongs to the
/// process that has set its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vhost {
    /// vhost-net is used if it works; otherwise the tap is used without it.
    Wanted,
    /// vhost-net is used, and it is an error if it does not work.
    Required,
}

impl Attach for Tap {
    type Endpoint = TapQueues;

    fn workers(tap: &TapQueues) -> u8 {
        // More than 255 queues are refused when the queues are opened.
        tap.queues.len().try_into().unwrap_or(u8::MAX)
    }

    fn descriptors(tap: &TapQueues) -> Vec<BorrowedFd<'_>> {
        tap.queues.iter().map(AsFd::as_fd).collect()
    }

    fn try_clone(tap: &TapQueues) -> io::Result<TapQueues> {
        let queues: io::Result<_> = tap.queues.iter().map(OwnedFd::try_clone).collect();
        Ok(TapQueues {
            queues: queues?,
            offload: tap.offload,
            vhost: tap.vhost,
        })
    }

    fn outlives_engine(_: &TapQueues) -> bool {
        true
    }

    fn serve(tap: TapQueues, mtu: u16, server: impl LinkServer) -> io::Result<()> {
        let open = |queue| Self::new(queue, tap.offload, mtu);
        let taps: io::Result<Vec<_>> = tap.queues.into_iter().map(open).collect();
        let taps = taps.map_err(|error| context("cannot use the tap", &error))?;
        let Some(pairs) = vhost_pairs(&taps, tap.vhost)? else {
            return server.serve(taps);
        };
        let links = taps.into_iter().zip(pairs);
        let links = links.map(|(tap, pair)| VhostNet::new(tap, pair)).collect();
        server.serve(links)
    }
}

/// Starts a vhost-net device for each tap. Returns `None` if the taps are used without vhost-net.
fn vhost_pairs(taps: &[Tap], vhost: Option<Vhost>) -> io::Result<Option<Vec<VhostPair>>> {
    let Some(vhost) = vhost else {
        return Ok(None);
    };
    let pairs: io::Result<Vec<_>> = taps.iter().map(VhostPair::start).collect();
    match (pairs, vhost) {
        (Ok(pairs), _) => Ok(Some(pairs)),
        (Err(error), Vhost::Required) => Err(context("cannot set up vhost-net", &error)),
        (Err(error), Vhost::Wanted) => {
            info!("cannot set up vhost-net ({error}); the tap is used without it");
            Ok(None)
        }
    }
}
