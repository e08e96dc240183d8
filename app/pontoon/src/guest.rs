//! The guest's side of a network.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use pontoon_link::{Attachment, FrontEndSocket, Source, TapQueues};
use pontoon_sys::disabled::Disabled;
use pontoon_sys::tun::{self, TapOffload};
use rustix::net::{SocketType, sockopt};

use crate::error::{Context as _, Error};

/// The link to a guest, over a descriptor that the program has opened.
///
/// Sockets are connected to the guest, or listen for it. A listening socket serves one guest at a time: while one is connected,
/// others are refused, and when it disconnects its flows are closed. A network whose socket is connected ends when its guest
/// disconnects ([`ErrorKind::Ended`](crate::ErrorKind::Ended)).
///
/// Descriptors are set to non-blocking, also for other processes that share them.
pub struct Guest {
    pub(crate) attachment: Attachment,
}

impl Guest {
    fn of(attachment: Attachment) -> Self {
        Self { attachment }
    }

    /// Returns the link over a SOCK_STREAM socket on which each frame is preceded by its length, 32 bits big endian: QEMU's
    /// `-netdev stream`, libkrun, clients of passt.
    ///
    /// # Errors
    /// The descriptor is not a socket of that type.
    pub fn stream(socket: OwnedFd) -> Result<Self, Error> {
        let source = source(socket, &[SocketType::STREAM])?;
        Ok(Self::of(Attachment::Stream(source)))
    }

    /// Returns the link over a SOCK_SEQPACKET or SOCK_DGRAM socket on which each message is a frame: Solo5's tenders, vfkit.
    ///
    /// # Errors
    /// The descriptor is not a socket of these types.
    pub fn packet(socket: OwnedFd) -> Result<Self, Error> {
        let source = source(socket, &[SocketType::SEQPACKET, SocketType::DGRAM])?;
        Ok(Self::of(Attachment::Packet(source)))
    }

    /// Returns the link over a SOCK_STREAM socket on which a front-end uses the vhost-user protocol: QEMU, Cloud Hypervisor.
    /// `queues` is the number of pairs of queues, each with a thread of the library, from 1 to 16.
    ///
    /// # Errors
    /// The descriptor is not a socket of that type, or the number is out of range.
    pub fn vhost_user(socket: OwnedFd, queues: u8) -> Result<Self, Error> {
        if !(1..=16).contains(&queues) {
            return Err(Error::invalid("the number of queues is not between 1 and 16"));
        }
        let source = source(socket, &[SocketType::STREAM])?;
        let workers = queues;
        Ok(Self::of(Attachment::VhostUser(FrontEndSocket {
            source,
            workers,
        })))
    }

    /// Returns the link over a queue of a tap interface (`IFF_TAP | IFF_NO_PI`, no multi-queue), in any network namespace. The
    /// program, or its guest, configures and enables the interface.
    ///
    /// With `IFF_VNET_HDR`, checksums and segmentation are offloaded, which makes bulk transfers several times as fast; the
    /// library sets the size of the header and the offloads.
    ///
    /// # Errors
    /// The descriptor is not a queue of such an interface.
    pub fn tap(queue: OwnedFd) -> Result<Self, Error> {
        let what = "cannot use the tap";
        let disabled = Disabled::from_env().context(what)?;
        let offload = tun::adopt(queue.as_fd(), TapOffload::all_but(&disabled)).context(what)?;
        Ok(Self::of(Attachment::Tap(TapQueues {
            queues: vec![queue],
            offload,
            vhost: None,
        })))
    }

    /// Opens a queue of the tap interface `name` in the calling thread's network namespace, with `IFF_VNET_HDR`, for
    /// [`Self::tap`], also in another process. The interface is created if it does not exist, and is then deleted with the last
    /// descriptor of the queue.
    ///
    /// # Errors
    /// [`ErrorKind::Host`](crate::ErrorKind::Host): `/dev/net/tun` cannot be opened, or the caller has no CAP_NET_ADMIN in the
    /// namespace. [`ErrorKind::InvalidOption`](crate::ErrorKind::InvalidOption): no interface can have that name.
    pub fn open_tap(name: &str) -> Result<OwnedFd, Error> {
        let what = "cannot open the tap";
        let disabled = Disabled::from_env().context(what)?;
        let tap = tun::open(name, TapOffload::all_but(&disabled), 1).context(what)?;
        tap.queues.into_iter().next().ok_or_else(|| Error::invalid(what))
    }
}

/// Returns a socket that listens or is connected, if it has one of the types.
fn source(socket: OwnedFd, types: &[SocketType]) -> Result<Source, Error> {
    match sockopt::socket_type(&socket) {
        Ok(found) if types.contains(&found) => {}
        Ok(_) => return Err(Error::invalid("the guest's socket has another type")),
        Err(_) => return Err(Error::invalid("the guest's descriptor is not a socket")),
    }
    Ok(match sockopt::socket_acceptconn(&socket) {
        Ok(true) => Source::Listening {
            listener: socket,
            one_off: false,
        },
        Ok(false) | Err(_) => Source::Connected(socket),
    })
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.attachment.fmt(f)
    }
}
