//! The upstream proxy: the destinations that the guest reaches through it, and the names that it resolves.
//!
//! A connection of the guest through the proxy is opened to the proxy's address, and the guest's SYN is answered after the
//! proxy has established the connection to the destination (module [`tcp`](crate::tcp)). Datagrams and echo requests to such
//! destinations are refused. The policy is checked before.

mod names;
mod policy;
mod state;

use std::sync::Arc;

use core::net::SocketAddr;

use pontoon_names::HostName;
use pontoon_proxy::{Credentials, Handshake, Protocol, Target};

use crate::Instant;
use crate::egress::{Action, Destination, Egress, EgressRule, Match, Target as RuleTarget};

pub(crate) use names::addresses;
pub use names::{LIFETIME, MOST_NAMES, NETWORKS, ProxyNames};

/// An upstream proxy, and the destinations that the guest reaches through it.
#[derive(Debug)]
pub struct Proxy {
    /// Protocol of the proxy.
    pub protocol: Protocol,
    /// Addresses of the proxy, at least one. A connection is opened to the first one that accepts it.
    pub addresses: Vec<SocketAddr>,
    /// User name and password of the operator at the proxy.
    pub credentials: Option<Credentials>,
    /// The destinations that the guest reaches through the proxy.
    pub destinations: ProxyDestinations,
    /// The names that the proxy resolves (`--proxy-dns`); `None` if the proxy receives addresses only.
    pub names: Option<ProxyNames>,
}

/// The destinations that the guest reaches through the proxy: all, or those of rules, with exceptions.
///
/// A rule that names a domain applies to the addresses that the guest has received for it, under the same conditions as a
/// deny rule.
#[derive(Clone, Debug)]
pub struct ProxyDestinations {
    /// Destinations through the proxy; `None` stands for all.
    through: Option<Egress>,
    /// Destinations that are reached without the proxy.
    direct: Egress,
}

impl Proxy {
    /// Begins the handshake for a connection to `target`.
    pub(crate) fn handshake(&self, target: &Target) -> Handshake {
        Handshake::new(self.protocol, target, self.credentials.as_ref())
    }

    /// Learns the addresses of domains in the rules from a DNS response.
    pub(crate) fn learn(&self, message: &[u8], now: Instant) {
        let through = self.destinations.through.iter();
        for rules in through.chain([&self.destinations.direct]) {
            rules.learn(message, now);
        }
    }
}

impl ProxyDestinations {
    /// Returns the destinations of the rules `through`, or all without such a rule, but not those of the rules `direct`.
    #[must_use]
    pub fn new(through: &[Match], direct: &[Match]) -> Self {
        let rules = |list: &[Match]| {
            let rule = |to: &Match| EgressRule {
                action: Action::Deny,
                to: to.clone(),
            };
            Egress::new(&list.iter().map(rule).collect::<Vec<_>>())
        };
        Self {
            through: (!through.is_empty()).then(|| rules(through)),
            direct: rules(direct),
        }
    }

    fn contains(&self, to: &Destination<'_>, now: Instant) -> bool {
        self.through.as_ref().is_none_or(|rules| rules.denies(to, now)) && !self.direct.denies(to, now)
    }

    /// Returns true if some port of the host `name` is reached through the proxy, and no exception is about the name. An
    /// exception of ports of all hosts is not.
    fn contains_name(&self, name: &HostName) -> bool {
        let through = self.through.as_ref();
        let is_about_name = |rule: &EgressRule| rule.to.target != RuleTarget::Any || rule.to.ports.is_none();
        through.is_none_or(|rules| rules.rules_for_name(name).next().is_some())
            && !self.direct.rules_for_name(name).any(is_about_name)
    }
}

/// A connection of the guest through the proxy, before it is opened.
#[derive(Clone, Debug)]
pub(crate) struct ProxiedConnection {
    pub(crate) proxy: Arc<Proxy>,
    /// The destination that the proxy receives.
    pub(crate) target: Target,
}
