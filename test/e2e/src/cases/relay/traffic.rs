//! Senders and receivers of numbered datagrams.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use pontoon_netns::Namespace;
use rustix::net::{netdevice, sockopt};

use crate::sys;

/// Number of datagrams that are sent without a pause.
const AT_ONCE: u32 = 50;
/// Pause after [`AT_ONCE`] datagrams, so that 50,000 are sent each second, a rate that every machine forwards.
const PAUSE: Duration = Duration::from_millis(1);

/// Time limit for an expected datagram to arrive.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time without a datagram after which no more are expected.
const SILENCE: Duration = Duration::from_millis(200);

/// Size of a receiver's socket buffer in bytes.
const BUFFER: usize = 4 << 20;

/// A socket that sends numbered datagrams to a group.
pub(super) struct Sender(UdpSocket);

impl Sender {
    /// Opens a sender whose source address the kernel's routes select.
    pub(super) fn new(node: &Namespace, to: SocketAddr, hops: u8) -> Result<Self> {
        Self::from(node, SocketAddr::new(unspecified(to), 0), to, hops)
    }

    /// Opens a sender with this source address.
    pub(super) fn from(node: &Namespace, from: SocketAddr, to: SocketAddr, hops: u8) -> Result<Self> {
        node.enter(|| {
            let socket = UdpSocket::bind(from)?;
            match to {
                SocketAddr::V4(_) => socket.set_multicast_ttl_v4(hops.into())?,
                SocketAddr::V6(_) => sockopt::set_ipv6_multicast_hops(&socket, hops.into())?,
            }
            socket.connect(to).with_context(|| format!("cannot reach {to}"))?;
            Ok(Self(socket))
        })
    }

    pub(super) fn socket(&self) -> &UdpSocket {
        &self.0
    }

    /// Sends the datagrams with these numbers, each of `size(number)` bytes.
    pub(super) fn send(&self, numbers: std::ops::Range<u32>, size: impl Fn(u32) -> usize) -> Result<()> {
        for number in numbers {
            self.0.send(&payload(number, size(number)))?;
            if number % AT_ONCE == AT_ONCE - 1 {
                std::thread::sleep(PAUSE);
            }
        }
        Ok(())
    }

    /// Sends the datagrams with these numbers, all of `size` bytes, with `together` of them in each call
    /// (UDP_SEGMENT).
    pub(super) fn send_together(
        &self,
        numbers: std::ops::Range<u32>,
        size: u16,
        together: u32,
    ) -> Result<()> {
        sys::segment_sends(&self.0, size)?;
        let mut next = numbers.start;
        while next < numbers.end {
            let end = numbers.end.min(next + together);
            let bytes: Vec<u8> = (next..end)
                .flat_map(|number| payload(number, size.into()))
                .collect();
            self.0.send(&bytes)?;
            next = end;
            std::thread::sleep(PAUSE);
        }
        sys::segment_sends(&self.0, 0)?;
        Ok(())
    }
}

/// A socket that receives datagrams of a group, or to a unicast address.
pub(super) struct Receiver(UdpSocket);

impl Receiver {
    /// Opens a receiver on the interface `left` of a namespace.
    pub(super) fn new(node: &Namespace, at: SocketAddr) -> Result<Self> {
        node.enter(|| {
            let socket = UdpSocket::bind(SocketAddr::new(unspecified(at), at.port()))?;
            sockopt::set_socket_recv_buffer_size(&socket, BUFFER)?;
            let index = netdevice::name_to_index(&socket, "left")?;
            match at.ip() {
                IpAddr::V4(group) if group.is_multicast() => {
                    let any = Ipv4Addr::UNSPECIFIED;
                    sockopt::set_ip_add_membership_with_ifindex(&socket, &group, &any, index)?;
                }
                IpAddr::V6(group) if group.is_multicast() => socket.join_multicast_v6(&group, index)?,
                IpAddr::V4(_) | IpAddr::V6(_) => {}
            }
            Ok(Self(socket))
        })
    }

    /// Returns the number of datagrams that the kernel dropped because the socket's buffer was full.
    pub(super) fn missed(&self) -> Result<u32> {
        Ok(sys::dropped(&self.0)?)
    }

    /// Checks that exactly the datagrams with these numbers arrive, complete, in order and once.
    pub(super) fn expect(&self, numbers: std::ops::Range<u32>, size: impl Fn(u32) -> usize) -> Result<()> {
        self.take(numbers, size)?;
        self.expect_silence()
    }

    /// Checks that the datagrams with these numbers are the next that arrive, complete, in order and once.
    pub(super) fn take(&self, numbers: std::ops::Range<u32>, size: impl Fn(u32) -> usize) -> Result<()> {
        let begin = Instant::now();
        for number in numbers {
            let came = match self.next(PATIENCE)? {
                Some(datagram) => check(&datagram, number, size(number)),
                None => Err(anyhow!(
                    "datagram {number} did not arrive within {:?}",
                    begin.elapsed()
                )),
            };
            came.with_context(|| format!("{:?} have found the receiver's buffer full", self.missed()))?;
        }
        Ok(())
    }

    /// Receives datagrams until none arrives for [`SILENCE`], and returns their number. All must be complete, in
    /// order and unique.
    pub(super) fn count(&self, size: impl Fn(u32) -> usize) -> Result<u32> {
        let (mut count, mut last) = (0, None);
        while let Some(datagram) = self.next(SILENCE)? {
            let number = number(&datagram)?;
            ensure!(
                last.is_none_or(|last| number > last),
                "datagram {number} arrived after {last:?}"
            );
            check(&datagram, number, size(number))?;
            (count, last) = (count + 1, Some(number));
        }
        Ok(count)
    }

    pub(super) fn expect_silence(&self) -> Result<()> {
        match self.next(SILENCE)? {
            None => Ok(()),
            Some(datagram) => bail!(
                "a datagram of {} bytes too many: {:?}",
                datagram.len(),
                number(&datagram)
            ),
        }
    }

    /// Waits for the next datagram, and returns its source address.
    pub(super) fn sender(&self) -> Result<IpAddr> {
        self.0.set_read_timeout(Some(PATIENCE))?;
        let (_, from) = sys::uninterrupted(|| self.0.recv_from(&mut [0; 4]))?;
        Ok(from.ip())
    }

    /// Returns the next datagram, or `None` if none arrives within `time`.
    pub(super) fn next(&self, time: Duration) -> Result<Option<Vec<u8>>> {
        self.0.set_read_timeout(Some(time))?;
        let mut buffer = vec![0; 1 << 16];
        match sys::uninterrupted(|| self.0.recv(&mut buffer)) {
            Ok(len) => {
                buffer.truncate(len);
                Ok(Some(buffer))
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the payload of a datagram: its number, and bytes derived from the number.
pub(super) fn payload(number: u32, size: usize) -> Vec<u8> {
    let pattern =
        (0..size).map(|at| (at as u32).wrapping_mul(31).wrapping_add(number.wrapping_mul(17)) as u8);
    let mut bytes: Vec<u8> = pattern.collect();
    let head = size.min(4);
    bytes[..head].copy_from_slice(&number.to_be_bytes()[..head]);
    bytes
}

fn number(datagram: &[u8]) -> Result<u32> {
    let head = datagram
        .first_chunk()
        .context("the datagram is too short for a number")?;
    Ok(u32::from_be_bytes(*head))
}

fn check(datagram: &[u8], wanted: u32, size: usize) -> Result<()> {
    if datagram == payload(wanted, size) {
        return Ok(());
    }
    let (len, came) = (datagram.len(), number(datagram).ok());
    bail!("datagram {came:?} of {len} bytes arrived instead of {wanted} of {size} bytes")
}

fn unspecified(like: SocketAddr) -> IpAddr {
    match like {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    }
}
