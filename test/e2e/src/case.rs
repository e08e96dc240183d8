//! The description of a case.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use anyhow::Result;

use crate::process::Program;

/// IPv4 or IPv6.
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

    /// The option of `ip`, `dig`, `iperf3`, `ping` and `curl` that asks for this family.
    pub(crate) fn flag(self) -> &'static str {
        match self {
            Self::V4 => "-4",
            Self::V6 => "-6",
        }
    }

    /// `v4` or `v6`, as addresses of this family.
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

/// Namespaces that a case runs in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In namespaces of its own, which play the host. The program under test runs there as root, or (when the caller
    /// is not root) as a user without any privilege.
    Isolated,
    /// On the machine itself, with its own network, as the caller.
    Machine,
}

/// Concurrency of a case with others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    /// It measures or saturates: runs alone.
    Alone,
    /// It is short: runs beside others.
    Shared,
    /// It sleeps for most of a minute: runs beside others without taking the place of one.
    Waiting,
}

/// Privileges that a case needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    Anyone,
    /// Root only; the text is the reason.
    Root(&'static str),
    /// Only callers who are not root; the text is the reason.
    User(&'static str),
}

/// The function of a case.
type Body = Box<dyn Fn(&Context) -> Result<Outcome> + Send + Sync>;

/// One line of the list.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) place: Place,
    pub(crate) load: Load,
    pub(crate) caller: Caller,
    /// Makes no sense without the program under test.
    pub(crate) pontoon_only: bool,
    pub(crate) deadline: Duration,
    /// Environment of the program under test.
    pub(crate) environment: Vec<(&'static str, &'static str)>,
    /// Options of the program under test.
    pub(crate) options: Vec<&'static str>,
    pub(crate) run: Body,
}

/// Result of a case that did not fail.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// It could not run here; the text is the reason.
    Skipped(String),
}

/// The environment of a running case.
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

    /// The case over IPv4 and over IPv6.
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
