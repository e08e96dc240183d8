//! Sender of bursts through the UDP socket of an output.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use pontoon_relay::counters::OutputCounter;
use pontoon_relay::gather::MAX_DATAGRAMS;
use pontoon_sys::udp::{self, SendControl};
use pontoon_sys::{Family, message, multicast};
use rustix::io::Errno;

use crate::counters::Counters;

/// UDP socket of an output, and the state of its options.
#[derive(Debug)]
pub(crate) struct Sender {
    socket: OwnedFd,
    family: Family,
    multicast: bool,
    /// The kernel supports `UDP_SEGMENT`.
    segment: bool,
    /// Datagrams of this size and above are sent one by one: they are longer than the path MTU, or, if it is 0, the device
    /// cannot compute checksums.
    too_long: usize,
    /// Bursts that were sent one by one for that reason since `too_long` was set.
    avoided: u32,
    /// TTL and traffic class that were last set on the socket.
    hops: Option<u8>,
    class: Option<u8>,
}

/// Number of bursts sent one by one after which `UDP_SEGMENT` is tried again: the path MTU may have grown (an ICMP error of any
/// router, even a forged one, shrinks it for some minutes). A vain attempt costs one more system call.
const RETRY: u32 = 1024;

/// Datagrams that are sent by one system call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TxBurst<'a> {
    /// Payloads of the datagrams, in order.
    pub(crate) parts: &'a [IoSlice<'a>],
    /// Size of each datagram except the last, in bytes.
    pub(crate) size: usize,
    /// Number of datagrams.
    pub(crate) datagrams: usize,
    /// TTL (IPv4) or hop limit (IPv6) of the datagrams.
    pub(crate) hops: u8,
    /// DSCP and ECN of the datagrams.
    pub(crate) class: u8,
    /// Destination of the datagrams; `None` if the socket is connected.
    pub(crate) to: Option<SocketAddr>,
}

/// Numbers of datagrams that were sent, and that were not sent by the reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) sent: u64,
    pub(crate) bytes: u64,
    /// Number of system calls that sent at least one datagram.
    pub(crate) sends: u64,
    pub(crate) expired: u64,
    pub(crate) down: u64,
    pub(crate) refused: u64,
    pub(crate) busy: u64,
}

impl Sender {
    /// Creates the sender of an output; `segment` is true if the kernel supports `UDP_SEGMENT`.
    pub(crate) fn new(socket: OwnedFd, family: Family, multicast: bool, segment: bool) -> Self {
        Self {
            socket,
            family,
            multicast,
            segment,
            too_long: usize::MAX,
            avoided: 0,
            hops: None,
            class: None,
        }
    }

    /// Sends all datagrams of a burst, with as few system calls as the kernel allows.
    pub(crate) fn send(&mut self, outgoing: &TxBurst<'_>) -> Outcome {
        if self.prepare(outgoing.hops, outgoing.class).is_err() {
            return Outcome {
                refused: outgoing.datagrams as u64,
                ..Outcome::default()
            };
        }
        let mut may_be_too_long = false;
        if outgoing.datagrams > 1 && self.segment && self.may_segment(outgoing.size) {
            match self.send_segmented(outgoing) {
                Ok(outcome) => return outcome,
                // Datagrams that are longer than the MTU are sent one by one, because only then they are fragmented.
                Err(Errno::MSGSIZE | Errno::INVAL) => {
                    may_be_too_long = outgoing.datagrams <= MAX_DATAGRAMS;
                }
                // EIO means that the device cannot compute the checksums of segments.
                Err(Errno::IO) => self.too_long = 0,
                Err(_) => {}
            }
        }
        let outcome = self.send_individually(outgoing);
        // If the kernel refuses single datagrams, too, the error is not caused by their size.
        if may_be_too_long && outcome.sent > 0 {
            self.too_long = outgoing.size;
        }
        outcome
    }

    /// Returns true if datagrams of this size may be sent by one call, or if that is to be tried again.
    fn may_segment(&mut self, size: usize) -> bool {
        if size < self.too_long {
            return true;
        }
        self.avoided += 1;
        if self.avoided < RETRY {
            return false;
        }
        self.avoided = 0;
        self.too_long = usize::MAX;
        true
    }

    /// Sends all datagrams by one system call with `UDP_SEGMENT`.
    ///
    /// # Errors
    /// The kernel refuses the call; the datagrams may be sent one by one.
    fn send_segmented(&self, outgoing: &TxBurst<'_>) -> Result<Outcome, Errno> {
        let mut control = SendControl::new();
        let size = u16::try_from(outgoing.size).map_err(|_| Errno::MSGSIZE)?;
        udp::push_segment(&mut control, size);
        let datagrams = outgoing.datagrams as u64;
        match self.send_retrying(outgoing.parts, outgoing.to, control.bytes()) {
            Ok(bytes) => Ok(Outcome {
                sent: datagrams,
                bytes: bytes as u64,
                sends: 1,
                ..Outcome::default()
            }),
            Err(error @ (Errno::MSGSIZE | Errno::INVAL | Errno::IO)) => Err(error),
            Err(error) => Ok(Outcome::failure(error, datagrams)),
        }
    }

    fn send_individually(&self, outgoing: &TxBurst<'_>) -> Outcome {
        let mut outcome = Outcome::default();
        let mut send = |payload: &[u8]| match self.send_retrying(&[IoSlice::new(payload)], outgoing.to, &[]) {
            Ok(bytes) => {
                outcome.sent += 1;
                outcome.bytes += bytes as u64;
                outcome.sends += 1;
            }
            Err(error) => outcome.add_failure(error, 1),
        };
        for part in outgoing.parts {
            if part.is_empty() {
                send(part);
            }
            part.chunks(outgoing.size.max(1)).for_each(&mut send);
        }
        outcome
    }

    /// Sends, and sends again if the first call failed with an error of an earlier send: the kernel returns a received ICMP
    /// error from the next call, which then sends nothing.
    fn send_retrying(
        &self,
        parts: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        control: &[u8],
    ) -> Result<usize, Errno> {
        let send = || message::send_slices(&self.socket, parts, to, control);
        match send() {
            Err(
                Errno::CONNREFUSED
                | Errno::HOSTUNREACH
                | Errno::NETUNREACH
                | Errno::PROTO
                | Errno::OPNOTSUPP
                | Errno::ACCESS,
            ) => send(),
            result => result,
        }
    }

    fn prepare(&mut self, hops: u8, class: u8) -> Result<(), Errno> {
        if self.hops != Some(hops) {
            if self.multicast {
                multicast::set_hop_limit(&self.socket, self.family, hops)?;
            } else {
                udp::set_hop_limit(&self.socket, self.family, hops)?;
            }
            self.hops = Some(hops);
        }
        if self.class != Some(class) {
            udp::set_traffic_class(&self.socket, self.family, class)?;
            self.class = Some(class);
        }
        Ok(())
    }
}

impl Outcome {
    /// Counts datagrams whose TTL expired at this relay.
    pub(crate) fn expired(datagrams: u64) -> Self {
        Self {
            expired: datagrams,
            ..Self::default()
        }
    }

    /// Counts datagrams for an output without a socket.
    pub(crate) fn down(datagrams: u64) -> Self {
        Self {
            down: datagrams,
            ..Self::default()
        }
    }

    /// Adds the numbers to the row `row` of the counters, which is that of an output.
    pub(crate) fn count(&self, counters: &Counters, row: u32) {
        for (number, value) in [
            (OutputCounter::Sent, self.sent),
            (OutputCounter::Bytes, self.bytes),
            (OutputCounter::Sends, self.sends),
            (OutputCounter::Expired, self.expired),
            (OutputCounter::Down, self.down),
            (OutputCounter::Refused, self.refused),
            (OutputCounter::Busy, self.busy),
        ] {
            counters.add(row, number as usize, value);
        }
    }

    fn failure(error: Errno, datagrams: u64) -> Self {
        let mut outcome = Self::default();
        outcome.add_failure(error, datagrams);
        outcome
    }

    fn add_failure(&mut self, error: Errno, datagrams: u64) {
        match error {
            Errno::AGAIN | Errno::NOBUFS => self.busy += datagrams,
            _ => self.refused += datagrams,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;

    struct World {
        receiver: UdpSocket,
        sender: Sender,
    }

    fn world() -> World {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(receiver.local_addr().unwrap()).unwrap();
        World {
            receiver,
            sender: Sender::new(socket.into(), Family::V4, false, true),
        }
    }

    fn outgoing<'a>(parts: &'a [IoSlice<'a>], size: usize, datagrams: usize) -> TxBurst<'a> {
        TxBurst {
            parts,
            size,
            datagrams,
            hops: 9,
            class: 0xb8,
            to: None,
        }
    }

    fn received(receiver: &UdpSocket, count: usize) -> Vec<Vec<u8>> {
        let mut buffer = vec![0; 1 << 16];
        (0..count)
            .map(|_| {
                let len = receiver.recv(&mut buffer).unwrap();
                buffer[..len].to_vec()
            })
            .collect()
    }

    const PARTS: [&[u8]; 3] = [&[1; 100], &[2; 100], &[3; 40]];

    #[test]
    fn burst_is_sent_by_one_call() {
        let mut world = world();
        let parts = PARTS.map(IoSlice::new);
        let outcome = world.sender.send(&outgoing(&parts, 100, 3));
        let expected = Outcome {
            sent: 3,
            bytes: 240,
            sends: 1,
            ..Outcome::default()
        };
        assert_eq!(outcome, expected);
        assert_eq!(received(&world.receiver, 3), PARTS);
    }

    #[test]
    fn datagrams_are_sent_one_by_one_without_udp_segment() {
        let mut world = world();
        world.sender.segment = false;
        let whole = [[1_u8; 100].as_slice(), &[2; 100], &[3; 40]].concat();
        let parts = [IoSlice::new(&whole)];
        let outcome = world.sender.send(&outgoing(&parts, 100, 3));
        assert_eq!((outcome.sent, outcome.bytes, outcome.sends), (3, 240, 3));
        assert_eq!(received(&world.receiver, 3), PARTS);
    }

    #[test]
    fn datagrams_longer_than_the_mtu_are_sent_one_by_one() {
        let mut world = world();
        let parts = [[1_u8; 40_000].as_slice(), &[2; 20_000]];
        let parts = parts.map(IoSlice::new);
        // Both datagrams together would exceed the maximum length of a datagram.
        let outcome = world.sender.send(&outgoing(&[parts[0], parts[0]], 40_000, 2));
        assert_eq!((outcome.sent, outcome.sends, outcome.refused), (2, 2, 0));
        assert_eq!(world.sender.too_long, 40_000);
        // Smaller datagrams are still sent by one call.
        let outcome = world.sender.send(&outgoing(&[parts[1], parts[1]], 20_000, 2));
        assert_eq!((outcome.sent, outcome.sends), (2, 1));
        let lengths: Vec<_> = received(&world.receiver, 4).iter().map(Vec::len).collect();
        assert_eq!(lengths, [40_000, 40_000, 20_000, 20_000]);
    }

    #[test]
    fn datagrams_are_sent_by_one_call_again_when_the_path_mtu_has_grown() {
        // 0 represents a device that could not compute checksums.
        for too_long in [50, 0] {
            let mut world = world();
            world.sender.too_long = too_long;
            let parts = PARTS.map(IoSlice::new);
            let sends: Vec<_> = (0..=RETRY)
                .map(|_| world.sender.send(&outgoing(&parts, 100, 3)).sends)
                .collect();
            let before = RETRY as usize - 1;
            assert_eq!(sends[..before], vec![3; before]);
            assert_eq!(sends[before..], [1, 1]);
        }
    }

    #[test]
    fn datagrams_that_stay_too_long_are_rarely_tried_by_one_call() {
        let mut world = world();
        let part = IoSlice::new(&[1; 40_000]);
        for _ in 0..2 * RETRY {
            let outcome = world.sender.send(&outgoing(&[part, part], 40_000, 2));
            assert_eq!((outcome.sent, outcome.sends), (2, 2));
        }
        assert_eq!(world.sender.too_long, 40_000);
    }

    #[test]
    fn sends_an_empty_datagram() {
        let mut world = world();
        let outcome = world.sender.send(&outgoing(&[IoSlice::new(&[])], 0, 1));
        assert_eq!((outcome.sent, outcome.bytes), (1, 0));
        assert_eq!(received(&world.receiver, 1), [[0_u8; 0]]);
    }

    #[test]
    fn icmp_error_of_an_earlier_send_does_not_fail_the_next() {
        let mut world = world();
        let parts = [IoSlice::new(b"hello")];
        let to = world.receiver.local_addr().unwrap();
        drop(world.receiver);
        // No socket has the port, so an ICMP error is received.
        assert_eq!(world.sender.send(&outgoing(&parts, 5, 1)).sent, 1);
        let receiver = UdpSocket::bind(to).unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let outcome = world.sender.send(&outgoing(&parts, 5, 1));
        assert_eq!((outcome.sent, outcome.refused), (1, 0));
        assert_eq!(received(&receiver, 1), [b"hello"]);
    }

    #[test]
    fn sets_hop_limit_and_traffic_class() {
        let mut world = world();
        udp::enable_recv_info(&world.receiver, Family::V4).unwrap();
        world.sender.send(&outgoing(&[IoSlice::new(b"x")], 1, 1));
        let mut batch = pontoon_sys::batch::Batch::new(1, 16);
        batch.receive(&world.receiver).unwrap();
        let beside = udp::Ancillary::decode(batch.message(0).1);
        assert_eq!((beside.hop_limit, beside.traffic_class), (Some(9), Some(0xb8)));
    }

    #[test]
    fn counts_datagrams_that_the_kernel_refuses() {
        let mut world = world();
        let long = vec![0; 65_520];
        let outcome = world.sender.send(&outgoing(&[IoSlice::new(&long)], 65_520, 1));
        let expected = Outcome {
            refused: 1,
            ..Outcome::default()
        };
        assert_eq!(outcome, expected);
    }

    /// sendmsg(2) returns EINVAL for port 0, which a host can choose as the destination port of a datagram to a group of a
    /// rule for every port.
    #[test]
    fn datagrams_to_port_0_do_not_end_segmentation() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let to = receiver.local_addr().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut sender = Sender::new(socket.into(), Family::V4, false, true);
        let parts = PARTS.map(IoSlice::new);
        let burst = |parts, size, to| TxBurst {
            to: Some(to),
            ..outgoing(parts, size, 3)
        };
        assert_eq!(sender.send(&burst(&parts, 100, to)).sends, 1);
        let tiny = [[1_u8].as_slice(), &[2], &[3]].map(IoSlice::new);
        let nowhere = (std::net::Ipv4Addr::LOCALHOST, 0).into();
        assert_eq!(sender.send(&burst(&tiny, 1, nowhere)).refused, 3);
        assert_eq!(sender.send(&burst(&parts, 100, to)).sends, 1);
    }
}
