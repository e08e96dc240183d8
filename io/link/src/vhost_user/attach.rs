//! Attachment of a vhost-user link to an engine: the socket that the supervisor has opened.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use pontoon_sys::context;

use super::VhostUser;
use crate::attachment::{Attach, LinkServer};
use crate::guest_listener::Source;

/// A SOCK_STREAM socket on which a front-end uses the vhost-user protocol.
#[derive(Debug)]
pub struct FrontEndSocket {
    /// The listening or connected socket.
    pub source: Source,
    /// Number of workers, which is the number of queue pairs that the device offers.
    pub workers: u8,
}

impl Attach for VhostUser {
    type Endpoint = FrontEndSocket;

    fn workers(socket: &FrontEndSocket) -> u8 {
        socket.workers
    }

    fn descriptors(socket: &FrontEndSocket) -> Vec<BorrowedFd<'_>> {
        vec![socket.source.as_fd()]
    }

    fn try_clone(socket: &FrontEndSocket) -> io::Result<FrontEndSocket> {
        Ok(FrontEndSocket {
            source: socket.source.try_clone()?,
            workers: socket.workers,
        })
    }

    /// After a crash the memory layout that the machine has sent on a connected socket is unknown.
    fn outlives_engine(socket: &FrontEndSocket) -> bool {
        !matches!(socket.source, Source::Connected(_))
    }

    fn serve(socket: FrontEndSocket, mtu: u16, server: impl LinkServer) -> io::Result<()> {
        let links = super::open(socket.source, socket.workers, mtu)
            .map_err(|error| context("cannot use the guest's socket", &error))?;
        server.serve(links)
    }
}
