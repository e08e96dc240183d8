//! Attachment of a stream or packet link to an engine: the socket that the supervisor has opened.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use pontoon_sys::context;

use super::{Framing, Socket, Source};
use crate::attachment::{Attach, LinkServer};

impl<F: Framing> Attach for Socket<F> {
    type Endpoint = Source;

    fn workers(_: &Source) -> u8 {
        1
    }

    fn descriptors(source: &Source) -> Vec<BorrowedFd<'_>> {
        vec![source.as_fd()]
    }

    fn try_clone(source: &Source) -> io::Result<Source> {
        source.try_clone()
    }

    /// After a crash the position of the next frame in a connected stream is unknown.
    fn outlives_engine(source: &Source) -> bool {
        F::PREFIX == 0 || !matches!(source, Source::Connected(_))
    }

    fn serve(source: Source, mtu: u16, server: impl LinkServer) -> io::Result<()> {
        let link =
            Self::new(source, mtu).map_err(|error| context("cannot use the guest's socket", &error))?;
        server.serve(vec![link])
    }
}
