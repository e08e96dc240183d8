//! Stream socket that the supervisor has connected and passed with a verdict of the decider.

use std::os::fd::OwnedFd;

use pontoon_engine::FlowId;
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::KernelHost;
use super::stream::Stream;

impl KernelHost {
    /// Keeps a connected stream socket for the verdict that the engine handles next.
    pub fn give_stream(&mut self, socket: OwnedFd) {
        self.given = Some(socket);
    }

    /// Closes the socket of [`Self::give_stream`] if no connection uses it.
    pub fn withdraw_stream(&mut self) {
        self.given = None;
    }

    /// Returns the kept socket, which is non-blocking from now on and registered for events of `flow`.
    pub(super) fn adopt_stream(&mut self, flow: FlowId) -> Result<Stream, Errno> {
        let fd = self.given.take().ok_or(Errno::INVAL)?;
        let is_unix = sockopt::socket_domain(&fd)? == AddressFamily::UNIX;
        if !is_unix || sockopt::socket_type(&fd)? != SocketType::STREAM {
            return Err(Errno::INVAL);
        }
        ioctl_fionbio(&fd, true)?;
        // Out-of-band data stays in the stream, where a peek and the discard behind it count it alike. Without
        // CONFIG_AF_UNIX_OOB there is none.
        sockopt::set_socket_oobinline(&fd, true)?;
        let stream = Stream::unix(fd);
        self.epoll.add(&stream, flow.into())?;
        self.count_stream();
        Ok(stream)
    }
}
