//! Texts of pasta's command line: help, version, and errors of options that are refused.

use super::{Key, Mode, ports};

/// Version of pasta and passt whose options are supported. Callers print it, or compare it with the first version that has an
/// option.
pub(in crate::compat) const EMULATED: &str = "2026_07_24.06fedeb";

/// Text of `--print-capabilities`, by the conventions of vhost-user's back ends.
pub(super) const CAPABILITIES: &str = "{\n  \"type\": \"net\"\n}\n";

pub(super) const FREEBIND: &str =
    "--freebind is not supported: ports are published at addresses that the host has (try: without it)";
pub(super) const RUNAS: &str = "--runas is not supported: the program keeps its user, and its process that handles packets has \
                                no privileges (try: without it)";
pub(super) const STATS: &str =
    "--stats is not supported (try: pontoon run --control PATH, and pontoon ctl --control PATH stats)";
pub(super) const SPLICE_ONLY: &str =
    "--splice-only is not supported: connections need an interface in the namespace (try: without it)";
pub(super) const REPAIR_PATH: &str = "--repair-path is not supported: a machine keeps no connections when it migrates (try: --repair-path none)";

/// Returns the error text of an option that only passt has.
pub(super) fn only_of_passt(key: Key) -> Option<&'static str> {
    Some(match key {
        Key::Socket => "-s is for passt / vhost-user mode only",
        Key::Fd => "--fd is not supported: the program opens the tap itself (try: without it)",
        Key::OneOff => "--one-off is for passt mode only",
        Key::NoDhcpDns => "--no-dhcp-dns is for passt mode only",
        Key::NoDhcpSearch => "--no-dhcp-search is for passt mode only",
        Key::VhostUser => "--vhost-user is for passt mode only (try: pontoon vm --protocol vhost-user)",
        Key::PrintCapabilities => "--print-capabilities is for vhost-user mode only",
        Key::RepairPath => "--repair-path is for vhost-user mode only",
        Key::Migration("migrate-exit") => "--migrate-exit is for vhost-user mode only",
        Key::Migration(_) => "--migrate-no-linger is for vhost-user mode only",
        _ => return None,
    })
}

/// Returns an option that only pasta has, as in the error text.
pub(super) fn only_of_pasta(key: Key) -> Option<&'static str> {
    Some(match key {
        Key::Userns => "--userns",
        Key::Netns => "--netns",
        Key::NetnsOnly => "--netns-only",
        Key::NoNetnsQuit => "--no-netns-quit",
        Key::NsMacAddr => "--ns-mac-addr",
        Key::NsIfname => "-I",
        Key::DhcpDns => "--dhcp-dns",
        Key::DhcpSearch => "--dhcp-search",
        Key::ConfigNet => "--config-net",
        Key::NoCopyRoutes => "--no-copy-routes",
        Key::NoCopyAddrs => "--no-copy-addrs",
        Key::HostLoToNsLo => "--host-lo-to-ns-lo",
        Key::SpliceOnly => "--splice-only",
        Key::Ports(ports::TCP_OUT) => "-T",
        Key::Ports(ports::UDP_OUT) => "-U",
        _ => return None,
    })
}

/// Returns the beginning of the first line of a log file, by which callers recognize it.
pub(super) fn title(mode: Mode) -> String {
    format!("{} {EMULATED}", name(mode))
}

const fn name(mode: Mode) -> &'static str {
    match mode {
        Mode::Pasta => "pasta",
        Mode::Passt => "passt",
    }
}

/// Returns the text of `--help`, in which callers search for the options that they need.
pub(in crate::compat) fn usage(program: &str) -> String {
    format!(
        "\
Usage: {program} [OPTION]... [COMMAND] [ARGS]...
       {program} [OPTION]... PID
       {program} [OPTION]... --netns [PATH|NAME]

Pontoon with the command line of pasta {EMULATED}: connects a network namespace without privileges.
Without PID or --netns, the command or a shell runs in new namespaces. docs/compat.md has the differences.

  -d, --debug               log more
      --trace               log everything
  -q, --quiet               log errors only
  -f, --foreground          do not run in the background
  -e, --stderr              no effect
  -l, --log-file PATH       write the log to a file
      --log-size BYTES      size of that file (default: 1 MiB)
  -h, --help                show this text
      --version             show the version
  -I, --ns-ifname NAME      interface of the namespace (default: name of the host's interface)
  -p, --pcap FILE           capture frames
  -P, --pid FILE            write the process id
  -c, --conf-path PATH      listen for pesto at this path
  -m, --mtu MTU             MTU, 576 to 65520; 0: do not set it (default: 65520)
  -a, --address ADDR        address of the namespace, ADDR[/PREFIXLEN]; one for each family (default: the host's)
  -n, --netmask MASK        netmask or prefix length of -a
  -M, --mac-addr ADDR       Ethernet address of the gateway (default: 9a:55:9a:55:9a:55)
  -g, --gateway ADDR        gateway, one for each family (default: the host's)
  -i, --interface NAME      host interface whose addresses and routes are copied
  -o, --outbound ADDR       source address of outbound packets, one for each family
      --outbound-if4 NAME   outbound interface
      --outbound-if6 NAME   outbound interface, the same as that of --outbound-if4
  -D, --dns ADDR            DNS server that --dhcp-dns announces, or none
  -S, --search LIST         search domains, or none
  -H, --hostname NAME       host name of the command
      --fqdn NAME           domain name that is announced by DHCP and DHCPv6
      --dhcp-dns            announce the DNS forwarder, and the addresses of --dns
      --dhcp-search         announce search domains, and the DNS forwarder
      --map-host-loopback ADDR  ADDR is the host's loopback; or none (default: the gateway)
      --map-guest-addr ADDR     ADDR is the host's own address; or none
      --dns-forward ADDR    address of the DNS forwarder
      --dns-host ADDR       server to which it sends queries
      --no-tcp, --no-udp, --no-icmp, --no-dhcp, --no-ndp, --no-dhcpv6, --no-ra
                            protocols and services that the namespace does not have
      --no-map-gw           the gateway is not the host's loopback
      --chroot-fallback     no effect
  -4, --ipv4-only           no IPv6
  -6, --ipv6-only           no IPv4
  -t, --tcp-ports SPEC      TCP ports of the host that lead to the namespace (default: auto): none, or
                            [ADDR[%IFACE]/]PORTS; PORTS: all, auto, 22, 22:23, 22-80:32-90, 80:ADDR/8080, ~25,
                            separated by commas
  -u, --udp-ports SPEC      UDP ports (default: auto)
  -T, --tcp-ns SPEC         TCP ports of the host at the namespace's loopback: none, 22, 22:23, or auto (no effect)
  -U, --udp-ns SPEC         none, or auto, which has no effect
      --host-lo-to-ns-lo    TCP clients on the host's loopback reach the namespace's loopback
      --userns NSPATH       no effect: the namespace's owner is found without it
      --netns PATH|NAME     network namespace
      --netns-only          a command gets no user namespace of its own
      --no-netns-quit       do not exit when the namespace is removed
      --config-net          configure the interface in the namespace
      --no-copy-routes      only the default route of the host (DEPRECATED)
      --no-copy-addrs       only one address of the host (DEPRECATED)
      --ns-mac-addr ADDR    Ethernet address of the interface in the namespace
      --no-splice           use the interface for clients on the host's loopback, too
"
    )
}

/// Returns the text of `--version`, of which callers show the first line.
pub(super) fn version(mode: Mode) -> String {
    format!("{}\npontoon: {}\n", title(mode), env!("CARGO_PKG_VERSION"))
}
