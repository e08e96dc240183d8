//! A small rtnetlink client (rtnetlink(7)).

use std::io;
use std::net::IpAddr;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

/// Request socket of rtnetlink, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

/// Netlink port id of the kernel, which no process can have.
const KERNEL: u32 = 0;

/// Limit on the wait for a netlink reply. The kernel queues a reply before the send of the request returns or while a dump
/// is read, so a reply that is late has been dropped.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Interval of the requests for the route of an address.
const ROUTE_INTERVAL: Duration = Duration::from_millis(1);

/// Settings of a network interface to change by [`Netlink::bring_up`].
#[derive(Clone, Debug)]
pub struct Interface {
    /// Ethernet address; `None` leaves the interface's address unchanged.
    pub mac: Option<[u8; 6]>,
    /// MTU in bytes; `None` leaves the interface's MTU unchanged.
    pub mtu: Option<u16>,
    /// Length of the transmit queue in frames; `None` leaves the interface's queue length unchanged.
    pub queue: Option<u32>,
}

/// The way to a route's gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatewayReach {
    /// The gateway is in the subnet of one of the interface's addresses.
    Subnet,
    /// The gateway is a neighbour although no subnet contains it (`onlink` of ip-route(8)).
    OnLink,
}

impl Netlink {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// No descriptor or no memory.
    pub fn open() -> io::Result<Self> {
        let socket = Socket::new(NETLINK_ROUTE)?;
        // A process with CAP_NET_ADMIN in the namespace, such as the guest's root, may send to any socket there that is not
        // connected, until its buffer has no room for a reply.
        socket.connect(&SocketAddr::new(KERNEL, 0))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(TIMEOUT))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Wraps an rtnetlink socket that was opened before; requests apply to the network namespace in which it was opened.
    pub fn of(socket: OwnedFd) -> Self {
        // SAFETY: the descriptor is open, and has no other owner once it is taken out of its owner.
        let socket = unsafe { Socket::from_raw_fd(socket.into_raw_fd()) };
        Self { socket, sequence: 0 }
    }

    /// Returns the rtnetlink socket, to be passed to another process.
    pub fn into_socket(self) -> OwnedFd {
        // SAFETY: the descriptor is open, and has no other owner once it is taken out of its owner.
        unsafe { OwnedFd::from_raw_fd(self.socket.into_raw_fd()) }
    }

    /// Changes the settings of an interface and sets its flag `IFF_UP`.
    ///
    /// # Errors
    /// The kernel refuses the request.
    pub fn bring_up(&mut self, index: u32, settings: &Interface) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        let mac = settings.mac.map(|mac| LinkAttribute::Address(mac.to_vec()));
        let mtu = settings.mtu.map(|mtu| LinkAttribute::Mtu(mtu.into()));
        let queue = settings.queue.map(LinkAttribute::TxQueueLen);
        link.attributes.extend([mac, mtu, queue].into_iter().flatten());
        self.change(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Adds an address to an interface without duplicate address detection.
    ///
    /// # Errors
    /// The kernel refuses the request; EEXIST if the address exists.
    pub fn add_address(&mut self, index: u32, address: IpNet) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = family(address.addr());
        message.header.prefix_len = address.prefix_len();
        message.header.flags = AddressHeaderFlags::Nodad;
        message.header.scope = AddressScope::Universe;
        message.header.index = index;
        message.attributes.push(AddressAttribute::Local(address.addr()));
        message.attributes.push(AddressAttribute::Address(address.addr()));
        if let IpNet::V4(net) = address {
            message
                .attributes
                .push(AddressAttribute::Broadcast(net.broadcast()));
        }
        self.change(
            RouteNetlinkMessage::NewAddress(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Waits until the kernel delivers packets for an address of an interface to this machine. A work item of the kernel adds the
    /// route of an IPv6 address some time after the request; until then, connections to it leave by the interface.
    ///
    /// # Errors
    /// The kernel refuses the request, or has not added the route in time.
    pub fn wait_until_local(&mut self, address: IpAddr) -> io::Result<()> {
        let deadline = Instant::now() + TIMEOUT;
        while !self.is_local(address)? {
            if Instant::now() >= deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(ROUTE_INTERVAL);
        }
        Ok(())
    }

    /// Returns true if the kernel delivers packets for `address` to this machine.
    fn is_local(&mut self, address: IpAddr) -> io::Result<bool> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(address);
        message.header.destination_prefix_length = IpNet::from(address).prefix_len();
        message
            .attributes
            .push(RouteAttribute::Destination(address.into()));
        let is_local = |reply: &RouteNetlinkMessage| match reply {
            RouteNetlinkMessage::NewRoute(route) => route.header.kind == RouteType::Local,
            _ => false,
        };
        match self.request(RouteNetlinkMessage::GetRoute(message), NLM_F_ACK) {
            Ok(replies) => Ok(replies.iter().any(is_local)),
            // No route leads to the address.
            Err(error) if error.raw_os_error() == Some(libc::ENETUNREACH) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Adds a default route. `reach` is the way to the gateway.
    ///
    /// # Errors
    /// The kernel refuses the request; EEXIST if the route exists.
    pub fn add_default_route(&mut self, index: u32, gateway: IpAddr, reach: GatewayReach) -> io::Result<()> {
        let mut message = default_route(index, gateway);
        if reach == GatewayReach::OnLink {
            message.header.flags |= RouteFlags::Onlink;
        }
        self.change(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Adds a route to `destination`, through a gateway or on the link.
    ///
    /// # Errors
    /// The kernel's; EEXIST if one exists.
    pub fn add_route(
        &mut self,
        index: u32,
        destination: IpNet,
        gateway: Option<(IpAddr, GatewayReach)>,
    ) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(destination.addr());
        message.header.destination_prefix_length = destination.prefix_len();
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::Unicast;
        message.header.scope = match (gateway, destination) {
            (None, IpNet::V4(_)) => RouteScope::Link,
            _ => RouteScope::Universe,
        };
        message
            .attributes
            .push(RouteAttribute::Destination(destination.network().into()));
        if let Some((gateway, reach)) = gateway {
            message.attributes.push(RouteAttribute::Gateway(gateway.into()));
            if reach == GatewayReach::OnLink {
                message.header.flags |= RouteFlags::Onlink;
            }
        }
        message.attributes.push(RouteAttribute::Oif(index));
        self.change(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Removes a default route that [`Self::add_default_route`] added.
    ///
    /// # Errors
    /// The kernel refuses the request; ESRCH if the route does not exist.
    pub fn remove_default_route(&mut self, index: u32, gateway: IpAddr) -> io::Result<()> {
        self.change(RouteNetlinkMessage::DelRoute(default_route(index, gateway)), 0)
    }

    /// Reads the addresses of all interfaces in the socket's network namespace.
    ///
    /// # Errors
    /// The kernel refuses the request or drops the reply.
    pub fn addresses(&mut self) -> io::Result<Vec<IpNet>> {
        let replies = self.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))?;
        Ok(replies.iter().filter_map(address).collect())
    }

    /// Sends a request that changes the kernel's state, to which the kernel replies with success or an error.
    fn change(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.request(message, NLM_F_ACK | flags).map(drop)
    }

    /// Reads all objects of the kind that `message` requests (`NLM_F_DUMP`).
    ///
    /// # Errors
    /// The kernel refuses the request or drops the reply.
    pub fn dump(&mut self, message: RouteNetlinkMessage) -> io::Result<Vec<RouteNetlinkMessage>> {
        // If the kernel's state changes during the dump, the reply has NLM_F_DUMP_INTR and an event follows, after which
        // the watch of the events reads the state again.
        self.request(message, NLM_F_DUMP)
    }

    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence += 1;
        let subject = subject(&message);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send_to(&bytes, &SocketAddr::new(KERNEL, 0), 0)?;

        self.receive_reply(subject)
    }

    /// Receives all messages of the reply to the last request.
    fn receive_reply(&mut self, subject: &str) -> io::Result<Vec<RouteNetlinkMessage>> {
        let mut replies = Vec::new();
        loop {
            let (bytes, sender) = match self.socket.recv_from_full() {
                Ok(received) => received,
                // A signal that stops the process interrupts a read with a timeout (signal(7)).
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(late(error, subject)),
            };
            // Another process may have written before the socket was connected.
            if sender.port_number() == KERNEL && take(&bytes, self.sequence, &mut replies)? {
                return Ok(replies);
            }
        }
    }
}

/// Returns the subject of a netlink request, for messages of errors.
fn subject(message: &RouteNetlinkMessage) -> &'static str {
    match message {
        RouteNetlinkMessage::SetLink(_) => "setting up an interface",
        RouteNetlinkMessage::NewAddress(_) => "adding an address",
        RouteNetlinkMessage::NewRoute(_) => "adding a route",
        RouteNetlinkMessage::DelRoute(_) => "removing a route",
        RouteNetlinkMessage::GetRoute(_) => "routes",
        RouteNetlinkMessage::GetAddress(_) => "the list of addresses",
        RouteNetlinkMessage::GetLink(_) => "the list of interfaces",
        _ => "a request",
    }
}

/// Adds the subject of the request to the error of a reply that timed out.
fn late(error: io::Error, subject: &str) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => {
            let text = format!("no reply from the kernel about {subject} in {TIMEOUT:?}");
            io::Error::new(io::ErrorKind::TimedOut, text)
        }
        _ => error,
    }
}

/// Appends to `replies` the messages of one datagram that reply to the request with the number `sequence`; returns true if
/// the reply is complete.
///
/// # Errors
/// The kernel refused the request, or could not complete the dump.
fn take(bytes: &[u8], sequence: u32, replies: &mut Vec<RouteNetlinkMessage>) -> io::Result<bool> {
    // Messages with other numbers reply to an earlier request, which timed out.
    for reply in messages(bytes).filter(|reply| reply.header.sequence_number == sequence) {
        match reply.payload {
            NetlinkPayload::Done(done) if done.code == 0 => return Ok(true),
            NetlinkPayload::Done(done) => {
                return Err(io::Error::from_raw_os_error(done.code.saturating_abs()));
            }
            NetlinkPayload::Error(error) if error.code.is_none() => return Ok(true),
            NetlinkPayload::Error(error) => return Err(error.to_io()),
            NetlinkPayload::InnerMessage(message) => replies.push(message),
            _ => {}
        }
    }
    Ok(false)
}

/// Returns the messages of one netlink datagram. A message that cannot be parsed, for example of a newer kernel, is
/// skipped.
pub fn messages(bytes: &[u8]) -> impl Iterator<Item = NetlinkMessage<RouteNetlinkMessage>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let (length, _) = rest.split_first_chunk()?;
        let length = usize::try_from(u32::from_ne_bytes(*length)).ok()?;
        let message = rest.get(..length).filter(|_| length > 0)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(NetlinkMessage::deserialize(message).ok())
    })
    .flatten()
}

fn default_route(index: u32, gateway: IpAddr) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = family(gateway);
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.header.protocol = RouteProtocol::Static;
    message.header.scope = RouteScope::Universe;
    message.header.kind = RouteType::Unicast;
    message.attributes.push(RouteAttribute::Gateway(gateway.into()));
    message.attributes.push(RouteAttribute::Oif(index));
    message
}

fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

/// Returns the local address in an `RTM_NEWADDR` message: `IFA_LOCAL` if present, because `IFA_ADDRESS` is the peer of a
/// point-to-point link then.
pub fn address(message: &RouteNetlinkMessage) -> Option<IpNet> {
    let RouteNetlinkMessage::NewAddress(message) = message else {
        return None;
    };
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let plain = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    });
    IpNet::new(local.or(plain)?, message.header.prefix_len).ok()
}

/// Reads all queued events; returns true if there was one. The content of an event is not used, because events may be lost
/// (ENOBUFS); the caller reads the whole state again.
///
/// # Errors
/// The kernel refuses the read.
pub fn drain(events: &Socket) -> io::Result<bool> {
    let mut any = false;
    loop {
        match events.recv(&mut Vec::with_capacity(EVENT_BYTES), 0) {
            Ok(_) => any = true,
            Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => any = true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(any),
            Err(error) => return Err(error),
        }
    }
}

/// Bytes that are read of one netlink event; the rest of a longer event is discarded, because the content is not used.
pub const EVENT_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use netlink_packet_core::DoneMessage;

    use super::*;
    use crate::retry::Retry;

    #[test]
    fn error_of_the_kernel_is_returned() {
        let missing = Netlink::open().unwrap().add_default_route(
            0x7fff_fff0,
            "192.0.2.1".parse().unwrap(),
            GatewayReach::Subnet,
        );
        assert!(missing.is_err());
    }

    #[test]
    fn only_the_machines_own_addresses_are_local() {
        let mut netlink = Netlink::open().unwrap();
        for local in ["127.0.0.1", "::1"] {
            netlink.wait_until_local(local.parse().unwrap()).unwrap();
        }
        // Documentation addresses.
        for remote in ["192.0.2.1", "2001:db8::1"] {
            assert!(!netlink.is_local(remote.parse().unwrap()).unwrap(), "{remote}");
        }
    }

    /// Returns a datagram of the kernel that replies to the request with the number `sequence`.
    fn datagram(sequence: u32, payload: NetlinkPayload<RouteNetlinkMessage>) -> Vec<u8> {
        let mut header = NetlinkHeader::default();
        header.sequence_number = sequence;
        let mut message = NetlinkMessage::new(header, payload);
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    fn done(code: i32) -> NetlinkPayload<RouteNetlinkMessage> {
        let mut done = DoneMessage::default();
        done.code = code;
        NetlinkPayload::Done(done)
    }

    #[test]
    fn messages_of_other_senders_are_not_received() {
        let netlink = Netlink::open().unwrap();
        let mut own = SocketAddr::new(0, 0);
        netlink.socket.get_address(&mut own).unwrap();
        let stranger = Socket::new(NETLINK_ROUTE).unwrap();
        // Without CAP_NET_ADMIN the kernel refuses a send to another process.
        assert!(stranger.send_to(&[0; 1000], &own, 0).is_err());
        let flags = libc::MSG_DONTWAIT;
        let received = netlink.socket.recv_from(&mut Vec::with_capacity(1000), flags);
        assert_eq!(received.unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(!Netlink::of(netlink.into_socket()).addresses().unwrap().is_empty());
    }

    #[test]
    fn reply_that_is_dropped_times_out_and_is_retried() {
        let mut netlink = Netlink::open().unwrap();
        let limit = rustix::net::sockopt::socket_timeout(&netlink.socket, Timeout::Recv).unwrap();
        assert_eq!(limit, Some(TIMEOUT));
        set_socket_timeout(&netlink.socket, Timeout::Recv, Some(Duration::from_millis(1))).unwrap();
        let error = netlink.receive_reply("adding a route").unwrap_err();
        assert_eq!(
            error.to_string(),
            "no reply from the kernel about adding a route in 3s"
        );
        let result = Retry::default().unless_short::<()>("the test", Err(error));
        assert!(result.unwrap().is_none(), "it is to be retried");
    }

    #[test]
    fn incomplete_dump_is_an_error() {
        let address = RouteNetlinkMessage::NewAddress(AddressMessage::default());
        let mut bytes = datagram(7, NetlinkPayload::InnerMessage(address));
        bytes.extend(datagram(7, done(-libc::ENOBUFS)));
        let error = take(&bytes, 7, &mut Vec::new()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOBUFS));
    }

    #[test]
    fn replies_to_another_request_are_skipped() {
        let address = || RouteNetlinkMessage::NewAddress(AddressMessage::default());
        let mut replies = Vec::new();
        let mut stale = datagram(6, NetlinkPayload::InnerMessage(address()));
        stale.extend(datagram(6, done(0)));
        assert!(!take(&stale, 7, &mut replies).unwrap() && replies.is_empty());
        let failed = datagram(6, done(-libc::ENOBUFS));
        assert!(!take(&failed, 7, &mut replies).unwrap());
        let mut ours = datagram(7, NetlinkPayload::InnerMessage(address()));
        ours.extend(datagram(7, done(0)));
        assert!(take(&ours, 7, &mut replies).unwrap());
        assert_eq!(replies, [address()]);
    }

    #[test]
    fn truncated_messages_are_skipped() {
        assert_eq!(messages(&[]).count(), 0);
        assert_eq!(messages(&[0; 16]).count(), 0);
        assert_eq!(messages(&[64, 0, 0, 0, 1, 1]).count(), 0);
        assert_eq!(messages(&[5, 0, 0, 0, 1, 1, 1, 1]).count(), 0);
    }
}
