//! The guest's network configuration, as its kernel reports it (`ip`).

use std::net::IpAddr;
use std::process::Command;

use anyhow::{Context, Result};

use crate::case::Family;
use crate::process;

/// A default route: gateway and interface.
pub(crate) struct Route {
    pub(crate) gateway: IpAddr,
    pub(crate) interface: String,
}

/// Returns the default route of `family`.
pub(crate) fn default(family: Family) -> Result<Route> {
    let text = process::output(Command::new("ip").args([family.flag(), "route", "show", "default"]))?;
    let after = |word: &str| text.split_whitespace().skip_while(|other| *other != word).nth(1);
    Ok(Route {
        gateway: after("via").context("the guest has no default route")?.parse()?,
        interface: after("dev")
            .context("the default route has no interface")?
            .to_string(),
    })
}

/// Returns the address of `interface` with global scope.
pub(crate) fn address(family: Family, interface: &str) -> Result<IpAddr> {
    let show = [
        family.flag(),
        "-oneline",
        "address",
        "show",
        "dev",
        interface,
        "scope",
        "global",
    ];
    let text = process::output(Command::new("ip").args(show))?;
    let mut words = text
        .split_whitespace()
        .skip_while(|word| !word.starts_with("inet"))
        .skip(1);
    let address = words.next().and_then(|address| address.split('/').next());
    Ok(address
        .context("the interface has no address with global scope")?
        .parse()?)
}

/// Returns the Ethernet address of `neighbour` from the kernel's neighbour table, after it was resolved.
pub(crate) fn neighbour(neighbour: IpAddr) -> Result<[u8; 6]> {
    // A datagram to the neighbour makes the kernel resolve its address.
    let any: IpAddr = if neighbour.is_ipv4() {
        [0; 4].into()
    } else {
        [0; 16].into()
    };
    std::net::UdpSocket::bind((any, 0))?.send_to(&[0], (neighbour, 9))?;
    let mut found = None;
    process::wait_until("a neighbour's address", std::time::Duration::from_secs(3), || {
        let text = process::output(Command::new("ip").args(["neighbour", "show", &neighbour.to_string()]))?;
        found = text
            .split_whitespace()
            .skip_while(|word| *word != "lladdr")
            .nth(1)
            .and_then(parse_mac);
        Ok(found.is_some())
    })?;
    found.context("the neighbour table has no such neighbour")
}

/// Returns the Ethernet address of `interface`.
pub(crate) fn mac(interface: &str) -> Result<[u8; 6]> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/address"));
    let text = text.or_else(|_| {
        // `ip` is used because /sys may be that of the host.
        let text = process::output(Command::new("ip").args(["-oneline", "link", "show", interface]));
        text.map(|text| {
            text.split_whitespace()
                .skip_while(|word| *word != "link/ether")
                .nth(1)
                .unwrap_or("")
                .to_string()
        })
    })?;
    parse_mac(text.trim()).context("ip printed no Ethernet address")
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok())
        .collect();
    bytes?.try_into().ok()
}
