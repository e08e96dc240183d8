//! Parsers of the values of pasta's options, with its error texts.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Default limit on the size of the log file, in bytes.
pub(super) const LOG_SIZE: u64 = 1 << 20;

/// A value for each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OfFamily<A, B> {
    pub(super) v4: Option<A>,
    pub(super) v6: Option<B>,
}

impl<A, B> Default for OfFamily<A, B> {
    fn default() -> Self {
        Self { v4: None, v6: None }
    }
}

/// An address of each family.
pub(super) type Addresses = OfFamily<Ipv4Addr, Ipv6Addr>;

impl Addresses {
    /// Replaces the address of the family of `address`.
    pub(super) fn set(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.v4 = Some(address),
            IpAddr::V6(address) => self.v6 = Some(address),
        }
    }

    /// Returns the addresses.
    pub(super) fn iter(self) -> impl Iterator<Item = IpAddr> {
        let v4 = self.v4.map(IpAddr::V4);
        v4.into_iter().chain(self.v6.map(IpAddr::V6))
    }
}

/// Parses a number as strtoul(3) does with base 0: decimal, hexadecimal (0x) or octal (0).
pub(super) fn number(text: &str) -> Option<u64> {
    let is_number = |digits: &str, radix| {
        let fits = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
        fits.then(|| u64::from_str_radix(digits, radix).ok()).flatten()
    };
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => is_number(digits, 16),
        None if text.len() > 1 && text.starts_with('0') => is_number(&text[1..], 8),
        None => is_number(text, 10),
    }
}

/// Parses an address that is neither unspecified nor broadcast, nor loopback unless that is `permitted`. `wrong` begins the
/// text of an error.
pub(super) fn address(text: &str, wrong: &str, loopback_permitted: bool) -> Result<IpAddr, String> {
    let parsed = text.parse().ok().filter(|address: &IpAddr| {
        let is_broadcast = *address == Ipv4Addr::BROADCAST;
        let is_refused = address.is_loopback() && !loopback_permitted;
        !address.is_unspecified() && !is_broadcast && !is_refused
    });
    parsed.ok_or_else(|| format!("{wrong}: {text}"))
}

/// Parses an address to which `--map-host-loopback` and `--map-guest-addr` apply; `None` for the word `none`.
pub(super) fn mapped(text: &str) -> Result<Option<IpAddr>, String> {
    if text == "none" {
        return Ok(None);
    }
    let wrong = || format!("Invalid address to remap to host: {text}");
    let address = address(text, "Invalid address to remap to host", false)?;
    if address.is_multicast() {
        return Err(wrong());
    }
    crate::values::mapped_address(text)
        .map(Some)
        .map_err(|why| format!("{}: {why}", wrong()))
}

/// Parses an outbound address.
pub(super) fn outbound(text: &str) -> Result<IpAddr, String> {
    let wrong = "Invalid or redundant outbound address";
    let address = address(text, wrong, true)?;
    crate::values::unicast(text).map_err(|why| format!("{wrong}: {text}: {why}"))?;
    Ok(address)
}

/// Parses a guest's address and its prefix length, if the text contains one. That of an IPv6 address is 64.
pub(super) fn guest_address(text: &str) -> Result<(IpAddr, Option<u8>), String> {
    let invalid = || format!("Invalid guest address: {text}");
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| invalid())?;
    crate::values::unicast(&address.to_string()).map_err(|_| invalid())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let prefix = match prefix {
        Some(text_of_prefix) => {
            let prefix: u8 = text_of_prefix.parse().map_err(|_| invalid())?;
            if !(1..=most).contains(&prefix) {
                return Err(format!("Invalid prefix length: {text}"));
            }
            Some(prefix)
        }
        None => None,
    };
    Ok((address, prefix))
}

/// Parses an IPv4 netmask: a prefix length, or four numbers.
pub(super) fn netmask(text: &str) -> Result<u8, String> {
    let invalid = || format!("Invalid prefix length: {text}");
    if let Ok(mask) = text.parse::<Ipv4Addr>() {
        let mask = mask.to_bits();
        let ones = mask.leading_ones();
        let is_mask = mask.count_ones() == ones;
        return is_mask
            .then_some(ones)
            .and_then(|ones| u8::try_from(ones).ok())
            .ok_or_else(invalid);
    }
    let length = number(text).filter(|length| *length <= 32);
    length
        .and_then(|length| u8::try_from(length).ok())
        .ok_or_else(invalid)
}

/// Returns the prefix length of the class of an IPv4 address (RFC 791 section 3.2).
pub(super) fn class_prefix(address: Ipv4Addr) -> u8 {
    match address.octets()[0] {
        0..128 => 8,
        128..192 => 16,
        192..224 => 24,
        _ => 32,
    }
}

/// Parses an Ethernet address: six numbers of two hexadecimal digits, separated by colons.
pub(super) fn mac(text: &str) -> Result<String, String> {
    let is_octet = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_mac = text.split(':').count() == 6 && text.split(':').all(is_octet);
    if !is_mac {
        return Err(format!("Invalid MAC address: {text}"));
    }
    crate::values::mac(text).map_err(|why| format!("Invalid MAC address: {text}: {why}"))?;
    Ok(text.to_owned())
}

/// Parses the name of an interface.
pub(super) fn interface(text: &str) -> Result<String, String> {
    crate::values::ifname(text).map_err(|_| format!("Invalid interface name: {text}"))
}

/// Returns the value of an option whose values are text.
pub(super) fn text(value: &OsStr) -> Result<&str, String> {
    value
        .to_str()
        .ok_or_else(|| format!("Invalid value, which is not UTF-8: {}", value.display()))
}
