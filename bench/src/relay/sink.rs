//! The sinks of `pontoon bench relay`: sockets at which the kernel counts the relayed datagrams.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use pontoon_netns::Namespace;
use pontoon_sys::{filter, multicast, udp};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

/// Time without an arriving datagram after which no more are assumed to be in flight.
const QUIET_TIME: Duration = Duration::from_millis(200);

/// Interval at which the drop counters of the sockets are read.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time limit for all datagrams in flight to arrive.
const TIMEOUT: Duration = Duration::from_secs(10);

/// One UDP socket in each sink's namespace. Its filter drops every datagram, and the kernel counts the drops.
pub(super) struct Sinks(Vec<UdpSocket>);

impl Sinks {
    pub(super) fn open(namespaces: &[Namespace], group: SocketAddrV4) -> Result<Self> {
        let open = |namespace: &Namespace| {
            namespace.enter(|| {
                let socket = receiver(group)?;
                filter::refuse_all(&socket)?;
                Ok(socket)
            })
        };
        namespaces.iter().map(open).collect::<Result<_>>().map(Self)
    }

    /// Returns the number of datagrams that have arrived, summed over all sinks.
    pub(super) fn count(&self) -> Result<u64> {
        let mut sum = 0;
        for socket in &self.0 {
            sum += u64::from(udp::dropped(socket)?);
        }
        Ok(sum)
    }

    /// Waits until no more datagrams arrive, and returns the number of those that have arrived at all sinks.
    pub(super) fn final_count(&self) -> Result<u64> {
        let begin = Instant::now();
        let (mut count, mut changed) = (self.count()?, begin);
        while changed.elapsed() < QUIET_TIME {
            ensure!(
                begin.elapsed() < TIMEOUT,
                "datagrams still arrive long after the sender has stopped"
            );
            std::thread::sleep(POLL_INTERVAL);
            let now = self.count()?;
            if now != count {
                (count, changed) = (now, Instant::now());
            }
        }
        Ok(count)
    }

    pub(super) fn all_reached(&self) -> Result<bool> {
        for socket in &self.0 {
            if udp::dropped(socket)? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns a UDP socket that has joined `group` on the interface `in` of the caller's namespace.
pub(super) fn receiver(group: SocketAddrV4) -> Result<UdpSocket> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // With SO_REUSEADDR each of several sockets with the same group receives every multicast datagram.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, group.port()))?;
    let index = rustix::net::netdevice::name_to_index(&socket, "in")?;
    multicast::join(&socket, index, (*group.ip()).into(), None)?;
    Ok(socket.into())
}
