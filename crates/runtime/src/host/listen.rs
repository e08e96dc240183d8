//! Doors: the sockets of published ports, opened by the supervisor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pontoon_engine::config::Published;
use pontoon_engine::{FlowId, Kind, Token, WorkerId};
use pontoon_sys::{Family, udp as udp_sys};
use rustix::io::Errno;
use rustix::net::SocketAddrAny;

use super::event::Epoll;
use super::is_udp;
use super::udp::Endpoint;

/// Published ports' sockets.
#[derive(Debug)]
pub(super) struct Doors {
    /// By the configuration's order; `None` while an endpoint has it, and for a UDP port that is another worker's.
    sockets: Vec<Option<OwnedFd>>,
    published: Vec<Published>,
    /// Listeners with connections waiting for a descriptor: nothing will be told about those again.
    starved: Vec<u32>,
}

impl Doors {
    pub(super) fn new(
        epoll: &Epoll,
        published: &[Published],
        sockets: Vec<Option<OwnedFd>>,
        coalesce: bool,
    ) -> io::Result<Self> {
        if published.len() != sockets.len() {
            let text = format!(
                "{} published ports with {} sockets",
                published.len(),
                sockets.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        for (index, (socket, published)) in (0..).zip(sockets.iter().zip(published)) {
            let Some(socket) = socket else { continue };
            rustix::io::ioctl_fionbio(socket, true)?;
            if is_udp(published) {
                let family = Family::of(published.host.ip());
                udp_sys::tell_all(socket, family)?;
                if published.host.ip().is_unspecified() {
                    udp_sys::tell_destination(socket, family)?;
                }
                if coalesce {
                    udp_sys::coalesce(socket)?;
                }
                epoll.add(socket, door(index))?;
            } else {
                epoll.add_shared(socket, door(index))?;
            }
        }
        let starved = Vec::with_capacity(sockets.len());
        Ok(Self {
            sockets,
            published: published.to_vec(),
            starved,
        })
    }

    /// Accepts from the listener at `index`. A connection that was broken off while it waited is passed over.
    pub(super) fn accept(
        &mut self,
        index: u32,
        mut accept: impl FnMut(BorrowedFd<'_>) -> Result<(OwnedFd, Option<SocketAddrAny>), Errno>,
    ) -> Result<(OwnedFd, Option<SocketAddrAny>), Errno> {
        let listener = self.socket(index)?.as_fd();
        loop {
            match accept(listener) {
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    if !self.starved.contains(&index) {
                        self.starved.push(index);
                    }
                    return Err(error);
                }
                Err(Errno::AGAIN) => return Err(Errno::AGAIN),
                // Errors of the connection, not of the listener: accept(2), "Error handling".
                Err(
                    Errno::CONNABORTED
                    | Errno::PROTO
                    | Errno::NOPROTOOPT
                    | Errno::NETDOWN
                    | Errno::NETUNREACH
                    | Errno::HOSTDOWN
                    | Errno::HOSTUNREACH
                    | Errno::OPNOTSUPP
                    | Errno::INTR,
                ) => {}
                answer => return answer,
            }
        }
    }

    /// A descriptor is free: asks again for what starved listeners hold.
    pub(super) fn rearm(&mut self, epoll: &Epoll) {
        while let Some(index) = self.starved.pop() {
            if let Ok(listener) = self.socket(index) {
                let _ = epoll.renew_shared(listener, door(index));
            }
        }
    }

    /// Makes the UDP socket at `index` the endpoint of `flow`.
    pub(super) fn take_udp(&mut self, epoll: &Epoll, index: u32, flow: FlowId) -> Result<Endpoint, Errno> {
        let place = usize::try_from(index).map_err(|_| Errno::INVAL)?;
        let published = self
            .published
            .get(place)
            .filter(|published| is_udp(published))
            .ok_or(Errno::INVAL)?;
        let family = Family::of(published.host.ip());
        let fd = self.sockets[place].take().ok_or(Errno::INVAL)?;
        epoll.rename(&fd, flow.into())?;
        Ok(Endpoint::published(fd, family, index))
    }

    /// Takes an endpoint's socket back: the port stays published.
    pub(super) fn give_back(&mut self, epoll: &Epoll, index: u32, fd: OwnedFd) {
        if let Some(place) = usize::try_from(index)
            .ok()
            .and_then(|place| self.sockets.get_mut(place))
        {
            let _ = epoll.rename(&fd, door(index));
            *place = Some(fd);
        }
    }

    fn socket(&self, index: u32) -> Result<&OwnedFd, Errno> {
        let place = usize::try_from(index).map_err(|_| Errno::INVAL)?;
        self.sockets
            .get(place)
            .and_then(Option::as_ref)
            .ok_or(Errno::INVAL)
    }
}

fn door(index: u32) -> Token {
    FlowId {
        kind: Kind::Listener,
        worker: WorkerId(0),
        index,
        generation: 0,
    }
    .into()
}
