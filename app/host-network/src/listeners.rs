//! Reads the ports on which programs in a network namespace listen, by `NETLINK_SOCK_DIAG` (sock_diag(7)).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd};

use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use netlink_sys::{Socket, SocketAddr};
use pontoon_engine::config::Protocol;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use crate::publish::port_range::PortRange;

/// Set of ports on which programs listen.
#[derive(Clone, Debug)]
pub struct ListenerSet {
    /// One bit for each port, for each protocol and family of [`QUERIES`].
    bits: Box<[[u64; 1024]; 4]>,
}

/// Reader of the sockets that listen in the network namespace in which its netlink socket was opened.
#[derive(Debug)]
pub struct ListenerReader {
    socket: OwnedFd,
    sequence: u32,
    /// The query in [`QUERIES`] whose reply is being read.
    query: Option<usize>,
    /// True if the socket may have messages of a reply that was not read to its end.
    is_interrupted: bool,
    found: ListenerSet,
    buffer: Vec<u8>,
}

/// Requests of one scan: the protocol, and true for IPv6.
const QUERIES: [(Protocol, bool); 4] = [
    (Protocol::Tcp, false),
    (Protocol::Tcp, true),
    (Protocol::Udp, false),
    (Protocol::Udp, true),
];

/// Limit on the messages that are read in one call of [`ListenerReader::read`], so that a namespace with very many
/// sockets does not keep the caller busy. The kernel puts some hundred sockets into one message.
const MOST_MESSAGES: usize = 32;

/// Size of the buffer for a message. The kernel fills messages up to the size of the reader's buffer, at most 32 KiB.
const BUFFER: usize = 32 << 10;

impl Default for ListenerSet {
    fn default() -> Self {
        Self::new()
    }
}

impl ListenerSet {
    pub fn new() -> Self {
        Self {
            bits: Box::new([[0; 1024]; 4]),
        }
    }

    pub fn insert(&mut self, protocol: Protocol, is_v6: bool, port: u16) {
        self.bits[index(protocol, is_v6)][usize::from(port) / 64] |= 1 << (port % 64);
    }

    /// Removes the ports of a range, in both families.
    pub fn remove(&mut self, protocol: Protocol, range: PortRange) {
        for port in range.first..=range.last {
            for is_v6 in [false, true] {
                self.bits[index(protocol, is_v6)][usize::from(port) / 64] &= !(1 << (port % 64));
            }
        }
    }

    pub fn contains(&self, protocol: Protocol, is_v6: bool, port: u16) -> bool {
        self.bits[index(protocol, is_v6)][usize::from(port) / 64] & (1 << (port % 64)) != 0
    }

    /// Returns the ports of a protocol on which programs listen in either family, in ascending order.
    pub fn ports(&self, protocol: Protocol) -> impl Iterator<Item = u16> {
        let [v4, v6] = [false, true].map(|is_v6| &self.bits[index(protocol, is_v6)]);
        (0..1024_u16).flat_map(move |word| {
            let set = v4[usize::from(word)] | v6[usize::from(word)];
            (0..64)
                .filter(move |bit| set & (1 << bit) != 0)
                .map(move |bit| word * 64 + bit)
        })
    }
}

fn index(protocol: Protocol, is_v6: bool) -> usize {
    usize::from(protocol == Protocol::Udp) * 2 + usize::from(is_v6)
}

impl ListenerReader {
    /// Opens the netlink socket in the caller's network namespace.
    ///
    /// # Errors
    /// The kernel has no support for `NETLINK_SOCK_DIAG`, or no descriptor is free.
    pub fn open_socket() -> io::Result<OwnedFd> {
        let socket = Socket::new(NETLINK_SOCK_DIAG)?;
        // A process with CAP_NET_ADMIN in the namespace may send to any socket there that is not connected.
        socket.connect(&SocketAddr::new(0, 0))?;
        socket.set_non_blocking(true)?;
        // SAFETY: the descriptor is open, and has no other owner once it is taken out of its owner.
        Ok(unsafe { OwnedFd::from_raw_fd(socket.into_raw_fd()) })
    }

    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            sequence: 0,
            query: None,
            is_interrupted: false,
            found: ListenerSet::new(),
            buffer: vec![0; BUFFER],
        }
    }

    /// Reads the listening sockets for whose local address `reaches` returns true. Returns `None` if the replies are
    /// longer than one call reads; the next call continues.
    ///
    /// # Errors
    /// The kernel refuses the request or has lost its reply; the next call begins again.
    pub fn read(&mut self, reaches: &dyn Fn(IpAddr) -> bool) -> io::Result<Option<ListenerSet>> {
        let read = self.read_some(reaches);
        if read.is_err() {
            self.query = None;
            self.is_interrupted = true;
        }
        read
    }

    /// Reads the rest of a reply that was interrupted by an error, without which the kernel refuses the next request (EBUSY).
    /// Returns true if there is no more of it.
    fn drain(&mut self) -> bool {
        for _ in 0..MOST_MESSAGES {
            // An error other than EAGAIN, such as ENOBUFS, precedes further messages.
            if recv(self.socket.as_fd(), &mut self.buffer[..], RecvFlags::DONTWAIT) == Err(Errno::AGAIN) {
                return true;
            }
        }
        false
    }

    fn read_some(&mut self, reaches: &dyn Fn(IpAddr) -> bool) -> io::Result<Option<ListenerSet>> {
        if self.is_interrupted {
            self.is_interrupted = !self.drain();
            if self.is_interrupted {
                return Ok(None);
            }
        }
        if self.query.is_none() {
            self.found = ListenerSet::new();
            self.ask(0)?;
        }
        for _ in 0..MOST_MESSAGES {
            let Some(query) = self.query else { break };
            let len = match recv(self.socket.as_fd(), &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((len, _)) => len,
                Err(error) => return Err(error.into()),
            };
            let (protocol, _) = QUERIES[query];
            let buffer = std::mem::take(&mut self.buffer);
            let parsed = parse(&buffer[..len.min(BUFFER)], self.sequence, |socket| {
                self.found.add(protocol, socket, reaches);
            });
            self.buffer = buffer;
            if parsed? == Reply::Done {
                match query + 1 {
                    next if next < QUERIES.len() => self.ask(next)?,
                    _ => {
                        self.query = None;
                        return Ok(Some(std::mem::take(&mut self.found)));
                    }
                }
            }
        }
        Ok(None)
    }

    fn ask(&mut self, query: usize) -> io::Result<()> {
        let (protocol, is_v6) = QUERIES[query];
        self.sequence = self.sequence.wrapping_add(1);
        let request = request(protocol, is_v6, self.sequence);
        rustix::net::send(&self.socket, &request, rustix::net::SendFlags::DONTWAIT)?;
        self.query = Some(query);
        Ok(())
    }
}

/// Local end of a socket in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BoundSocket {
    address: IpAddr,
    port: u16,
    /// True if an IPv6 socket does not receive from IPv4 senders.
    v6_only: bool,
}

impl ListenerSet {
    fn add(&mut self, protocol: Protocol, socket: BoundSocket, reaches: &dyn Fn(IpAddr) -> bool) {
        if socket.port == 0 || !reaches(socket.address) {
            return;
        }
        self.insert(protocol, socket.address.is_ipv6(), socket.port);
        // A socket at the unspecified IPv6 address also serves IPv4, unless it has the option `IPV6_V6ONLY`.
        if socket.address == IpAddr::V6(Ipv6Addr::UNSPECIFIED) && !socket.v6_only {
            self.insert(protocol, false, socket.port);
        }
    }
}

/// State of a reply after one of its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    More,
    Done,
}

const HEADER: usize = 16;
/// Length of `struct inet_diag_msg`.
const SOCKET: usize = 72;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Attribute with the option `IPV6_V6ONLY` of an IPv6 socket.
const INET_DIAG_SKV6ONLY: u16 = 11;
/// States of `enum tcp_states`, as bits: UDP sockets that are not connected are in the state "close".
const LISTEN: u32 = 1 << 10;
const CLOSE: u32 = 1 << 7;

/// Returns a request for all sockets of a protocol and family: `struct nlmsghdr` and `struct inet_diag_req_v2`.
fn request(protocol: Protocol, is_v6: bool, sequence: u32) -> Vec<u8> {
    let (protocol, states) = match protocol {
        Protocol::Tcp => (libc::IPPROTO_TCP, LISTEN),
        Protocol::Udp => (libc::IPPROTO_UDP, CLOSE),
    };
    let family = if is_v6 { libc::AF_INET6 } else { libc::AF_INET };
    let byte = |number: i32| u8::try_from(number).unwrap_or(0);
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_DUMP).unwrap_or(0);
    let mut request = Vec::with_capacity(72);
    request.extend(72_u32.to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    request.extend(sequence.to_ne_bytes());
    request.extend(0_u32.to_ne_bytes());
    request.extend([byte(family), byte(protocol), 0, 0]);
    request.extend(states.to_ne_bytes());
    // An empty `struct inet_diag_sockid`: any socket.
    request.resize(72, 0);
    request
}

/// Calls `take` for each socket in a message with this sequence number.
fn parse(mut bytes: &[u8], sequence: u32, mut take: impl FnMut(BoundSocket)) -> io::Result<Reply> {
    while let Some((header, _)) = bytes.split_at_checked(HEADER) {
        let len = usize::try_from(u32_at(header, 0)).unwrap_or(usize::MAX);
        let Some(body) = bytes.get(HEADER..len) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        if u32_at(header, 8) == sequence {
            match i32::from(u16_at(header, 4)) {
                libc::NLMSG_DONE => return Ok(Reply::Done),
                libc::NLMSG_ERROR if body.len() >= 4 => {
                    let error = u32_at(body, 0).cast_signed().saturating_neg();
                    return Err(io::Error::from_raw_os_error(error));
                }
                kind if kind == i32::from(SOCK_DIAG_BY_FAMILY) => {
                    if let Some(socket) = socket(body) {
                        take(socket);
                    }
                }
                _ => {}
            }
        }
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(Reply::More)
}

/// Parses a `struct inet_diag_msg` and its attributes.
fn socket(body: &[u8]) -> Option<BoundSocket> {
    let (fixed, mut attributes) = body.split_at_checked(SOCKET)?;
    let port = u16::from_be_bytes([fixed[4], fixed[5]]);
    let address: [u8; 16] = fixed[8..24].try_into().ok()?;
    let [a, b, c, d, ..] = address;
    let address = match i32::from(fixed[0]) {
        libc::AF_INET => Ipv4Addr::new(a, b, c, d).into(),
        libc::AF_INET6 => IpAddr::from(Ipv6Addr::from(address)).to_canonical(),
        _ => return None,
    };
    let mut v6_only = false;
    while let Some((header, _)) = attributes.split_at_checked(4) {
        let len = usize::from(u16_at(header, 0));
        let value = attributes.get(4..len)?;
        if u16_at(header, 2) == INET_DIAG_SKV6ONLY {
            v6_only = value.first().is_some_and(|flag| *flag != 0);
        }
        attributes = attributes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    Some(BoundSocket {
        address,
        port,
        v6_only,
    })
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests;
