//! Encoding and decoding of socket addresses as `sockaddr_in` and `sockaddr_in6` (ip(7), ipv6(7)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use rustix::net::AddressFamily;

/// Size of `sockaddr_in6` in bytes, the longer of the two socket address types.
pub(crate) const MAX_LEN: usize = 28;

const V4_LEN: usize = 16;

/// Address family of a socket or address: IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4 (`AF_INET`).
    V4,
    /// IPv6 (`AF_INET6`).
    V6,
}

impl Family {
    /// Returns the address family of an IP address.
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Returns `AF_INET` or `AF_INET6`.
    #[must_use]
    pub const fn domain(self) -> AddressFamily {
        match self {
            Self::V4 => AddressFamily::INET,
            Self::V6 => AddressFamily::INET6,
        }
    }

    /// Returns the wildcard address of the family, 0.0.0.0 or `::`.
    #[must_use]
    pub const fn unspecified(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }

    /// Returns the loopback address of the family, 127.0.0.1 or `::1`.
    #[must_use]
    pub const fn loopback(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Self::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
        }
    }
}

/// A socket address as the kernel's bytes: a `sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawAddress {
    pub(crate) bytes: [u8; MAX_LEN],
    pub(crate) len: usize,
}

impl RawAddress {
    /// An empty buffer into which the kernel writes a socket address.
    pub(crate) const EMPTY: Self = Self {
        bytes: [0; MAX_LEN],
        len: MAX_LEN,
    };

    /// Decodes the socket address; `None` if the bytes are truncated or the family is not `AF_INET` or `AF_INET6`.
    pub(crate) fn decode(&self) -> Option<SocketAddr> {
        decode(self.bytes.get(..self.len)?)
    }
}

impl From<SocketAddr> for RawAddress {
    fn from(address: SocketAddr) -> Self {
        let mut bytes = [0; MAX_LEN];
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let (family, len) = match address {
            SocketAddr::V4(v4) => {
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                (AddressFamily::INET, V4_LEN)
            }
            SocketAddr::V6(v6) => {
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                (AddressFamily::INET6, MAX_LEN)
            }
        };
        bytes[..2].copy_from_slice(&family.as_raw().to_ne_bytes());
        Self { bytes, len }
    }
}

/// Decodes a socket address; `None` if the bytes are truncated or the family is not `AF_INET` or `AF_INET6`.
pub(crate) fn decode(bytes: &[u8]) -> Option<SocketAddr> {
    let family = AddressFamily::from_raw(u16::from_ne_bytes(*bytes.first_chunk()?));
    let port = u16::from_be_bytes(array(bytes, 2)?);
    if family == AddressFamily::INET {
        return Some(SocketAddr::from((Ipv4Addr::from(array::<4>(bytes, 4)?), port)));
    }
    if family != AddressFamily::INET6 {
        return None;
    }
    let ip = Ipv6Addr::from(array::<16>(bytes, 8)?);
    let scope = u32::from_ne_bytes(array(bytes, 24)?);
    Some(SocketAddrV6::new(ip, port, 0, scope).into())
}

/// Returns the `N` bytes of `bytes` that begin at offset `at`; `None` if `bytes` is shorter.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decoded_address_equals_the_encoded_one() {
        for text in ["192.0.2.7:53", "[2001:db8::7]:65535", "[fe80::1%3]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(RawAddress::from(address).decode(), Some(address));
        }
    }

    #[test]
    fn encoded_layout_is_that_of_the_kernel() {
        for family in [Family::V4, Family::V6] {
            let Ok(server) = std::net::UdpSocket::bind((family.loopback(), 0)) else {
                crate::skipped("the_kernel_agrees", family);
                continue;
            };
            let client = std::net::UdpSocket::bind((family.loopback(), 0)).unwrap();
            crate::message::send(&client, &[], server.local_addr().ok(), &[]).unwrap();
            let got = crate::message::receive(&server, &[], &mut [], crate::message::RecvMode::Next).unwrap();
            assert_eq!(got.address, client.local_addr().ok());
        }
    }

    #[test]
    fn decode_refuses_truncated_addresses_and_other_families() {
        let raw = RawAddress::from("[::1]:9".parse::<SocketAddr>().unwrap());
        for len in 0..MAX_LEN {
            assert_eq!(decode(&raw.bytes[..len]), None);
        }
        assert_eq!(decode(&[0xff; MAX_LEN]), None);
    }
}
