//! Parses the packet quoted in an ICMP or ICMPv6 error, which may be truncated at any byte.

use core::net::{IpAddr, SocketAddr};

use zerocopy::FromBytes;

use crate::{layout, protocol};

/// Maximum number of quoted bytes that [`QuotedSegment::read`] uses: an IPv4 header with all options, and the eight
/// bytes after it that RFC 792 guarantees.
pub const LEN: usize = 60 + 8;

/// Endpoints and sequence number of a TCP segment that an ICMP error quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotedSegment {
    /// Source address and port of the quoted segment.
    pub source: SocketAddr,
    /// Destination address and port of the quoted segment.
    pub destination: SocketAddr,
    /// Sequence number of the quoted segment.
    pub seq: u32,
}

impl QuotedSegment {
    /// Parses a quoted packet, which begins with the IP header. Returns `None` if the packet is not TCP, has IPv6
    /// extension headers (the engine sends none), or is truncated before the end of the sequence number.
    #[must_use]
    pub fn read(quote: &[u8]) -> Option<Self> {
        let (from, to, number, upper): (IpAddr, IpAddr, _, _) = match quote.first()? >> 4 {
            4 => {
                let (ip, _) = layout::Ipv4Header::ref_from_prefix(quote).ok()?;
                let header_len = usize::from(ip.version_length & 0xf) * 4;
                let upper = quote.get(header_len.max(size_of::<layout::Ipv4Header>())..)?;
                (ip.source.into(), ip.destination.into(), ip.protocol, upper)
            }
            6 => {
                let (ip, upper) = layout::Ipv6Header::ref_from_prefix(quote).ok()?;
                (ip.source.into(), ip.destination.into(), ip.next_header, upper)
            }
            _ => return None,
        };
        let (start, _) = layout::TcpStart::ref_from_prefix(upper).ok()?;
        (number == protocol::TCP).then(|| Self {
            source: SocketAddr::new(from, start.source_port.get()),
            destination: SocketAddr::new(to, start.destination_port.get()),
            seq: start.seq.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use core::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn quoted(source: impl Into<IpAddr>, destination: impl Into<IpAddr>) -> QuotedSegment {
        QuotedSegment {
            source: SocketAddr::new(source.into(), 443),
            destination: SocketAddr::new(destination.into(), 40_000),
            seq: 0x0102_0304,
        }
    }

    const PORTS_AND_SEQ: [u8; 8] = [0x01, 0xbb, 0x9c, 0x40, 1, 2, 3, 4];

    fn v4(options: usize) -> Vec<u8> {
        let mut quote = vec![0; 20 + options];
        quote[0] = 0x45 + (options / 4) as u8;
        quote[9] = protocol::TCP;
        quote[12..20].copy_from_slice(&[203, 0, 113, 7, 10, 0, 2, 15]);
        [&quote[..], &PORTS_AND_SEQ].concat()
    }

    #[test]
    fn ipv4_quote_is_parsed_with_and_without_options() {
        let expected = quoted(Ipv4Addr::new(203, 0, 113, 7), Ipv4Addr::new(10, 0, 2, 15));
        for options in [0, 4, 40] {
            assert_eq!(QuotedSegment::read(&v4(options)), Some(expected), "{options}");
        }
        assert_eq!(v4(40).len(), LEN);
    }

    #[test]
    fn ipv6_quote_is_parsed() {
        let (source, destination) = (Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED);
        let mut quote = vec![0; 40];
        quote[0] = 0x60;
        quote[6] = protocol::TCP;
        quote[8..24].copy_from_slice(&source.octets());
        quote.extend(PORTS_AND_SEQ);
        assert_eq!(QuotedSegment::read(&quote), Some(quoted(source, destination)));
        quote[6] = protocol::UDP;
        assert_eq!(QuotedSegment::read(&quote), None);
    }

    #[test]
    fn truncated_quotes_and_quotes_of_other_protocols_are_refused() {
        let whole = v4(0);
        for len in 0..whole.len() {
            assert_eq!(QuotedSegment::read(&whole[..len]), None, "{len}");
        }
        for (at, byte) in [(0, 0x55), (0, 0x4f), (9, protocol::ICMP)] {
            let mut other = whole.clone();
            other[at] = byte;
            assert_eq!(QuotedSegment::read(&other), None, "{at}: {byte:#x}");
        }
    }
}
