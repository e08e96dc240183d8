//! Known differences: checks that pass with the original and fail with Pontoon's program. `docs/clients.md` lists them,
//! too.

use crate::clients::cases::Case;

/// A check that may be worse with Pontoon's program, and the reason.
pub(crate) struct Difference {
    /// The beginning of the name of the client: `rootlesskit` matches all of its versions.
    client: &'static str,
    /// The case, or `*` for all.
    function: &'static str,
    /// The name of the check, or its beginning and `*`.
    check: &'static str,
    pub(crate) reason: &'static str,
}

pub(crate) const DIFFERENCES: &[Difference] = &[
    test_of_slirp4netns(
        "dhcp",
        "DHCP leases the address with the number 100 instead of 15",
    ),
    test_of_slirp4netns(
        "disable-dns",
        "a TCP connection to the address of the DNS forwarder is refused instead of timing out",
    ),
    test_of_slirp4netns(
        "disable-host-loopback",
        "a connection to the gateway is refused instead of unreachable",
    ),
    test_of_slirp4netns(
        "outbound-addr",
        "the address is not used for connections to the host's loopback",
    ),
    test_of_slirp4netns(
        "sandbox",
        "the process has no capability, and the directories of its root are different",
    ),
    of_podman("options", "namespace-port", NAMESPACE_PORT),
    of_podman("options", "namespace-port6", NAMESPACE_PORT),
    of_podman("publish", "source-loopback", SOURCE_LOOPBACK),
    of_podman("publish", "source-loopback6", SOURCE_LOOPBACK),
    of_podman("pod", "source-loopback", SOURCE_LOOPBACK),
    of_podman("pod", "source-loopback6", SOURCE_LOOPBACK),
    of_podman("reach", "239.1.2.3.*", "multicast is not forwarded"),
    of_podman("reach", "::.echo", "echo requests to :: are refused"),
    of_podman(
        "reach",
        "gateway6.echo",
        "echo requests to the IPv6 gateway are answered by the DNS forwarder at its address",
    ),
    of_podman("reach", "link-local.*", LINK_LOCAL),
    of_podman("reach", "neighbour-link-local.*", LINK_LOCAL),
    of_podman("reach", "own-link-local.*", LINK_LOCAL),
    of_podman(
        "reach",
        "routed.own6.*",
        "the address that the container was given stays closed when the container removes it",
    ),
    of_machine("libvirt", "boot.dns*", FORWARDER),
    of_machine("libvirt", "reboot.dns*", FORWARDER),
    of_machine("libvirt", "restart.dns*", FORWARDER),
    of_machine("qemu", "boot.dns*", FORWARDER),
    of_machine("qemu", "reboot.dns*", FORWARDER),
    of_machine("qemu", "restart.dns*", FORWARDER),
    of_passt("tests_pasta", "pasta-setup", HOST_PORT),
    of_passt(
        "tests_pasta",
        "pasta-tcp-TCP-IPv4-ns-to-host-spliced-big-transfer",
        HOST_PORT,
    ),
    of_passt(
        "tests_pasta",
        "pasta-tcp-TCP-IPv4-ns-to-host-spliced-small-transfer",
        HOST_PORT,
    ),
    of_passt(
        "tests_pasta",
        "pasta-tcp-TCP-IPv6-ns-to-host-spliced-big-transfer",
        HOST_PORT,
    ),
    of_passt(
        "tests_pasta",
        "pasta-tcp-TCP-IPv6-ns-to-host-spliced-small-transfer",
        HOST_PORT,
    ),
    of_passt(
        "tests_pasta",
        "pasta-udp-UDP-IPv4-ns-to-host-recvmmsg-sendmmsg",
        HOST_PORT,
    ),
    of_passt(
        "tests_pasta",
        "pasta-udp-UDP-IPv6-host-to-ns-recvmmsg-sendmmsg",
        "a client on the host's loopback appears as the gateway, whose address is link-local",
    ),
    of_passt(
        "tests_pasta",
        "pasta-udp-UDP-IPv6-ns-to-host-recvmmsg-sendmmsg",
        HOST_PORT,
    ),
    of_passt("tests_options", "pasta-options-log-to-file-Maximum-log-size", LOG),
    of_passt(
        "tests_options",
        "pasta-options-log-to-file-Maximum-log-size-on-tmpfs-no-FALLOC-FL-COLLAPSE-RANGE",
        LOG,
    ),
    of_passt("tests_machine", "passt-dhcp-DHCP-DNS", FORWARDER),
    of_passt("tests_machine", "passt-dhcp-DHCPv6-DNS", FORWARDER),
    of_passt("tests_machine_vu", "passt-dhcp-DHCP-DNS", FORWARDER),
    of_passt("tests_machine_vu", "passt-dhcp-DHCPv6-DNS", FORWARDER),
    of_passt("tests_in_ns", "passt-in-ns-setup", HOST_PORT),
    of_passt(
        "tests_in_ns",
        "passt-in-ns-tcp-TCP-IPv4-ns-to-host-spliced-big-transfer",
        HOST_PORT,
    ),
    of_passt(
        "tests_in_ns",
        "passt-in-ns-tcp-TCP-IPv4-ns-to-host-spliced-small-transfer",
        HOST_PORT,
    ),
    of_passt(
        "tests_in_ns",
        "passt-in-ns-tcp-TCP-IPv6-ns-to-host-spliced-big-transfer",
        HOST_PORT,
    ),
    of_passt(
        "tests_in_ns",
        "passt-in-ns-tcp-TCP-IPv6-ns-to-host-spliced-small-transfer",
        HOST_PORT,
    ),
    of_passt(
        "tests_in_ns",
        "passt-in-ns-udp-UDP-IPv4-ns-to-host-recvmmsg-sendmmsg",
        HOST_PORT,
    ),
    of_passt(
        "tests_in_ns",
        "passt-in-ns-udp-UDP-IPv6-ns-to-host-recvmmsg-sendmmsg",
        HOST_PORT,
    ),
];

const FORWARDER: &str = "the DNS forwarder is announced instead of the resolvers of the host";
const NAMESPACE_PORT: &str = "ports of the host are not forwarded to the container's loopback (`-T`)";
const SOURCE_LOOPBACK: &str =
    "a client on the host's loopback appears as the gateway instead of the container's own address";

const LINK_LOCAL: &str = "link-local addresses are closed";
const HOST_PORT: &str = "ports of the host are not forwarded to the namespace's loopback (`-T`, `-U`)";
const LOG: &str = "the log has no lines of connections";

const fn of_passt(function: &'static str, check: &'static str, reason: &'static str) -> Difference {
    Difference {
        client: "passt",
        function,
        check,
        reason,
    }
}

/// Returns a difference of a client that starts machines, in all of its cases.
const fn of_machine(client: &'static str, check: &'static str, reason: &'static str) -> Difference {
    Difference {
        client,
        function: "*",
        check,
        reason,
    }
}

const fn of_podman(function: &'static str, check: &'static str, reason: &'static str) -> Difference {
    Difference {
        client: "podman",
        function,
        check,
        reason,
    }
}

const fn test_of_slirp4netns(check: &'static str, reason: &'static str) -> Difference {
    Difference {
        client: "slirp4netns",
        function: "scripts",
        check,
        reason,
    }
}

impl Difference {
    /// Returns true if `check` of `case` may be worse.
    pub(crate) fn covers(&self, case: &Case, check: &str) -> bool {
        let same_check = match self.check.strip_suffix('*') {
            Some(beginning) => check.starts_with(beginning),
            None => check == self.check,
        };
        case.client.name().starts_with(self.client)
            && ["*", case.function].contains(&self.function)
            && same_check
    }
}
