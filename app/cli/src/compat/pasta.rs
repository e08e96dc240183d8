//! Command line of pasta (pasta(1)): translated into `pontoon run`, with `--attach` if it names a namespace. passt has the same
//! options.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::getopt::{Getopt, Order, Spec, flag, with_argument};
use super::{Failure, Translation};
use given::{Given, Level};
pub(super) use text::{EMULATED, usage};

pub(super) mod given;
mod ports;
mod text;
mod values;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Debug,
    Trace,
    Quiet,
    Foreground,
    LogFile,
    LogSize,
    Help,
    Version,
    NsIfname,
    Pcap,
    Pid,
    Mtu,
    Address,
    Netmask,
    MacAddr,
    NsMacAddr,
    Gateway,
    Interface,
    Outbound,
    OutboundInterface4,
    OutboundInterface6,
    Dns,
    DnsForward,
    DnsHost,
    DhcpDns,
    DhcpSearch,
    Search,
    Hostname,
    Fqdn,
    /// Service of the link that the guest does not have, by its word in `--disable`.
    Disable(&'static str),
    NoMapGateway,
    MapHostLoopback,
    MapGuestAddr,
    Ipv4Only,
    Ipv6Only,
    /// One of `-t`, `-u`, `-T` and `-U`.
    Ports(ports::Direction),
    Userns,
    Netns,
    NetnsOnly,
    NoNetnsQuit,
    ConfigNet,
    NoCopyRoutes,
    NoCopyAddrs,
    HostLoToNsLo,
    NoSplice,
    SpliceOnly,
    Socket,
    Fd,
    OneOff,
    NoDhcpDns,
    NoDhcpSearch,
    VhostUser,
    PrintCapabilities,
    RepairPath,
    ConfPath,
    /// Option of a migration of passt's, by its name.
    Migration(&'static str),
    /// Option that has no effect, by its name.
    Ignored(&'static str),
    /// Option that is refused, with the text of the error.
    Refused(&'static str),
}

/// The program whose name was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Pasta,
    Passt,
}

/// Options of pasta, in the order of its own table, in which abbreviated names are looked up.
const SPECS: &[Spec<Key>] = &[
    flag(Key::Debug, Some(b'd'), "debug"),
    flag(Key::Quiet, Some(b'q'), "quiet"),
    flag(Key::Foreground, Some(b'f'), "foreground"),
    flag(Key::Ignored("stderr"), Some(b'e'), "stderr"),
    with_argument(Key::LogFile, Some(b'l'), "log-file"),
    flag(Key::Help, Some(b'h'), "help"),
    with_argument(Key::Socket, Some(b's'), "socket"),
    with_argument(Key::Fd, Some(b'F'), "fd"),
    with_argument(Key::NsIfname, Some(b'I'), "ns-ifname"),
    with_argument(Key::Pcap, Some(b'p'), "pcap"),
    with_argument(Key::Pid, Some(b'P'), "pid"),
    with_argument(Key::Mtu, Some(b'm'), "mtu"),
    with_argument(Key::Address, Some(b'a'), "address"),
    with_argument(Key::Netmask, Some(b'n'), "netmask"),
    with_argument(Key::MacAddr, Some(b'M'), "mac-addr"),
    with_argument(Key::Gateway, Some(b'g'), "gateway"),
    with_argument(Key::Interface, Some(b'i'), "interface"),
    with_argument(Key::Outbound, Some(b'o'), "outbound"),
    with_argument(Key::Dns, Some(b'D'), "dns"),
    with_argument(Key::Search, Some(b'S'), "search"),
    with_argument(Key::Hostname, Some(b'H'), "hostname"),
    flag(Key::Disable("tcp"), None, "no-tcp"),
    flag(Key::Disable("udp"), None, "no-udp"),
    flag(Key::Disable("icmp"), None, "no-icmp"),
    flag(Key::Disable("dhcp"), None, "no-dhcp"),
    flag(Key::Disable("dhcpv6"), None, "no-dhcpv6"),
    flag(Key::Disable("ndp"), None, "no-ndp"),
    flag(Key::Disable("ra"), None, "no-ra"),
    flag(Key::NoSplice, None, "no-splice"),
    flag(Key::SpliceOnly, None, "splice-only"),
    flag(Key::Refused(text::FREEBIND), None, "freebind"),
    flag(Key::NoMapGateway, None, "no-map-gw"),
    flag(Key::Ipv4Only, Some(b'4'), "ipv4-only"),
    flag(Key::Ipv6Only, Some(b'6'), "ipv6-only"),
    flag(Key::OneOff, Some(b'1'), "one-off"),
    with_argument(Key::Ports(ports::TCP_IN), Some(b't'), "tcp-ports"),
    with_argument(Key::Ports(ports::UDP_IN), Some(b'u'), "udp-ports"),
    with_argument(Key::Ports(ports::TCP_OUT), Some(b'T'), "tcp-ns"),
    with_argument(Key::Ports(ports::UDP_OUT), Some(b'U'), "udp-ns"),
    with_argument(Key::Userns, None, "userns"),
    with_argument(Key::Netns, None, "netns"),
    with_argument(Key::NsMacAddr, None, "ns-mac-addr"),
    flag(Key::DhcpDns, None, "dhcp-dns"),
    flag(Key::NoDhcpDns, None, "no-dhcp-dns"),
    flag(Key::DhcpSearch, None, "dhcp-search"),
    flag(Key::NoDhcpSearch, None, "no-dhcp-search"),
    with_argument(Key::DnsForward, None, "dns-forward"),
    flag(Key::NoNetnsQuit, None, "no-netns-quit"),
    flag(Key::Trace, None, "trace"),
    with_argument(Key::Refused(text::RUNAS), None, "runas"),
    with_argument(Key::LogSize, None, "log-size"),
    flag(Key::Version, None, "version"),
    with_argument(Key::OutboundInterface4, None, "outbound-if4"),
    with_argument(Key::OutboundInterface6, None, "outbound-if6"),
    flag(Key::ConfigNet, None, "config-net"),
    flag(Key::NoCopyRoutes, None, "no-copy-routes"),
    flag(Key::NoCopyAddrs, None, "no-copy-addrs"),
    flag(Key::NetnsOnly, None, "netns-only"),
    with_argument(Key::MapHostLoopback, None, "map-host-loopback"),
    with_argument(Key::MapGuestAddr, None, "map-guest-addr"),
    flag(Key::HostLoToNsLo, None, "host-lo-to-ns-lo"),
    with_argument(Key::DnsHost, None, "dns-host"),
    flag(Key::VhostUser, None, "vhost-user"),
    flag(Key::PrintCapabilities, None, "print-capabilities"),
    with_argument(Key::Socket, None, "socket-path"),
    with_argument(Key::Fqdn, None, "fqdn"),
    with_argument(Key::RepairPath, None, "repair-path"),
    flag(Key::Migration("migrate-exit"), None, "migrate-exit"),
    flag(Key::Migration("migrate-no-linger"), None, "migrate-no-linger"),
    with_argument(Key::Refused(text::STATS), None, "stats"),
    with_argument(Key::ConfPath, Some(b'c'), "conf-path"),
    flag(Key::Ignored("chroot-fallback"), None, "chroot-fallback"),
];

/// Command line whose options are known.
pub(super) enum CommandLine {
    /// Text that is printed to standard output.
    Print(String),
    /// Options, and the operands.
    Given(Box<Given>, Vec<OsString>),
}

/// Translates a command line of pasta. Error texts and the usage name the program `program`.
pub(super) fn translate(program: &str, arguments: Vec<OsString>) -> Result<Translation, Failure> {
    match parse(Mode::Pasta, program, arguments)? {
        CommandLine::Print(text) => Ok(Translation::Print(text)),
        CommandLine::Given(given, operands) => given.translate(&operands).map_err(|text| Failure::new(&text)),
    }
}

/// Parses a command line of pasta or passt.
pub(super) fn parse(mode: Mode, program: &str, arguments: Vec<OsString>) -> Result<CommandLine, Failure> {
    let usage = || match mode {
        Mode::Pasta => text::usage(program),
        Mode::Passt => super::passt::usage(program),
    };
    let mut given = Given::new(mode);
    // pasta requests this order from getopt: the options of a command are not its own.
    let mut getopt = Getopt::new(program, SPECS, Order::OptionsFirst, arguments);
    for option in getopt.by_ref() {
        let with_usage = |error| Failure::new(&format!("{error}\n{}", usage().trim_end()));
        let (key, value) = option.map_err(with_usage)?;
        if let Some(text) = refusal(mode, key) {
            return Err(Failure::new(&text));
        }
        match key {
            Key::Help => return Ok(CommandLine::Print(usage())),
            Key::Version => return Ok(CommandLine::Print(text::version(mode))),
            Key::PrintCapabilities => return Ok(CommandLine::Print(text::CAPABILITIES.to_owned())),
            _ => given.take(key, &value).map_err(|text| Failure::new(&text))?,
        }
    }
    Ok(CommandLine::Given(Box::new(given), getopt.operands()))
}

/// Returns the error text of an option that is refused.
fn refusal(mode: Mode, key: Key) -> Option<String> {
    if let Key::Refused(text) = key {
        return Some(text.to_owned());
    }
    match mode {
        Mode::Pasta => text::only_of_passt(key).map(str::to_owned),
        Mode::Passt => text::only_of_pasta(key).map(|option| format!("{option} is for pasta mode only")),
    }
}

/// Namespace that a command line names.
#[derive(Debug, PartialEq, Eq)]
enum Namespace {
    /// Process id, or path of a namespace file that cannot be parsed as one.
    Existing(OsString),
    /// A new namespace, for a command or a shell.
    New,
}

impl Given {
    fn translate(&self, operands: &[OsString]) -> Result<Translation, String> {
        self.check()?;
        let namespace = self.namespace(operands)?;
        let mut words = vec!["run".into()];
        match &namespace {
            Namespace::Existing(target) => self.attach(target, &mut words),
            Namespace::New => self.spawn(&mut words)?,
        }
        self.network(namespace != Namespace::New, &mut words)?;
        self.output(namespace == Namespace::New, &mut words);
        Ok(match namespace {
            Namespace::Existing(_) => Translation::Run(words),
            Namespace::New => {
                words.push("--".into());
                words.extend(operands.iter().cloned());
                Translation::Command(words)
            }
        })
    }

    /// Checks for options that exclude each other.
    fn check(&self) -> Result<(), String> {
        let wrong = match self {
            given if given.splice_only && given.no_splice => "--splice-only is incompatible with --no-splice",
            given if given.splice_only => text::SPLICE_ONLY,
            given if given.no_splice && given.host_lo => {
                "--host-lo-to-ns-lo is incompatible with --no-splice"
            }
            given if !given.config_net && given.no_copy_routes => "--no-copy-routes needs --config-net",
            given if !given.config_net && given.no_copy_addrs => "--no-copy-addrs needs --config-net",
            _ => return Ok(()),
        };
        Err(wrong.to_owned())
    }

    /// Returns the namespace that `--netns` or a single number names.
    fn namespace(&self, operands: &[OsString]) -> Result<Namespace, String> {
        let namespace = match (&self.netns, operands) {
            (Some(_), [_, ..]) => return Err("Both --netns and PID or command given".to_owned()),
            (Some(name), []) => Namespace::Existing(netns(name)),
            (None, [word]) if is_number(word) => {
                let pid = word.to_str().and_then(|text| text.parse::<i32>().ok());
                let pid = pid.filter(|pid| *pid > 0);
                let pid = pid.ok_or_else(|| format!("Invalid PID {}", word.display()))?;
                Namespace::Existing(pid.to_string().into())
            }
            (None, _) => Namespace::New,
        };
        match &self.userns {
            Some(path) if namespace == Namespace::New => Err(format!(
                "--userns {}: a command gets a new user namespace (try: --netns PATH or a PID)",
                path.display()
            )),
            // The path is not used: the kernel returns the user namespace that owns a network namespace.
            Some(path) if !Path::new(path).exists() => Err(format!(
                "Couldn't open user namespace {}: No such file or directory",
                path.display()
            )),
            _ => Ok(namespace),
        }
    }

    /// Appends the options of an existing namespace.
    fn attach(&self, target: &OsStr, words: &mut Vec<OsString>) {
        words.push(option("attach", target));
        for (is_given, word) in [
            (!self.config_net, "--no-configure"),
            (!self.config_net, "--bring-up-loopback"),
            (!self.foreground, "--daemon"),
            (self.no_netns_quit, "--stay"),
        ] {
            if is_given {
                words.push(word.into());
            }
        }
    }

    /// Appends the options of a new namespace.
    fn spawn(&self, words: &mut Vec<OsString>) -> Result<(), String> {
        if self.netns_only {
            words.push("--keep-capabilities".into());
        }
        let name = match &self.hostname {
            Some(name) => Some(name.clone()),
            None => host_name().as_deref().and_then(default_hostname),
        };
        if let Some(name) = name {
            crate::values::hostname(&name).map_err(|why| format!("Invalid hostname: {name}: {why}"))?;
            words.push(option("hostname", name));
        }
        Ok(())
    }

    /// Appends the options of log, capture and files.
    pub(super) fn output(&self, has_command: bool, words: &mut Vec<OsString>) {
        match self.level {
            Level::Trace => words.push("-vv".into()),
            Level::Debug => words.push("-v".into()),
            // Messages would mix with the output of the command.
            Level::Info if has_command => words.push("--quiet".into()),
            Level::Info => {}
            Level::Quiet => words.push("--quiet".into()),
        }
        if let Some(path) = &self.log_file {
            let mut value = path.clone();
            let size = self.log_size.unwrap_or(values::LOG_SIZE);
            value.push(format!(",size={size},title={}", text::title(self.mode)));
            words.push(option("log-file", value));
        }
        for (name, path) in [("pcap", &self.pcap), ("pid-file", &self.pid)] {
            if let Some(path) = path {
                words.push(option(name, path));
            }
        }
        if let Some(path) = &self.conf_path {
            let mut value = path.clone();
            value.push(if self.host_lo { ",via=guest-loopback" } else { "" });
            words.push(option("pesto", value));
        }
        // Callers read the file of an instance that has ended.
        if self.pid.is_some() {
            words.push("--keep-pid-file".into());
        }
    }
}

/// Returns the path of a namespace: a name without slashes is one of ip-netns(8).
fn netns(name: &OsStr) -> OsString {
    if name.as_encoded_bytes().contains(&b'/') {
        return name.to_owned();
    }
    Path::new("/run/netns").join(name).into()
}

fn is_number(word: &OsStr) -> bool {
    let bytes = word.as_encoded_bytes();
    !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit)
}

fn host_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(text.trim_end().to_owned())
}

/// Returns the host name of a new namespace on a host with the name `host`; `None` if that contains characters which a host name
/// cannot have.
fn default_hostname(host: &str) -> Option<String> {
    let mut name = format!("pasta-{host}");
    name.truncate(name.floor_char_boundary(63));
    let name = name.trim_end_matches(['.', '-']);
    crate::values::hostname(name).ok()
}

/// Returns a word `--name=value`, in which the value may begin with a hyphen.
pub(super) fn option(name: &str, value: impl AsRef<OsStr>) -> OsString {
    let mut word = OsString::from(format!("--{name}="));
    word.push(value);
    word
}

#[cfg(test)]
mod tests;
