//! The host's ephemeral ports (`ip_local_port_range`), and the share of them that connections of the guest may use.

use std::fs::read_to_string;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use pontoon_sys::{Family, bind};
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType, socket_with};
use rustix::rand::{GetRandomFlags, getrandom};
use tracing::info;

/// The ephemeral ports of the host's network namespace, which are the same for IPv4 and IPv6.
#[derive(Debug)]
pub(super) struct EphemeralPorts {
    range: RangeInclusive<u16>,
    /// Ports of the range that are not in `ip_local_reserved_ports`, as ascending disjoint ranges; the whole range if
    /// all are reserved.
    allowed: Vec<RangeInclusive<u16>>,
}

impl EphemeralPorts {
    /// Reads the ephemeral port range and the reserved ports of the host; the kernel's default range if it cannot be
    /// read.
    pub(super) fn of_host() -> Self {
        let read = |name| read_to_string(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
        Self::parse(&read("ip_local_port_range"), &read("ip_local_reserved_ports"))
    }

    fn parse(range: &str, reserved: &str) -> Self {
        let mut words = range.split_ascii_whitespace().map_while(|word| word.parse().ok());
        let range = match (words.next(), words.next()) {
            (Some(first), Some(last)) if first <= last => first..=last,
            _ => 32_768..=60_999,
        };
        let ports = |item: &str| {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            Some(first.parse::<u16>().ok()?..=last.parse::<u16>().ok()?)
        };
        let mut allowed = Vec::new();
        let mut next = u32::from(*range.start());
        // The kernel lists reserved ports in ascending order.
        for ports in reserved.trim().split(',').filter_map(ports) {
            let (first, last) = (u32::from(*ports.start()), u32::from(*ports.end()));
            run(next, first.min(u32::from(*range.end()) + 1), &mut allowed);
            next = next.max(last + 1);
        }
        run(next, u32::from(*range.end()) + 1, &mut allowed);
        if allowed.is_empty() {
            allowed.push(range.clone());
        }
        Self { range, allowed }
    }

    /// Returns a random port of the range that is not reserved.
    pub(super) fn random(&self) -> Result<u16, Errno> {
        let mut bytes = [0; 4];
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        let number = u32::from_ne_bytes(bytes);
        let size: u32 = self.allowed.iter().map(count_of).sum();
        let mut offset = number % size;
        for ports in &self.allowed {
            match u16::try_from(offset) {
                Ok(within) if offset < count_of(ports) => return Ok(ports.start() + within),
                _ => offset -= count_of(ports),
            }
        }
        Err(Errno::INVAL)
    }

    /// Returns the ports for TCP connections; `None` if the kernel cannot limit them (before Linux 6.3).
    pub(super) fn for_tcp(&self) -> Option<TcpPortShare> {
        let size = count_of(&self.range);
        let share = u16::try_from((size * 3 / 4).max(1)).ok()?;
        let ports = *self.range.start()..=self.range.start() + (share - 1);
        let flags = SocketFlags::CLOEXEC;
        socket_with(Family::V4.domain(), SocketType::STREAM, flags, None)
            .and_then(|socket| bind::limit_ports(socket, &ports))
            .inspect_err(|error| {
                info!("the kernel has no IP_LOCAL_PORT_RANGE: the guest may use every ephemeral TCP port: {error}")
            })
            .ok()
            .map(|()| TcpPortShare::new(ports, size / 4))
    }
}

/// Returns the number of ports in a range.
fn count_of(ports: &RangeInclusive<u16>) -> u32 {
    u32::from(*ports.end()) + 1 - u32::from(*ports.start())
}

/// Appends the range of ports from `first` up to, but not including, `end`; nothing if it is empty.
fn run(first: u32, end: u32, to: &mut Vec<RangeInclusive<u16>>) {
    if let (Ok(first), Ok(last)) = (u16::try_from(first), u16::try_from(end.saturating_sub(1)))
        && first <= last
        && end > 0
    {
        to.push(first..=last);
    }
}

/// The local ports that TCP connections of the guest may use: the first three quarters of the ephemeral range, so that
/// other programs of the host always find a free port, to connect to any destination and to listen on.
///
/// The limit costs a system call for each connection, and the kernel's search for a port takes a microsecond longer
/// (Linux 6.18, 2026-11-23). So it applies only when connections hold a quarter of the range. The connections before
/// that are spread over the whole range, and leave three quarters of its last quarter free.
#[derive(Debug)]
pub(super) struct TcpPortShare {
    ports: RangeInclusive<u16>,
    /// Number of ports that connections without the limit may hold.
    unlimited: u32,
    /// Number of the guest's open TCP connections.
    open: u32,
    /// Number of connections that were closed since `begin`, and in the period before `begin`: their ports may be in
    /// TIME_WAIT.
    closed: [u32; 2],
    begin: Instant,
}

/// Time for which the kernel keeps the port of a closed connection in TIME_WAIT (Linux `TCP_TIMEWAIT_LEN`).
const TIME_WAIT: Duration = Duration::from_secs(60);

impl TcpPortShare {
    fn new(ports: RangeInclusive<u16>, unlimited: u32) -> Self {
        Self {
            ports,
            unlimited,
            open: 0,
            closed: [0; 2],
            begin: Instant::now(),
        }
    }

    /// Returns the ports to which the next connection is limited; `None` if it is not limited.
    pub(super) fn limit_next(&mut self) -> Option<&RangeInclusive<u16>> {
        let elapsed = self.begin.elapsed();
        if elapsed >= TIME_WAIT {
            let is_recent = elapsed < 2 * TIME_WAIT;
            self.closed = [0, if is_recent { self.closed[0] } else { 0 }];
            self.begin = Instant::now();
        }
        let [now, before] = self.closed;
        let held = self.open.saturating_add(now).saturating_add(before);
        (held >= self.unlimited).then_some(&self.ports)
    }

    /// Divides the number of ports without the limit by the number of workers.
    pub(super) fn divide(&mut self, workers: u8) {
        self.unlimited /= u32::from(workers.max(1));
    }

    /// Counts a connection that was opened.
    pub(super) fn opened(&mut self) {
        self.open += 1;
    }

    /// Counts a connection that was closed.
    pub(super) fn closed(&mut self) {
        self.open = self.open.saturating_sub(1);
        // The port may be in TIME_WAIT from now on.
        self.closed[0] = self.closed[0].saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_share_is_three_fourths_of_the_range() {
        for (text, share) in [
            ("40000\t40099\n", 40_000..=40_074),
            ("1 65535", 1..=49_151),
            ("40000 40000", 40_000..=40_000),
            ("unreadable", 32_768..=53_941),
        ] {
            assert_eq!(
                EphemeralPorts::parse(text, "").for_tcp().map(|tcp| tcp.ports),
                Some(share)
            );
        }
    }

    #[test]
    fn ports_are_limited_when_connections_hold_a_fourth_of_the_range() {
        let mut share = TcpPortShare::new(1..=75, 12);
        for _ in 0..12 {
            assert_eq!(share.limit_next(), None);
            share.opened();
        }
        assert_eq!(share.limit_next(), Some(&(1..=75)));
        for _ in 0..12 {
            share.closed();
        }
        assert_eq!(share.limit_next(), Some(&(1..=75)), "in TIME_WAIT");
        share.begin -= 2 * TIME_WAIT;
        assert_eq!(share.limit_next(), None);
    }

    #[test]
    fn reserved_ports_are_not_chosen() {
        for (reserved, allowed) in [
            ("\n", vec![40_000..=40_099]),
            (
                "40,8080-8082,40010,40020-40029,50000\n",
                vec![40_000..=40_009, 40_011..=40_019, 40_030..=40_099],
            ),
            ("39000-40049,40052-41000\n", vec![40_050..=40_051]),
            ("1-65535\n", vec![40_000..=40_099]),
        ] {
            let ports = EphemeralPorts::parse("40000 40099", reserved);
            assert_eq!(ports.allowed, allowed, "{reserved}");
            for _ in 0..100 {
                let port = ports.random().unwrap();
                assert!(ports.allowed.iter().any(|run| run.contains(&port)), "{port}");
            }
        }
    }
}
