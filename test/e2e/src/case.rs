//! The description of an end-to-end case.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use anyhow::Result;

use crate::process::Program;

/// The address family of a case: IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::V4 => "v4",
            Self::V6 => "v6",
        }
    }

    /// Returns the option of `ip`, `dig`, `iperf3`, `ping` and `curl` that selects this family.
    pub(crate) fn flag(self) -> &'static str {
        match self {
            Self::V4 => "-4",
            Self::V6 => "-6",
        }
    }

    /// Returns the address of this family.
    pub(crate) fn pick(self, v4: Ipv4Addr, v6: Ipv6Addr) -> IpAddr {
        match self {
            Self::V4 => v4.into(),
            Self::V6 => v6.into(),
        }
    }

    pub(crate) fn loopback(self) -> IpAddr {
        self.pick(Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST)
    }

    pub(crate) fn unspecified(self) -> IpAddr {
        self.pick(Ipv4Addr::UNSPECIFIED, Ipv6Addr::UNSPECIFIED)
    }
}

/// The namespaces in which a case runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The case has its own namespaces, which represent the host. The program under test runs in them as root, or, if
    /// the caller is not root, as a user without any privilege.
    Isolated,
    /// The case runs on the machine itself, with the machine's network, as the calling user.
    Machine,
}

/// The load of a case on the machine, by which it runs alone or at the same time as others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// The case measures times or saturates the machine, and so runs alone.
    Alone,
    /// It is short: runs beside others.
    Shared,
    /// It sleeps for most of a minute: runs beside others without taking the place of one.
    Waiting,
}

/// The users that can run a case.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    Anyone,
    /// Only root; the text is the reason.
    Root(&'static str),
    /// Only users other than root; the text is the reason.
    User(&'static str),
}

/// The function that runs a case.
type Body = Box<dyn Fn(&Context) -> Result<Outcome> + Send + Sync>;

/// An end-to-end case: its name, its requirements, and the function that runs it.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) place: Place,
    pub(crate) load: Load,
    pub(crate) caller: Caller,
    /// True if the case is not run without the program under test (with plain veth).
    pub(crate) pontoon_only: bool,
    pub(crate) deadline: Duration,
    /// Environment variables of the program under test.
    pub(crate) environment: Vec<(&'static str, &'static str)>,
    /// Additional options of the program under test.
    pub(crate) options: Vec<&'static str>,
    pub(crate) run: Body,
}

/// The outcome of a case that did not fail.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// The case could not run on this machine; the text is the reason.
    Skipped(String),
}

/// The environment of a running case: the program under test.
pub(crate) struct Context {
    pub(crate) program: Program,
}

impl Case {
    pub(crate) fn new(
        name: &str,
        seconds: u64,
        run: impl Fn(&Context) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::may_skip(name, seconds, move |context| {
            run(context).map(|()| Outcome::Passed)
        })
    }

    pub(crate) fn may_skip(
        name: &str,
        seconds: u64,
        run: impl Fn(&Context) -> Result<Outcome> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.to_string(),
            place: Place::Isolated,
            load: Load::Shared,
            caller: Caller::Anyone,
            pontoon_only: false,
            deadline: Duration::from_secs(seconds),
            environment: Vec::new(),
            options: Vec::new(),
            run: Box::new(run),
        }
    }

    /// Returns two cases that run the same function over IPv4 and over IPv6.
    pub(crate) fn both(
        name: &str,
        seconds: u64,
        run: impl Fn(&Context, Family) -> Result<()> + Copy + Send + Sync + 'static,
    ) -> [Self; 2] {
        [Family::V4, Family::V6].map(|family| {
            Self::new(&format!("{name}.{}", family.suffix()), seconds, move |context| {
                run(context, family)
            })
        })
    }

    pub(crate) fn alone(mut self) -> Self {
        self.load = Load::Alone;
        self
    }

    pub(crate) fn waiting(mut self) -> Self {
        self.load = Load::Waiting;
        self
    }

    pub(crate) fn on_machine(mut self) -> Self {
        self.place = Place::Machine;
        self
    }

    pub(crate) fn caller(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }

    pub(crate) fn pontoon_only(mut self) -> Self {
        self.pontoon_only = true;
        self
    }
}
