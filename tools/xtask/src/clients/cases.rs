//! The cases, each a function of a script.

use std::fmt;

/// A client, whose programs are built by `programs.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    RootlesskitV2,
    RootlesskitV3,
    Slirp4netns,
    Docker,
    Buildkit,
    Podman,
    Podman6,
    Buildah,
    Passt,
    Libvirt,
    Qemu,
}

impl Client {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::RootlesskitV2 => "rootlesskit-v2",
            Self::RootlesskitV3 => "rootlesskit-v3",
            Self::Slirp4netns => "slirp4netns",
            Self::Docker => "docker",
            Self::Buildkit => "buildkit",
            Self::Podman => "podman",
            Self::Podman6 => "podman-6",
            Self::Buildah => "buildah",
            Self::Passt => "passt",
            Self::Libvirt => "libvirt",
            Self::Qemu => "qemu",
        }
    }

    /// Returns the names of the programs that the client executes. The first one is the subject of its cases.
    pub(crate) fn links(self) -> &'static [&'static str] {
        match self {
            Self::Podman | Self::Buildah => &["pasta", "slirp4netns"],
            Self::Podman6 => &["pasta"],
            Self::Passt => &["pasta", "passt"],
            Self::Libvirt | Self::Qemu => &["passt"],
            _ => &["slirp4netns"],
        }
    }
}

/// One case: a function of a script that prints checks.
pub(crate) struct Case {
    pub(crate) client: Client,
    /// The name of the script without `.sh`.
    pub(crate) library: &'static str,
    pub(crate) function: &'static str,
    /// Seconds until the case is killed.
    pub(crate) deadline: u64,
}

impl fmt::Display for Case {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let function = self.function.replace('_', "-");
        write!(formatter, "{}.{function}", self.client.name())
    }
}

/// All cases, in the order of the table.
pub(crate) const CASES: &[Case] = &[
    tests("scripts", 600),
    rootlesskit(Client::RootlesskitV2, "net", 60),
    rootlesskit(Client::RootlesskitV2, "loopback", 60),
    rootlesskit(Client::RootlesskitV2, "cidr", 60),
    rootlesskit(Client::RootlesskitV2, "ipv6", 90),
    rootlesskit(Client::RootlesskitV2, "sandbox", 60),
    rootlesskit(Client::RootlesskitV2, "mtu", 150),
    rootlesskit(Client::RootlesskitV2, "detach", 60),
    rootlesskit(Client::RootlesskitV2, "publish", 90),
    rootlesskit(Client::RootlesskitV2, "port_none", 60),
    rootlesskit(Client::RootlesskitV2, "port_builtin", 120),
    rootlesskit(Client::RootlesskitV2, "port_slirp4netns", 120),
    rootlesskit(Client::RootlesskitV2, "port_builtin_detach", 120),
    rootlesskit(Client::RootlesskitV2, "port_slirp4netns_detach", 120),
    rootlesskit(Client::RootlesskitV2, "exits", 90),
    rootlesskit(Client::RootlesskitV2, "starts_in_a_row", 300),
    rootlesskit(Client::RootlesskitV2, "starts_at_once", 120),
    rootlesskit(Client::RootlesskitV2, "scripts", 600),
    rootlesskit(Client::RootlesskitV2, "unit", 400),
    rootlesskit(Client::RootlesskitV3, "net", 60),
    rootlesskit(Client::RootlesskitV3, "loopback", 60),
    rootlesskit(Client::RootlesskitV3, "cidr", 60),
    rootlesskit(Client::RootlesskitV3, "ipv6", 90),
    rootlesskit(Client::RootlesskitV3, "sandbox", 60),
    rootlesskit(Client::RootlesskitV3, "mtu", 150),
    rootlesskit(Client::RootlesskitV3, "detach", 60),
    rootlesskit(Client::RootlesskitV3, "publish", 90),
    rootlesskit(Client::RootlesskitV3, "port_none", 60),
    rootlesskit(Client::RootlesskitV3, "port_builtin", 120),
    rootlesskit(Client::RootlesskitV3, "port_slirp4netns", 120),
    rootlesskit(Client::RootlesskitV3, "port_builtin_detach", 120),
    rootlesskit(Client::RootlesskitV3, "port_slirp4netns_detach", 120),
    rootlesskit(Client::RootlesskitV3, "exits", 90),
    rootlesskit(Client::RootlesskitV3, "starts_in_a_row", 300),
    rootlesskit(Client::RootlesskitV3, "starts_at_once", 120),
    rootlesskit(Client::RootlesskitV3, "scripts", 600),
    rootlesskit(Client::RootlesskitV3, "unit", 400),
    docker("docker_builtin"),
    docker("docker_slirp4netns"),
    Case {
        client: Client::Buildkit,
        library: "docker",
        function: "buildkit",
        deadline: 200,
    },
    podman("podman", "info", 60),
    podman("podman", "net", 300),
    podman("podman", "options", 300),
    podman("podman", "publish", 300),
    podman("podman", "states", 300),
    podman("podman", "exits", 300),
    podman("podman", "restarts", 300),
    podman("podman", "pod", 300),
    podman("podman", "build", 300),
    podman("podman", "bridge", 300),
    podman("podman", "slirp4netns", 300),
    podman("podman", "root", 120),
    podman("podman", "starts_in_a_row", 300),
    podman("podman", "starts_at_once", 300),
    podman("podman", "document", 300),
    podman("podman-reach", "reach", 400),
    podman("podman-many", "containers_300", 1500),
    podman("podman-bats", "tests_500", 1500),
    podman("podman-bats", "tests_505", 1500),
    podman6("podman", "info", 60),
    podman6("podman", "net", 300),
    podman6("podman", "options", 300),
    podman6("podman", "publish", 300),
    podman6("podman", "states", 300),
    podman6("podman", "exits", 300),
    podman6("podman", "restarts", 300),
    podman6("podman", "pod", 300),
    podman6("podman", "build", 300),
    podman6("podman", "bridge", 300),
    podman6("podman", "pesto", 120),
    podman6("podman", "starts_in_a_row", 300),
    podman6("podman", "starts_at_once", 300),
    podman6("podman", "document", 300),
    podman6("podman-reach", "reach", 400),
    buildah("run", 300),
    buildah("build", 300),
    passt("tests_smoke", 60),
    passt("tests_pasta", 600),
    passt("tests_options", 300),
    passt("tests_in_ns", 600),
    passt("tests_machine", 900),
    passt("tests_machine_vu", 900),
    machine(Client::Libvirt, "libvirt", "stream"),
    machine(Client::Libvirt, "libvirt", "vhost_user"),
    machine(Client::Qemu, "qemu", "stream"),
    machine(Client::Qemu, "qemu", "vhost_user"),
];

const fn tests(function: &'static str, deadline: u64) -> Case {
    Case {
        client: Client::Slirp4netns,
        library: "slirp4netns",
        function,
        deadline,
    }
}

const fn rootlesskit(client: Client, function: &'static str, deadline: u64) -> Case {
    Case {
        client,
        library: "rootlesskit",
        function,
        deadline,
    }
}

const fn podman(library: &'static str, function: &'static str, deadline: u64) -> Case {
    Case {
        client: Client::Podman,
        library,
        function,
        deadline,
    }
}

const fn podman6(library: &'static str, function: &'static str, deadline: u64) -> Case {
    Case {
        client: Client::Podman6,
        library,
        function,
        deadline,
    }
}

const fn buildah(function: &'static str, deadline: u64) -> Case {
    Case {
        client: Client::Buildah,
        library: "buildah",
        function,
        deadline,
    }
}

const fn passt(function: &'static str, deadline: u64) -> Case {
    Case {
        client: Client::Passt,
        library: "passt",
        function,
        deadline,
    }
}

const fn machine(client: Client, library: &'static str, function: &'static str) -> Case {
    Case {
        client,
        library,
        function,
        deadline: 900,
    }
}

const fn docker(function: &'static str) -> Case {
    Case {
        client: Client::Docker,
        library: "docker",
        function,
        deadline: 240,
    }
}
