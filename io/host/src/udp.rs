//! UDP sockets of the host, one for each UDP endpoint of the guest.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pontoon_engine::FlowId;
use pontoon_engine::host::{DatagramMeta, Received};
use pontoon_sys::message::{self, RecvMode};
use pontoon_sys::{Family, udp};
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, bind, connect, connect_unspec, socket_with, sockopt};
use vm_memory::VolatileSlice;

use super::KernelHost;
use super::properties::{self, DatagramOptions};

/// Size of the receive buffer in bytes that is requested; the kernel limits it to `net.core.rmem_max`.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Number of random ports that are tried for one endpoint before the range is considered full.
const TRIES: usize = 64;

/// The host socket of a UDP endpoint of the guest.
#[derive(Debug)]
pub struct UdpEndpoint {
    fd: OwnedFd,
    family: Family,
    properties: DatagramOptions,
    /// Index of the published port to which the socket belongs; `None` if the guest has opened the flow.
    published_index: Option<u32>,
}

/// A UDP socket that was opened for a future flow and is not bound to a port yet.
#[derive(Debug)]
pub(super) struct UnboundSocket {
    fd: OwnedFd,
    properties: DatagramOptions,
}

impl UnboundSocket {
    pub(super) fn new(family: Family, coalesce: bool) -> Result<Self, Errno> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = socket_with(family.domain(), SocketType::DGRAM, flags, None)?;
        if family == Family::V6 {
            sockopt::set_ipv6_v6only(&fd, true)?;
        }
        udp::enable_recv_info(&fd, family)?;
        sockopt::set_socket_recv_buffer_size(&fd, RECEIVE_BUFFER)?;
        if coalesce {
            udp::coalesce(&fd)?;
        }
        let mut properties = DatagramOptions::default();
        properties.apply(&fd, family, properties::USUAL)?;
        Ok(Self { fd, properties })
    }
}

impl KernelHost {
    pub(super) fn open_udp(&mut self, flow: FlowId, family_of: IpAddr) -> Result<UdpEndpoint, Errno> {
        let family = Family::of(family_of);
        let coalesce = self.can.udp_gro;
        let UnboundSocket { fd, properties } = self
            .endpoints
            .take(family, || UnboundSocket::new(family, coalesce))?;
        self.bind_outbound(&fd, family_of)?;
        let source = self.source(family_of).unwrap_or(family.unspecified());
        self.bind_somewhere(&fd, source)?;
        self.epoll.add(&fd, flow.into())?;
        Ok(UdpEndpoint {
            fd,
            family,
            properties,
            published_index: None,
        })
    }

    /// Binds the socket to a random ephemeral port. If the kernel chose the port at connect(2), it would release it at
    /// a disconnect.
    fn bind_somewhere(&self, fd: &OwnedFd, source: IpAddr) -> Result<(), Errno> {
        for _ in 0..TRIES {
            let port = self.ports.random()?;
            match bind(fd, &SocketAddr::from((source, port))) {
                Err(Errno::ADDRINUSE) => {}
                outcome => return outcome,
            }
        }
        Err(Errno::ADDRINUSE)
    }
}

impl UdpEndpoint {
    pub(super) fn published(fd: OwnedFd, family: Family, index: u32) -> Self {
        Self {
            fd,
            family,
            properties: DatagramOptions::default(),
            published_index: Some(index),
        }
    }

    /// Returns index and socket of a published port, as the socket is kept when the endpoint is closed.
    pub(super) fn into_published(self) -> Option<(u32, OwnedFd)> {
        self.published_index.map(|index| (index, self.fd))
    }

    pub(super) fn connect(&self, to: Option<SocketAddr>) -> Result<(), Errno> {
        match to {
            Some(to) => connect(&self.fd, &to),
            None => connect_unspec(&self.fd),
        }
    }

    pub(super) fn send(
        &mut self,
        to: Option<SocketAddr>,
        from: Option<IpAddr>,
        meta: DatagramMeta,
        segment: Option<u16>,
        parts: &[VolatileSlice<'_>],
    ) -> Result<(), Errno> {
        self.properties.apply(&self.fd, self.family, meta)?;
        let mut control = udp::SendControl::new();
        if let Some(size) = segment {
            udp::push_segment(&mut control, size);
        }
        if let Some(source) = from {
            udp::push_source(&mut control, source);
        }
        message::send(&self.fd, parts, to, control.bytes())?;
        Ok(())
    }

    pub(super) fn receive(&self, into: &[VolatileSlice<'_>]) -> Result<Received, Errno> {
        let mut control = [0; udp::CONTROL];
        let received = message::receive(&self.fd, into, &mut control, RecvMode::Next)?;
        if received.truncated {
            return Err(Errno::MSGSIZE);
        }
        let beside = udp::Ancillary::decode(control.get(..received.control_len).unwrap_or_default());
        Ok(Received {
            len: received.len,
            stride: beside.stride.filter(|stride| *stride > 0).unwrap_or(received.len),
            from: received.address.ok_or(Errno::INVAL)?,
            to: beside.to,
            meta: properties::received(&beside),
        })
    }
}

impl AsFd for UdpEndpoint {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
