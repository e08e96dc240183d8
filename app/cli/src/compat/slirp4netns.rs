//! Command line of slirp4netns 1.3, translated into `pontoon run --attach` or `pontoon vm`. `docs/compat.md` lists what differs.

use std::ffi::{OsStr, OsString};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;

use super::getopt::{Getopt, Order, Spec, flag, with_argument};
use super::{Failure, Translation};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Configure,
    ExitFd,
    ReadyFd,
    Mtu,
    EnableIpv6,
    ApiSocket,
    Cidr,
    DisableHostLoopback,
    NetnsType,
    UsernsPath,
    EnableSandbox,
    EnableSeccomp,
    OutboundAddr,
    OutboundAddr6,
    DisableDns,
    MacAddress,
    TargetType,
    Help,
    Version,
}

/// Options of slirp4netns, in the order in which its error text for an ambiguous abbreviation lists them.
const SPECS: &[Spec<Key>] = &[
    flag(Key::Configure, Some(b'c'), "configure"),
    with_argument(Key::ExitFd, Some(b'e'), "exit-fd"),
    with_argument(Key::ReadyFd, Some(b'r'), "ready-fd"),
    with_argument(Key::Mtu, Some(b'm'), "mtu"),
    with_argument(Key::Cidr, None, "cidr"),
    flag(Key::DisableHostLoopback, None, "disable-host-loopback"),
    flag(Key::DisableHostLoopback, None, "no-host-loopback"),
    with_argument(Key::NetnsType, None, "netns-type"),
    with_argument(Key::UsernsPath, None, "userns-path"),
    with_argument(Key::ApiSocket, Some(b'a'), "api-socket"),
    flag(Key::EnableIpv6, Some(b'6'), "enable-ipv6"),
    flag(Key::EnableSandbox, None, "enable-sandbox"),
    flag(Key::EnableSandbox, None, "create-sandbox"),
    flag(Key::EnableSeccomp, None, "enable-seccomp"),
    flag(Key::Help, Some(b'h'), "help"),
    flag(Key::Version, Some(b'v'), "version"),
    with_argument(Key::OutboundAddr, None, "outbound-addr"),
    with_argument(Key::OutboundAddr6, None, "outbound-addr6"),
    flag(Key::DisableDns, None, "disable-dns"),
    with_argument(Key::MacAddress, None, "macaddress"),
    with_argument(Key::TargetType, None, "target-type"),
];

/// Version of slirp4netns whose options are supported. Callers compare it with the first version that has an option.
const EMULATED: &str = "1.3.2";

/// Options of a command line, with their values.
#[derive(Debug, Default)]
struct Given {
    configure: bool,
    exit_fd: Option<u32>,
    ready_fd: Option<u32>,
    mtu: Option<u16>,
    ipv6: bool,
    api_socket: Option<OsString>,
    cidr: Option<OsString>,
    disable_host_loopback: bool,
    netns_type: Option<OsString>,
    userns_path: bool,
    outbound: Option<OsString>,
    outbound6: Option<OsString>,
    disable_dns: bool,
    mac: Option<OsString>,
    target_type: Option<OsString>,
}

/// Translates a command line of slirp4netns. Error texts and the usage name the program `program`.
pub(super) fn translate(program: &str, arguments: Vec<OsString>) -> Result<Translation, Failure> {
    let wrong = |text: &str| Failure::new(text).with_usage(usage(program));
    let mut given = Given::default();
    let mut getopt = Getopt::new(program, SPECS, Order::of_environment(), arguments);
    for option in getopt.by_ref() {
        let (key, value) = option.map_err(|text| wrong(&text))?;
        match key {
            Key::Help => return Ok(Translation::Print(usage(program))),
            Key::Version => return Ok(Translation::Print(version())),
            _ => given.take(key, value).map_err(|text| wrong(&text))?,
        }
    }
    let operands = getopt.operands();
    if given.mac.is_some() && !given.configure {
        return Err(wrong(
            "--macaddr cannot be specified when --configure or -c is not specified",
        ));
    }
    let words = match given.target_type.as_deref().map(OsStr::as_encoded_bytes) {
        None | Some(b"netns") => given.namespace(&operands).map_err(|text| wrong(&text))?,
        Some(b"bess") => given.bess(&operands).map_err(|text| wrong(&text))?,
        Some(_) => return Err(wrong("--target-type must be either \"netns\" or \"bess\"")),
    };
    given
        .network(words)
        .map(Translation::Run)
        .map_err(|text| Failure::new(&text))
}

impl Given {
    /// Stores the value of one option.
    fn take(&mut self, key: Key, value: OsString) -> Result<(), String> {
        match key {
            Key::Configure => self.configure = true,
            Key::ExitFd => self.exit_fd = Some(descriptor("exit-fd", &value)?),
            Key::ReadyFd => self.ready_fd = Some(descriptor("ready-fd", &value)?),
            Key::Mtu => {
                let mtu = value.to_str().and_then(|text| text.parse().ok());
                let mtu = mtu.filter(|mtu| (1..=65_521).contains(mtu));
                self.mtu = Some(mtu.ok_or("MTU must be a positive integer (< 65522)")?);
            }
            Key::EnableIpv6 => self.ipv6 = true,
            Key::ApiSocket => self.api_socket = Some(value),
            Key::Cidr => self.cidr = Some(value),
            Key::DisableHostLoopback => self.disable_host_loopback = true,
            Key::NetnsType => self.netns_type = Some(value),
            // The path is not used: the kernel returns the user namespace that owns a network namespace.
            Key::UsernsPath if !Path::new(&value).exists() => {
                return Err(format!("userns path doesn't exist: {}", value.display()));
            }
            Key::UsernsPath => self.userns_path = true,
            Key::OutboundAddr => self.outbound = Some(value),
            Key::OutboundAddr6 => self.outbound6 = Some(value),
            Key::DisableDns => self.disable_dns = true,
            Key::MacAddress => self.mac = Some(value),
            Key::TargetType => self.target_type = Some(value),
            // The sandbox and its system call filter are always enabled. `translate` handles `--help` and `--version`.
            Key::EnableSandbox | Key::EnableSeccomp | Key::Help | Key::Version => {}
        }
        Ok(())
    }

    /// Returns the arguments of `pontoon` that attach to a network namespace.
    fn namespace(&self, operands: &[OsString]) -> Result<Vec<OsString>, String> {
        let target = operands.first().ok_or_else(String::new)?;
        let target = match self.netns_type.as_deref().map(OsStr::as_encoded_bytes) {
            None | Some(b"pid") => {
                let pid = target.to_str().and_then(|text| text.parse::<i32>().ok());
                let pid = pid.filter(|pid| *pid > 0);
                pid.ok_or("PID must be a positive integer")?.to_string().into()
            }
            Some(b"tapfd") => {
                return Err("--netns-type=tapfd is not supported (try: --netns-type=path or pid)".to_owned());
            }
            Some(_) => path(target)?,
        };
        let name = operands.get(1).ok_or_else(String::new)?;
        let mut words = vec!["run".into(), option("attach", target), option("ifname", name)];
        if !self.configure {
            words.push("--no-configure".into());
        }
        Ok(words)
    }

    /// Returns the arguments of `pontoon` that serve User Mode Linux, whose BESS transport sends each frame as one
    /// message.
    fn bess(&self, operands: &[OsString]) -> Result<Vec<OsString>, String> {
        let [socket] = operands else {
            return Err(match operands {
                [] => String::new(),
                _ => "too many arguments".to_owned(),
            });
        };
        for (is_given, name) in [
            (self.configure, "configure"),
            (self.netns_type.is_some(), "netns-type"),
            (self.userns_path, "userns-path"),
        ] {
            if is_given {
                return Err(format!("--{name} conflicts with --target-type=bess"));
            }
        }
        Ok(vec![
            "vm".into(),
            option("socket", socket),
            "--protocol=packet".into(),
            "--one-off".into(),
        ])
    }

    /// Appends the options of the guest's network to `words`.
    fn network(&self, mut words: Vec<OsString>) -> Result<Vec<OsString>, String> {
        let (network, prefix) = self.cidr.as_deref().map_or(Ok(DEFAULT_NETWORK), cidr)?;
        // The gateway and the DNS forwarder have the host numbers 2 and 3 by default.
        let guest = Ipv4Addr::from_bits(network.to_bits() + GUEST_NUMBER);
        words.push(option("address", format!("{guest}/{prefix}")));
        words.push(match self.ipv6 {
            true => option("address", format!("{GUEST_V6}/64")),
            false => "--no-ipv6".into(),
        });
        words.push(option("mtu", self.mtu.unwrap_or(1_500).min(MOST_MTU).to_string()));
        if !self.disable_host_loopback {
            words.push("--host-loopback".into());
        }
        // slirp4netns permits connections to these addresses, as to any other.
        words.extend(["--host-addresses".into(), "--metadata".into()]);
        if self.disable_dns {
            words.push("--dns=none".into());
        }
        words.extend(self.outbound()?);
        if let Some(given) = &self.mac {
            words.push(option("mac", mac(given)?));
        }
        if let Some(path) = &self.api_socket {
            words.push(option("slirp-api", path));
            // Clients on the host's loopback appear as the gateway.
            words.push("--no-splice".into());
        }
        if let Some(number) = self.ready_fd {
            words.push(option("ready-fd", number.to_string()));
        }
        if let Some(number) = self.exit_fd {
            words.push(option("exit-fd", number.to_string()));
        }
        Ok(words)
    }

    /// Returns the options for the source addresses of outgoing packets. Both families may name the same interface.
    fn outbound(&self) -> Result<Vec<OsString>, String> {
        let mut words = Vec::new();
        for (name, value, is_address) in [
            ("outbound-addr", &self.outbound, is_v4 as fn(&str) -> bool),
            ("outbound-addr6", &self.outbound6, is_v6),
        ] {
            let Some(value) = value else { continue };
            let text = value.to_str().unwrap_or_default();
            if !is_address(text) && (text.parse::<std::net::IpAddr>().is_ok() || text.is_empty()) {
                return Err(format!(
                    "{name} has to be a valid address of its family or an interface name."
                ));
            }
            let word = option("outbound", value);
            if !words.contains(&word) {
                words.push(word);
            }
        }
        Ok(words)
    }
}

fn is_v4(text: &str) -> bool {
    text.parse::<Ipv4Addr>().is_ok()
}

fn is_v6(text: &str) -> bool {
    text.parse::<Ipv6Addr>().is_ok()
}

const DEFAULT_NETWORK: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 0, 2, 0), 24);

/// Host number of the guest in its IPv4 network.
const GUEST_NUMBER: u32 = 100;

const GUEST_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x100);

/// The largest value of `pontoon run --mtu`. slirp4netns accepts one more byte.
const MOST_MTU: u16 = 65_520;

/// Returns a word `--name=value`, in which the value may begin with a hyphen.
fn option(name: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut word = OsString::from(format!("--{name}="));
    word.push(value);
    word
}

fn descriptor(name: &str, value: &OsStr) -> Result<u32, String> {
    let number = value.to_str().and_then(|text| text.parse::<i32>().ok());
    number
        .and_then(|number| number.try_into().ok())
        .ok_or_else(|| format!("{name} must be a non-negative integer"))
}

/// Returns the path of a namespace in a form that cannot be parsed as a process id.
fn path(given: &OsStr) -> Result<OsString, String> {
    if let Err(error) = std::fs::metadata(given) {
        let why = pontoon_process::error::reason(&error);
        return Err(format!("existing path expected when --netns-type=path: {why}"));
    }
    let path = Path::new(given);
    Ok(match path.is_relative() {
        true => Path::new(".").join(path).into(),
        false => given.to_owned(),
    })
}

/// Parses the guest's network, which must contain the host number of the guest.
fn cidr(text: &OsStr) -> Result<(Ipv4Addr, u8), String> {
    let text = text.to_string_lossy();
    let invalid = || format!("invalid CIDR: {text}");
    let (network, prefix) = text.split_once('/').ok_or_else(invalid)?;
    let is_number = |text: &str, most: usize| {
        (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let parts = network.split('.');
    if parts.clone().count() != 4 || !parts.clone().all(|part| is_number(part, 3)) || !is_number(prefix, 2) {
        return Err(invalid());
    }
    let address: Ipv4Addr = network
        .parse()
        .map_err(|_| format!("invalid network address: {network}"))?;
    let prefix: u8 = prefix.parse().map_err(|_| invalid())?;
    if !(1..=25).contains(&prefix) {
        return Err("prefix length needs to be 1-25".to_owned());
    }
    if address.to_bits() << prefix != 0 {
        return Err("CIDR needs to be a network address like 10.0.2.0/24, not like 10.0.2.100/24".to_owned());
    }
    Ok((address, prefix))
}

/// Returns an Ethernet address in the form of `pontoon run --mac`.
fn mac(text: &OsStr) -> Result<String, String> {
    let text = text.to_string_lossy();
    let octets: Option<Vec<u8>> = text
        .split(':')
        .map(|part| u8::from_str_radix(part, 16).ok())
        .collect();
    match octets.as_deref() {
        Some([a, b, c, d, e, f]) => Ok(format!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{f:02x}")),
        _ => Err(format!(
            "\"{text}\" is an invalid MAC address.\nmacaddress has to be a valid MAC address (hex string, 6 bytes, each byte \
             separated by a ':')."
        )),
    }
}

/// Returns the text of `--help`, in which callers search for the options that they need.
pub(super) fn usage(program: &str) -> String {
    format!(
        "\
Usage: {program} [OPTION]... PID|PATH TAPNAME
       {program} --target-type=bess [OPTION]... SOCKET
Pontoon with the command line of slirp4netns {EMULATED}: connects a network namespace without privileges.

-c, --configure          set addresses and routes, and bring TAPNAME up
-e, --exit-fd=FD         exit when the other end of FD is closed
-r, --ready-fd=FD        write to FD when the network is ready
-m, --mtu=MTU            MTU, 576 to 65520 (default=1500)
-6, --enable-ipv6        IPv6: fd00::/64
-a, --api-socket=PATH    accept requests to publish ports at PATH
--cidr=CIDR              IPv4 network of the guest (default=10.0.2.0/24)
--disable-host-loopback  no access to the host's 127.0.0.1 by the gateway's address
--netns-type=TYPE        pid or path (default=pid)
--userns-path=PATH       no effect: the namespace's owner is found without it
--enable-sandbox         no effect: the sandbox is always on
--enable-seccomp         no effect: the filter of system calls is always on
--outbound-addr=IPv4     source address of outbound packets, or interface
--outbound-addr6=IPv6    the same for IPv6
--disable-dns            no DNS forwarder
--macaddress=MAC         Ethernet address of TAPNAME (with -c only)
--target-type=TYPE       netns or bess (default=netns)
-h, --help               show this text
-v, --version            show the version
"
    )
}

/// Returns the text of `--version`. Callers parse the first line, and `SLIRP_CONFIG_VERSION_MAX`, by which slirp4netns
/// states the options that its library supports: 3 means all of them.
fn version() -> String {
    format!(
        "slirp4netns version {EMULATED}\npontoon: {}\nSLIRP_CONFIG_VERSION_MAX: 3\n",
        env!("CARGO_PKG_VERSION")
    )
}

#[cfg(test)]
mod tests;
