//! Command line of passt (passt(1)): translated into `pontoon vm`. The options are those of pasta.

use std::ffi::OsString;

use super::pasta::given::{Given, PasstSocket};
use super::pasta::{self, CommandLine, EMULATED, Mode, option};
use super::{Failure, Translation};

/// Number of the default socket files.
const SOCKETS: u32 = 64;

/// Translates a command line of passt. Error texts and the usage name the program `program`.
pub(super) fn translate(program: &str, arguments: Vec<OsString>) -> Result<Translation, Failure> {
    match pasta::parse(Mode::Passt, program, arguments)? {
        CommandLine::Print(text) => Ok(Translation::Print(text)),
        CommandLine::Given(given, operands) => match operands.first() {
            None => machine(&given).map_err(|text| Failure::new(&text)),
            Some(operand) => Err(Failure::new(&format!(
                "Extra non-option argument: {}",
                operand.display()
            ))),
        },
    }
}

fn machine(given: &Given) -> Result<Translation, String> {
    let mut words = vec!["vm".into()];
    match &given.socket {
        Some(PasstSocket::Path(path)) => words.push(option("socket", path)),
        Some(PasstSocket::Descriptor(number)) => words.push(option("fd", number)),
        None => words.extend(default_sockets().map(|path| option("socket", path))),
    }
    words.push(option(
        "protocol",
        if given.vhost_user { "vhost-user" } else { "stream" },
    ));
    // A connected socket has one guest only.
    if given.one_off || matches!(given.socket, Some(PasstSocket::Descriptor(_))) {
        words.push("--one-off".into());
    }
    if !given.foreground {
        words.push("--daemon".into());
    }
    if let Some(name) = &given.hostname {
        let name = crate::values::hostname(name).map_err(|why| format!("Invalid hostname: {name}: {why}"))?;
        words.push(option("hostname", name));
    }
    given.network(false, &mut words)?;
    given.output(false, &mut words);
    Ok(Translation::Run(words))
}

/// Returns the default paths, of which the first one is used at which a socket can be bound.
fn default_sockets() -> impl Iterator<Item = String> {
    (1..SOCKETS).map(|number| format!("/tmp/passt_{number}.socket"))
}

/// Returns the text of `--help`, in which callers search for the options that they need.
pub(super) fn usage(program: &str) -> String {
    format!(
        "\
Usage: {program} [OPTION]...

Pontoon with the command line of passt {EMULATED}: connects a virtual machine without privileges.
docs/compat.md has the differences.

  -d, --debug               log more
      --trace               log everything
  -q, --quiet               log errors only
  -f, --foreground          do not run in the background
  -e, --stderr              no effect
  -l, --log-file PATH       write the log to a file
      --log-size BYTES      size of that file (default: 1 MiB)
  -h, --help                show this text
      --version             show the version
  -s, --socket, --socket-path PATH
                            listen at this path (default: the first free one of /tmp/passt_1.socket and so on)
      --vhost-user          the socket's protocol is vhost-user
      --print-capabilities  print the capabilities of the vhost-user back end
      --repair-path none    no effect; another path is refused
      --migrate-exit, --migrate-no-linger
                            no effect: connections do not migrate
  -F, --fd FD               use this connected socket
  -p, --pcap FILE           capture frames
  -P, --pid FILE            write the process id
  -c, --conf-path PATH      listen for pesto at this path
  -m, --mtu MTU             MTU, 576 to 65520; 0: 1500 (default: 65520)
  -a, --address ADDR        address of the guest, ADDR[/PREFIXLEN]; one for each family (default: the host's)
  -n, --netmask MASK        netmask or prefix length of -a
  -M, --mac-addr ADDR       Ethernet address of the gateway (default: 9a:55:9a:55:9a:55)
  -g, --gateway ADDR        gateway, one for each family (default: the host's)
  -i, --interface NAME      host interface whose addresses and routes are used
  -o, --outbound ADDR       source address of outbound packets, one for each family
      --outbound-if4 NAME   outbound interface
      --outbound-if6 NAME   outbound interface, the same as that of --outbound-if4
  -D, --dns ADDR            DNS server that is announced to the guest, or none
  -S, --search LIST         search domains, or none
  -H, --hostname NAME       host name that is announced by DHCP
      --fqdn NAME           domain name that is announced by DHCP and DHCPv6
      --no-dhcp-dns         announce no DNS server
      --no-dhcp-search      announce no search domains
      --map-host-loopback ADDR  ADDR is the host's loopback; or none (default: the gateway)
      --map-guest-addr ADDR     ADDR is the host's own address; or none
      --dns-forward ADDR    address of the DNS forwarder
      --dns-host ADDR       server to which it sends queries
      --no-tcp, --no-udp, --no-icmp, --no-dhcp, --no-ndp, --no-dhcpv6, --no-ra
                            protocols and services that the guest does not have
      --no-map-gw           the gateway is not the host's loopback
      --chroot-fallback     no effect
  -4, --ipv4-only           no IPv6
  -6, --ipv6-only           no IPv4
  -t, --tcp-ports SPEC      TCP ports of the host that lead to the guest (default: none): none, or
                            [ADDR[%IFACE]/]PORTS; PORTS: all, 22, 22:23, 22-80:32-90, 80:ADDR/8080, ~25,
                            separated by commas
  -u, --udp-ports SPEC      UDP ports (default: none)
  -1, --one-off             exit when the first guest has disconnected
"
    )
}

#[cfg(test)]
mod tests;
