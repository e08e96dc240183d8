//! Sockets of the guest's network namespace. A socket belongs to the namespace in which it was created, so the socket helper of
//! the supervisor opens them, ahead of time, and sends them over a channel.
//!
//! Nothing waits for the helper: if no socket is left, the caller forwards the connection over the link.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use pontoon_engine::FlowId;
use pontoon_engine::host::Connect;
use pontoon_event::Edge;
use pontoon_sys::{Family, netns, seqpacket};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::net::{SocketType, getsockname, ipproto, sockopt};
use tracing::warn;

use super::stream::{Stream, begin_connect};
use super::{KernelHost, index};

/// Maximum number of sockets of an address family that wait for a connection. Of 64 clients that connect at once, all find one;
/// a turn accepts no more.
const SPARE: usize = 64;

/// Number of sockets of a request, which is sent when so many are missing.
const REQUEST: usize = 32;

/// Sockets of the guest's network namespace that wait for a connection, and the channel to the helper that opens them.
#[derive(Debug)]
pub(super) struct GuestSockets {
    /// Cookie of the guest's network namespace.
    cookie: u64,
    /// Channel to the helper, which is non-blocking; `None` after it has violated the protocol or exited.
    helper: Option<Arc<OwnedFd>>,
    spare: [ArrayVec<OwnedFd, SPARE>; 2],
    /// Number of requested sockets that were not received yet.
    requested: [usize; 2],
    /// True if sockets of the address family are needed.
    wanted: [bool; 2],
    /// Time until which no connection is attempted, because the guest's network namespace has no free port, or a process no
    /// free descriptor.
    paused_until: Option<Instant>,
}

/// Time for which no connection is attempted after a port or descriptor was missing.
const PAUSE: Duration = Duration::from_secs(1);

/// Time for which no connection is attempted after a client has waited in vain for a socket, unless one arrives.
const LATE_PAUSE: Duration = Duration::from_secs(60);

impl GuestSockets {
    fn new(cookie: u64, helper: Arc<OwnedFd>) -> Self {
        Self {
            cookie,
            helper: Some(helper),
            spare: [ArrayVec::new(), ArrayVec::new()],
            requested: [0; 2],
            wanted: [false; 2],
            paused_until: None,
        }
    }

    /// Returns a socket that is not connected.
    ///
    /// # Errors
    /// EAGAIN: there is none at present, and some were requested. EINVAL: the helper does not run.
    fn take(&mut self, family: Family) -> Result<OwnedFd, Errno> {
        self.wanted[index(family)] = true;
        // The worker may have slept since the sockets were sent.
        if self.spare[index(family)].is_empty() {
            self.receive_all();
        }
        match self.spare[index(family)].pop() {
            Some(socket) => Ok(socket),
            None if self.helper.is_some() => {
                self.refill();
                Err(Errno::AGAIN)
            }
            None => Err(Errno::INVAL),
        }
    }

    /// Forwards clients over the link for some time.
    fn pause(&mut self, time: Duration) {
        self.paused_until = Some(Instant::now() + time);
    }

    /// Receives the sockets that the helper has sent.
    fn receive_all(&mut self) {
        let Some(helper) = self.helper.clone() else {
            return;
        };
        while self.requested.iter().any(|requested| *requested > 0) {
            match self.receive(&helper) {
                Ok(()) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => {
                    // The helper exits when the channel is closed, and the supervisor starts another one.
                    if error != Errno::PIPE {
                        warn!("closing the channel to the socket helper: {error}");
                    }
                    self.helper = None;
                    return;
                }
            }
        }
    }

    /// Receives sockets, and requests further ones.
    fn refill(&mut self) {
        self.receive_all();
        let Some(helper) = self.helper.as_ref().filter(|_| self.paused_until.is_none()) else {
            return;
        };
        for family in [Family::V4, Family::V6] {
            let place = index(family);
            let missing = SPARE - self.spare[place].len() - self.requested[place];
            if self.wanted[place] && missing >= REQUEST {
                let request = [family_number(family), REQUEST as u8];
                // Without room in the channel or without memory, the next turn sends the request.
                if seqpacket::send(helper, &request, &[]).is_ok() {
                    self.requested[place] += REQUEST;
                }
            }
        }
    }

    /// Receives a message: an address family, and sockets of this family. It has fewer of them than were requested if a process
    /// had no free descriptor.
    fn receive(&mut self, helper: &OwnedFd) -> Result<(), Errno> {
        let mut buffer = [0; 2];
        let message = match seqpacket::receive_what_fits(helper, &mut buffer) {
            Ok(Some(message)) => message,
            Ok(None) => return Err(Errno::PIPE),
            Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::PROTO)),
        };
        let families = [Family::V4, Family::V6];
        let named = |family: &Family| buffer[..message.len] == [family_number(*family)];
        let Some(family) = families.into_iter().find(named) else {
            return Err(Errno::PROTO);
        };
        self.requested[index(family)] = self.requested[index(family)].saturating_sub(REQUEST);
        if message.descriptors.is_empty() {
            self.pause(PAUSE);
        } else {
            self.paused_until = None;
        }
        for socket in message.descriptors {
            check(&socket, family, self.cookie)?;
            // More sockets than were requested are closed.
            let _ = self.spare[index(family)].try_push(socket);
        }
        Ok(())
    }
}

/// Returns the number of an address family in messages.
const fn family_number(family: Family) -> u8 {
    match family {
        Family::V4 => 4,
        Family::V6 => 6,
    }
}

/// Checks a socket of the helper. A process that shares a descriptor can make it blocking at any time, but only the helper could
/// have kept a copy. A socket that is connected already is refused by connect(2).
///
/// # Errors
/// `PROTO`: the descriptor is no non-blocking TCP socket of the family in the network namespace with this cookie.
fn check(socket: &OwnedFd, family: Family, cookie: u64) -> Result<(), Errno> {
    let is_valid = sockopt::socket_domain(socket)? == family.domain()
        && sockopt::socket_type(socket)? == SocketType::STREAM
        && sockopt::socket_protocol(socket)? == Some(ipproto::TCP)
        && netns::cookie(socket)? == cookie
        && fcntl_getfl(socket)?.contains(OFlags::NONBLOCK);
    is_valid.then_some(()).ok_or(Errno::PROTO)
}

impl KernelHost {
    /// Sets the channel to the helper in the guest's network namespace, which has this cookie, and requests sockets of the
    /// families of the published ports. Sockets of an earlier helper are closed.
    pub fn set_socket_helper(&mut self, cookie: u64, helper: Arc<OwnedFd>) {
        let wanted = self.guest.take().map_or([false; 2], |guest| guest.wanted);
        // Without the event, clients that wait for a socket are forwarded over the link after some seconds.
        let _ = self.epoll.add(&helper, Edge::SocketHelper.token());
        let mut guest = GuestSockets::new(cookie, helper);
        guest.wanted = wanted;
        guest.refill();
        self.guest = Some(guest);
    }

    /// Requests sockets of the guest's network namespace for clients of a published port.
    pub(super) fn want_guest_sockets(&mut self, family: Family) {
        if let Some(guest) = &mut self.guest {
            guest.wanted[index(family)] = true;
            guest.refill();
        }
    }

    /// Replaces the sockets that were taken for connections.
    pub(super) fn refill_guest_sockets(&mut self) {
        if let Some(guest) = &mut self.guest {
            guest.refill();
        }
    }

    /// Forwards clients over the link for some time, because no socket of the helper has arrived in time.
    pub(super) fn pause_guest_sockets(&mut self) {
        if let Some(guest) = &mut self.guest {
            guest.pause(LATE_PAUSE);
        }
    }

    /// Connects a socket of the guest's network namespace to an address there.
    pub(super) fn open_guest_stream(
        &mut self,
        flow: FlowId,
        to: SocketAddr,
    ) -> Result<(Stream, Connect), Errno> {
        let family = Family::of(to.ip());
        let guest = self.guest.as_mut().ok_or(Errno::INVAL)?;
        guest.paused_until.take_if(|until| *until <= Instant::now());
        if guest.paused_until.is_some() {
            return Err(Errno::INVAL);
        }
        let socket = guest.take(family)?;
        let connect = begin_connect(socket.as_fd(), to).inspect_err(|error| {
            if *error == Errno::ADDRNOTAVAIL {
                // The kernel has tried all ports of the namespace, which takes milliseconds.
                guest.pause(PAUSE);
            }
        })?;
        // The guest may have removed its address; the connection then leaves by its interface, from another address. Or the kernel
        // has chosen the destination as the socket's own port, so that it is connected to itself (RFC 9293 section 3.5).
        let own = getsockname(&socket)?;
        match SocketAddr::try_from(own) {
            Ok(own) if own.ip() == to.ip() && own.port() != to.port() => {}
            _ => return Err(Errno::ADDRNOTAVAIL),
        }
        let stream = Stream::of_guest(socket);
        self.epoll.add(&stream, flow.into())?;
        Ok((stream, connect))
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use pontoon_sys::seqpacket::pair;
    use rustix::io::ioctl_fionbio;
    use rustix::net::{AddressFamily, SocketFlags, socket_with};

    use super::*;

    fn open(family: AddressFamily, kind: SocketType, flags: SocketFlags) -> OwnedFd {
        socket_with(family, kind, flags | SocketFlags::CLOEXEC, None).unwrap()
    }

    fn fresh(family: AddressFamily) -> OwnedFd {
        open(family, SocketType::STREAM, SocketFlags::NONBLOCK)
    }

    #[test]
    fn only_unconnected_nonblocking_tcp_sockets_of_the_namespace_are_accepted() {
        let good = fresh(AddressFamily::INET);
        let cookie = netns::cookie(&good).unwrap();
        assert_eq!(check(&good, Family::V4, cookie), Ok(()));
        assert_eq!(check(&good, Family::V4, cookie + 1), Err(Errno::PROTO));
        assert_eq!(check(&good, Family::V6, cookie), Err(Errno::PROTO));
        let blocking = open(AddressFamily::INET, SocketType::STREAM, SocketFlags::empty());
        assert_eq!(check(&blocking, Family::V4, cookie), Err(Errno::PROTO));
        let datagrams = open(AddressFamily::INET, SocketType::DGRAM, SocketFlags::NONBLOCK);
        assert_eq!(check(&datagrams, Family::V4, cookie), Err(Errno::PROTO));
        let local = fresh(AddressFamily::UNIX);
        assert_eq!(check(&local, Family::V4, cookie), Err(Errno::PROTO));
        let file = std::fs::File::open("/dev/null").unwrap().into();
        assert_eq!(check(&file, Family::V4, cookie), Err(Errno::NOTSOCK));
    }

    #[test]
    fn used_sockets_of_the_helper_are_refused() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let to = server.local_addr().unwrap();
        let connected = fresh(AddressFamily::INET);
        assert!(begin_connect(connected.as_fd(), to).is_ok());
        assert_eq!(begin_connect(connected.as_fd(), to), Err(Errno::ISCONN));
        let listening = fresh(AddressFamily::INET);
        rustix::net::listen(&listening, 1).unwrap();
        assert_eq!(begin_connect(listening.as_fd(), to), Err(Errno::ISCONN));
    }

    #[test]
    fn sockets_are_requested_once_and_an_invalid_one_closes_the_channel() {
        let (ours, theirs) = pair().unwrap();
        ioctl_fionbio(&ours, true).unwrap();
        let cookie = netns::cookie(fresh(AddressFamily::INET)).unwrap();
        let mut guest = GuestSockets::new(cookie, Arc::new(ours));
        guest.refill();
        assert_eq!(guest.take(Family::V4).unwrap_err(), Errno::AGAIN);
        guest.refill();
        guest.refill();
        let mut buffer = [0; 8];
        for _ in 0..SPARE / REQUEST {
            let request = seqpacket::receive(&theirs, &mut buffer).unwrap().unwrap();
            assert_eq!(buffer[..request.len], [4, REQUEST as u8]);
        }
        let good = fresh(AddressFamily::INET);
        seqpacket::send(&theirs, &[4], &[good.as_fd(), good.as_fd()]).unwrap();
        guest.refill();
        assert_eq!(guest.spare[0].len(), 2);
        let taken = guest.take(Family::V4).unwrap();
        assert_ne!(taken.as_raw_fd(), good.as_raw_fd());
        // A socket of another type.
        let wrong = open(AddressFamily::INET, SocketType::DGRAM, SocketFlags::NONBLOCK);
        seqpacket::send(&theirs, &[4], &[wrong.as_fd()]).unwrap();
        guest.refill();
        assert!(guest.helper.is_none());
        guest.spare[0].clear();
        assert_eq!(guest.take(Family::V4).unwrap_err(), Errno::INVAL);
        assert!(seqpacket::send(&theirs, &[4], &[]).is_err());
    }
}
