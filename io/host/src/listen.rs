//! Sockets of published ports, which the supervisor opens and this worker accepts from or receives from.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pontoon_engine::config::{Protocol, Published, PublishedKey};
use pontoon_engine::{FlowId, Kind, Token, WorkerId};
use pontoon_event::{AcceptBackoff, Epoll};
use pontoon_sys::{Family, udp as udp_sys};
use rustix::io::Errno;
use rustix::net::{SocketAddrAny, sockopt};

use super::udp::UdpEndpoint;

/// The sockets of published ports. A port keeps its index in `places` for as long as it is published.
#[derive(Debug, Default)]
pub(super) struct PublishedSockets {
    places: Vec<Option<PublishedSocket>>,
    /// Indices of the empty places in `places`.
    free: BTreeSet<u32>,
    /// Index of each published port. A map is used as a guest may have tens of thousands of published ports.
    by_port: BTreeMap<PublishedKey, u32>,
    /// Indices of listeners with clients in their backlogs that no event will report: accept(2) has failed without a
    /// free descriptor, or the listener could not be registered again.
    unreported: Vec<u32>,
    /// Pause before the unreported listeners are registered again; a flow that closes its socket ends it early.
    accept_backoff: AcceptBackoff,
}

#[derive(Debug)]
struct PublishedSocket {
    published: Published,
    socket: PublishedFd,
}

#[derive(Debug)]
enum PublishedFd {
    /// A TCP listener, which all workers share.
    Listener(Arc<OwnedFd>),
    /// A UDP socket; `None` while a flow's endpoint owns it.
    Udp(Option<OwnedFd>),
}

impl PublishedSockets {
    /// Adds the socket of a published port and returns its index.
    pub(super) fn open(
        &mut self,
        epoll: &Epoll,
        published: Published,
        socket: Arc<OwnedFd>,
        coalesce: bool,
    ) -> io::Result<u32> {
        let end = u32::try_from(self.places.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let index = self.free.first().copied().unwrap_or(end);
        let socket = match published.protocol {
            Protocol::Tcp => {
                // Sockets that accept(2) returns inherit the option, see `stream.rs`.
                sockopt::set_socket_oobinline(&socket, true)?;
                epoll.add_shared(&socket, token(index))?;
                PublishedFd::Listener(socket)
            }
            Protocol::Udp => {
                let family = Family::of(published.host.ip());
                udp_sys::enable_recv_info(&socket, family)?;
                if published.host.ip().is_unspecified() {
                    udp_sys::enable_pktinfo(&socket, family)?;
                }
                if coalesce {
                    udp_sys::coalesce(&socket)?;
                }
                let socket = socket.try_clone()?;
                epoll.add(&socket, token(index))?;
                PublishedFd::Udp(Some(socket))
            }
        };
        let entry = Some(PublishedSocket { published, socket });
        match self.free.pop_first() {
            Some(free) => self.places[free as usize] = entry,
            None => self.places.push(entry),
        }
        self.by_port.insert(published.key(), index);
        Ok(index)
    }

    /// Closes the socket of a published port that no endpoint owns.
    pub(super) fn close(&mut self, epoll: &Epoll, index: u32) {
        let place = usize::try_from(index).ok();
        let entry = place.and_then(|place| self.places.get_mut(place)?.take());
        if let Some(PublishedSocket { published, .. }) = &entry {
            let port = published.key();
            if self.by_port.get(&port) == Some(&index) {
                self.by_port.remove(&port);
            }
            self.free.insert(index);
        }
        // Other processes have the socket open too, so that closing it here would not end its events.
        match entry.map(|entry| entry.socket) {
            Some(PublishedFd::Listener(socket)) => epoll.remove(&socket),
            Some(PublishedFd::Udp(Some(socket))) => epoll.remove(&socket),
            Some(PublishedFd::Udp(None)) | None => {}
        }
    }

    /// Returns the index of a published port.
    pub(super) fn find(&self, port: PublishedKey) -> Option<u32> {
        self.by_port.get(&port).copied()
    }

    /// Accepts a client from the listener at `index`. Connections that the client has aborted while they waited are
    /// skipped.
    pub(super) fn accept(
        &mut self,
        index: u32,
        mut accept: impl FnMut(BorrowedFd<'_>) -> Result<(OwnedFd, Option<SocketAddrAny>), Errno>,
    ) -> Result<(OwnedFd, Option<SocketAddrAny>), Errno> {
        let listener = self.listener(index)?.as_fd();
        loop {
            match accept(listener) {
                Err(error @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    self.report_later(index);
                    return Err(error);
                }
                Err(Errno::AGAIN) => return Err(Errno::AGAIN),
                // Errors of the new connection, not of the listener: accept(2), section "Error handling".
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

    /// Adds the listener at `index` to those that [`Self::retry_accept`] registers again after the pause.
    pub(super) fn report_later(&mut self, index: u32) {
        if !self.unreported.contains(&index) {
            self.unreported.push(index);
        }
        self.accept_backoff.begin();
    }

    /// Registers the unreported listeners again when the pause is over. Returns the longest time for which the worker
    /// may sleep.
    pub(super) fn retry_accept(&mut self, epoll: &Epoll) -> Option<Duration> {
        let mut backoff = std::mem::take(&mut self.accept_backoff);
        let sleep = backoff.sleep(|| self.register_again(epoll));
        self.accept_backoff = backoff;
        sleep
    }

    /// Registers the unreported listeners again at once, because a socket was closed and a descriptor is free.
    pub(super) fn rearm(&mut self, epoll: &Epoll) {
        if self.register_again(epoll).is_ok() {
            self.accept_backoff.end();
        }
    }

    /// Registers the unreported listeners with epoll again.
    ///
    /// # Errors
    /// The error of a listener that could not be registered; it remains unreported.
    fn register_again(&mut self, epoll: &Epoll) -> Result<(), Errno> {
        let mut outcome = Ok(());
        let mut unreported = std::mem::take(&mut self.unreported);
        unreported.retain(|index| {
            // A port that is no longer published is removed from the list.
            let Ok(listener) = self.listener(*index) else {
                return false;
            };
            let registered = epoll.renew_shared(listener, token(*index));
            outcome = outcome.and(registered);
            registered.is_err()
        });
        self.unreported = unreported;
        outcome
    }

    /// Returns the UDP socket at `index` as the endpoint of `flow`.
    pub(super) fn take_udp(&mut self, epoll: &Epoll, index: u32, flow: FlowId) -> Result<UdpEndpoint, Errno> {
        let entry = self.at_mut(index).ok_or(Errno::INVAL)?;
        let family = Family::of(entry.published.host.ip());
        let PublishedFd::Udp(held) = &mut entry.socket else {
            return Err(Errno::INVAL);
        };
        let fd = held.as_ref().ok_or(Errno::INVAL)?;
        // If this fails, the socket stays in its place; dropping it would end the publication of the port.
        epoll.rename(fd, flow.into())?;
        let fd = held.take().ok_or(Errno::INVAL)?;
        Ok(UdpEndpoint::published(fd, family, index))
    }

    /// Stores the socket of a closed endpoint in its place again, as the port is still published.
    pub(super) fn return_udp(&mut self, epoll: &Epoll, index: u32, fd: OwnedFd) {
        if let Some(PublishedSocket {
            socket: PublishedFd::Udp(held),
            ..
        }) = self.at_mut(index)
        {
            let _ = epoll.rename(&fd, token(index));
            *held = Some(fd);
        }
    }

    /// Returns true if the socket at `index` belongs to the guest's network namespace, and those that it accepts do.
    pub(super) fn is_in_guest(&self, index: u32) -> bool {
        let place = usize::try_from(index).ok();
        let entry = place.and_then(|place| self.places.get(place)?.as_ref());
        entry.is_some_and(|entry| entry.published.is_in_guest())
    }

    fn at_mut(&mut self, index: u32) -> Option<&mut PublishedSocket> {
        self.places.get_mut(usize::try_from(index).ok()?)?.as_mut()
    }

    fn listener(&self, index: u32) -> Result<&OwnedFd, Errno> {
        let place = usize::try_from(index).map_err(|_| Errno::INVAL)?;
        match self.places.get(place) {
            Some(Some(PublishedSocket {
                socket: PublishedFd::Listener(socket),
                ..
            })) => Ok(socket),
            _ => Err(Errno::INVAL),
        }
    }
}

fn token(index: u32) -> Token {
    FlowId {
        kind: Kind::Listener,
        worker: WorkerId(0),
        index,
        generation: 0,
    }
    .into()
}

#[cfg(test)]
mod tests;
