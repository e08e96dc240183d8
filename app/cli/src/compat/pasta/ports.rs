//! Port specifications of pasta's options `-t`, `-u`, `-T` and `-U`, translated into values of `--publish` and `--guest-forward`.

use std::ffi::OsString;
use std::net::IpAddr;

use pontoon_supervisor::forward::Forward;
use pontoon_supervisor::publish::Publish;

use super::{Mode, option};

/// Direction and protocol of one of the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Direction {
    letter: char,
    protocol: Protocol,
    /// True if ports of the host lead to the namespace.
    inward: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
}

pub(super) const TCP_IN: Direction = direction('t', Protocol::Tcp, true);
pub(super) const UDP_IN: Direction = direction('u', Protocol::Udp, true);
pub(super) const TCP_OUT: Direction = direction('T', Protocol::Tcp, false);
pub(super) const UDP_OUT: Direction = direction('U', Protocol::Udp, false);

const fn direction(letter: char, protocol: Protocol, inward: bool) -> Direction {
    Direction {
        letter,
        protocol,
        inward,
    }
}

/// Ports of a command line.
#[derive(Debug, Default)]
pub(super) struct Ports {
    tcp: Inward,
    udp: Inward,
    /// Values of `--guest-forward`.
    outward: Vec<String>,
}

/// Ports of the host that lead to the namespace by one protocol.
#[derive(Debug, Default)]
struct Inward {
    is_given: bool,
    /// Values of `--publish`.
    values: Vec<String>,
}

impl Ports {
    /// Adds the value of one option.
    pub(super) fn take(&mut self, direction: Direction, value: &str) -> Result<(), String> {
        if !direction.inward {
            self.outward.extend(outward(direction, value)?);
            return Ok(());
        }
        let (ports, suffix) = match direction.protocol {
            Protocol::Tcp => (&mut self.tcp, "tcp"),
            Protocol::Udp => (&mut self.udp, "udp"),
        };
        ports.is_given = true;
        if value == "none" {
            return match ports.values.is_empty() {
                true => Ok(()),
                false => Err(format!(
                    "-{} none conflicts with previous options",
                    direction.letter
                )),
            };
        }
        let invalid = |why: &str| format!("Invalid port specifier '{value}'{why}");
        for published in publish(value).map_err(|why| invalid(&why))? {
            let published = format!("{published}/{suffix}");
            let checked: Result<Publish, String> = published.parse();
            checked.map_err(|why| invalid(&format!(": {why}")))?;
            ports.values.push(published);
        }
        Ok(())
    }

    /// Returns the options of `pontoon run` or `pontoon vm`. By default, ports on which programs in a namespace listen are
    /// published, and none of a virtual machine. If `to_loopback` is true, clients on the host are connected to the namespace's
    /// loopback address by TCP.
    pub(super) fn words(&self, mode: Mode, to_loopback: bool) -> Vec<OsString> {
        let of_protocol = |ports: &Inward, default: &str, path: &str| -> Vec<OsString> {
            let default = [default.to_owned()];
            let values = match ports.is_given || mode == Mode::Passt {
                true => &ports.values[..],
                false => &default,
            };
            let publish = |value| option("publish", format!("{value}{path}"));
            values.iter().map(publish).collect()
        };
        let path = if to_loopback { ",via=guest-loopback" } else { "" };
        let mut words = of_protocol(&self.tcp, "auto/tcp", path);
        words.extend(of_protocol(&self.udp, "auto/udp", ""));
        words.extend(self.outward.iter().map(|value| option("guest-forward", value)));
        words
    }
}

/// Translates the value of an option that makes ports of the host available at the namespace's loopback addresses into values of
/// `--guest-forward`. Nothing is forwarded by `auto`, nor by UDP.
fn outward(direction: Direction, value: &str) -> Result<Vec<String>, String> {
    let letter = direction.letter;
    if listen_address(value).is_some() {
        return Err(format!("Listening address not allowed for -{letter} {value}"));
    }
    let chunks: Option<Vec<Chunk<'_>>> = value.split(',').map(chunk).collect();
    let chunks = match chunks {
        _ if value == "none" => return Ok(Vec::new()),
        None => return Err(format!("Invalid port specifier '{value}'")),
        Some(chunks) if chunks.contains(&Chunk::Auto) => return Ok(Vec::new()),
        Some(chunks) => chunks,
    };
    let forward = |chunk: &Chunk<'_>| match chunk {
        Chunk::Ports {
            listen,
            address: None,
            target,
        } if direction.protocol == Protocol::Tcp => {
            let target = target.map(|target| format!(":{target}"));
            Some(format!("localhost:{listen}{}", target.unwrap_or_default()))
        }
        _ => None,
    };
    let forwards: Option<Vec<String>> = chunks.iter().map(forward).collect();
    let forwards = forwards.ok_or_else(|| {
        format!(
            "-{letter} {value}: these ports of the host are not available at the namespace's loopback address \
             (try: --map-host-loopback ADDR, and the port at ADDR)"
        )
    })?;
    for forward in &forwards {
        let checked: Result<Forward, String> = forward.parse();
        checked.map_err(|why| format!("Invalid port specifier '{value}': {why}"))?;
    }
    Ok(forwards)
}

/// Part of a list of ports.
#[derive(Debug, PartialEq, Eq)]
enum Chunk<'a> {
    All(Option<IpAddr>),
    Auto,
    Excluded(&'a str),
    Ports {
        listen: &'a str,
        address: Option<IpAddr>,
        target: Option<&'a str>,
    },
}

/// Translates `[ADDR[%IFACE]/]PORTS` into values of `--publish` without protocol.
fn publish(value: &str) -> Result<Vec<String>, String> {
    let (listen, ports) = listen_address(value).unwrap_or((String::new(), value));
    let chunks: Option<Vec<Chunk<'_>>> = ports.split(',').map(chunk).collect();
    let chunks = chunks.ok_or_else(String::new)?;
    let auto = chunks.contains(&Chunk::Auto).then_some("auto");
    let excluded: Vec<&str> = chunks
        .iter()
        .filter_map(|chunk| match chunk {
            Chunk::Excluded(range) => Some(*range),
            _ => None,
        })
        .collect();
    let list = |first: &[&str]| [first, excluded.as_slice()].concat().join(",");
    let mut plain = Vec::new();
    let mut values = Vec::new();
    let mut of_all = None;
    for chunk in &chunks {
        match chunk {
            Chunk::All(address) => of_all = *address,
            Chunk::Auto | Chunk::Excluded(_) => {}
            Chunk::Ports {
                listen: ports,
                address: None,
                target: None,
            } => plain.push(*ports),
            Chunk::Ports {
                listen: ports,
                address,
                target,
            } => {
                if auto.is_some() {
                    return Err(": 'auto' excludes ports and addresses of the namespace".to_owned());
                }
                let address = address.map(|address| format!(":{}", bracketed(address)));
                let target = target.map(|target| format!(":{target}"));
                values.push(format!(
                    "{listen}{}{}{}",
                    list(&[*ports]),
                    address.unwrap_or_default(),
                    target.unwrap_or_default()
                ));
            }
        }
    }
    // Exclusions only mean all other ports.
    if plain.is_empty() && values.is_empty() {
        let address = of_all.map(|address| format!(":{}", bracketed(address)));
        let ports = list(&[auto.unwrap_or("all")]);
        return Ok(vec![format!("{listen}{ports}{}", address.unwrap_or_default())]);
    }
    if !plain.is_empty() {
        plain.extend(auto);
        values.push(format!("{listen}{}", list(&plain)));
    }
    Ok(values)
}

/// Splits `ADDR[%IFACE]/` off a value: returns it in the syntax of `--publish`, and the rest.
fn listen_address(value: &str) -> Option<(String, &str)> {
    let (head, rest) = value.split_once('/')?;
    let (address, interface) = match head.split_once('%') {
        Some((address, interface)) => (address, Some(interface)),
        None => (head, None),
    };
    let mut listen = match address {
        "" | "*" => String::new(),
        address => bracketed(parse_address(address)?),
    };
    if let Some(interface) = interface {
        listen += "%";
        listen += interface;
    }
    if !listen.is_empty() {
        listen.push(':');
    }
    Some((listen, rest))
}

/// Parses one part of a list of ports; `None` if it is malformed.
fn chunk(text: &str) -> Option<Chunk<'_>> {
    match text.split_once(':') {
        None if text == "auto" => Some(Chunk::Auto),
        None if text == "all" => Some(Chunk::All(None)),
        Some(("all", address)) => parse_address(address).map(|address| Chunk::All(Some(address))),
        None if text.starts_with('~') => is_range(&text[1..]).then_some(Chunk::Excluded(text)),
        None => is_range(text).then_some(Chunk::Ports {
            listen: text,
            address: None,
            target: None,
        }),
        Some((listen, target)) if is_range(listen) => {
            let (address, target) = match target.rsplit_once('/') {
                Some((address, target)) => (Some(parse_address(address)?), Some(target)),
                None => match parse_address(target) {
                    Some(address) => (Some(address), None),
                    None => (None, Some(target)),
                },
            };
            target.is_none_or(is_range).then_some(Chunk::Ports {
                listen,
                address,
                target,
            })
        }
        Some(_) => None,
    }
}

/// Returns true if a text has the form of a port or a range of ports.
fn is_range(text: &str) -> bool {
    let is_port = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.split_once('-') {
        Some((first, last)) => is_port(first) && is_port(last),
        None => is_port(text),
    }
}

/// Parses an address that may be in brackets.
fn parse_address(text: &str) -> Option<IpAddr> {
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    inner.unwrap_or(text).parse().ok()
}

fn bracketed(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    }
}
