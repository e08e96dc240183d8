//! IGMP/MLD proxying (RFC 4605): a group that hosts behind downstream interfaces join is joined on an upstream
//! interface, and its datagrams are forwarded downstream.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

use crate::rule::parse::{RuleError, end, interface};
use crate::rule::{Hops, Input, Output, Rule};

/// An IGMP/MLD proxy: an upstream interface and its downstream interfaces, `eth0 -> eth1, eth2` as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Interface on which the relay joins the groups, and from which it forwards them.
    pub upstream: String,
    /// Interfaces to whose hosts the relay forwards the groups that they have joined; at least one.
    pub downstream: Vec<String>,
}

/// Membership of hosts behind a downstream interface in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Downstream interface behind which the hosts are.
    pub interface: String,
    /// Multicast group that the hosts have joined.
    pub group: IpAddr,
    /// Sender whose datagrams the hosts have joined for; `None` means any sender.
    pub source: Option<IpAddr>,
}

impl FromStr for Proxy {
    type Err = RuleError;

    fn from_str(text: &str) -> Result<Self, RuleError> {
        let (left, right) = text.split_once("->").ok_or(RuleError::NoArrow)?;
        let one = |part: &str| {
            let mut words = part.split_whitespace();
            let name = interface(words.next())?;
            end(words)?;
            Ok(name)
        };
        let upstream = one(left)?;
        let mut downstream = Vec::new();
        for part in right.split(',') {
            let name = one(part)?;
            if name == upstream {
                return Err(RuleError::Loop(name));
            }
            if downstream.contains(&name) {
                return Err(RuleError::Duplicate(name));
            }
            downstream.push(name);
        }
        Ok(Self { upstream, downstream })
    }
}

impl Proxy {
    /// Merges proxies that have the same upstream interface into one.
    #[must_use]
    pub fn merge(proxies: &[Self]) -> Vec<Self> {
        let mut merged: Vec<Self> = Vec::new();
        for proxy in proxies {
            let Some(same) = merged.iter_mut().find(|same| same.upstream == proxy.upstream) else {
                merged.push(proxy.clone());
                continue;
            };
            for name in &proxy.downstream {
                if !same.downstream.contains(name) {
                    same.downstream.push(name.clone());
                }
            }
        }
        merged
    }

    /// Returns the rules that forward the groups of the members.
    ///
    /// A group with members for any sender and members for single senders needs several rules. The rule for a single
    /// sender matches first, so it also has the outputs of the rule for any sender.
    #[must_use]
    pub fn rules(&self, members: &[Member]) -> Vec<Rule> {
        let mut inputs: BTreeMap<(IpAddr, Option<IpAddr>), BTreeSet<&str>> = BTreeMap::new();
        for member in members {
            let interfaces = inputs.entry((member.group, member.source)).or_default();
            interfaces.insert(&member.interface);
        }
        let rule = |((group, source), interfaces): (&(IpAddr, Option<IpAddr>), &BTreeSet<&str>)| {
            let any_source = inputs.get(&(*group, None)).into_iter().flatten();
            let interfaces: BTreeSet<&str> = interfaces.iter().chain(any_source).copied().collect();
            Rule {
                input: Input {
                    interface: self.upstream.clone(),
                    to: IpNet::from(*group),
                    port: None,
                    from: source.map(IpNet::from),
                },
                outputs: interfaces.into_iter().map(output).collect(),
            }
        };
        inputs.iter().map(rule).collect()
    }
}

/// Returns an output to an interface that keeps group and port and decrements the TTL.
fn output(interface: &str) -> Output {
    Output {
        interface: interface.to_owned(),
        to: None,
        port: None,
        hops: Hops::Decrement,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_and_downstream_interfaces_are_parsed() {
        let proxy: Proxy = "eth0 -> eth1, eth2".parse().unwrap();
        assert_eq!(
            (proxy.upstream.as_str(), proxy.downstream.as_slice()),
            ("eth0", ["eth1".to_owned(), "eth2".to_owned()].as_slice())
        );
        for (text, why) in [
            (
                "eth0 eth1",
                "no '->' (the form is: eth0 239.1.1.1:5001 -> eth1 239.2.2.2:5002)",
            ),
            ("-> eth1", "the interface is missing"),
            ("eth0 ->", "the interface is missing"),
            ("eth0 x -> eth1", "unexpected 'x'"),
            ("eth0 -> eth1, eth0", "'eth0' is the same as the input"),
            ("eth0 -> eth1, eth1", "duplicate 'eth1'"),
        ] {
            assert_eq!(text.parse::<Proxy>().unwrap_err().to_string(), why);
        }
    }

    #[test]
    fn proxies_of_one_upstream_interface_are_merged() {
        let proxies = ["up -> a", "other -> a", "up -> b, a"].map(|text| text.parse().unwrap());
        let merged = ["up -> a, b", "other -> a"].map(|text| text.parse().unwrap());
        assert_eq!(Proxy::merge(&proxies), merged);
    }

    #[test]
    fn rules_are_derived_from_members() {
        let proxy: Proxy = "up -> a, b, c".parse().unwrap();
        let member = |interface: &str, group: &str, source: Option<&str>| Member {
            interface: interface.to_owned(),
            group: group.parse().unwrap(),
            source: source.map(|source| source.parse().unwrap()),
        };
        let rules = proxy.rules(&[
            member("a", "239.1.1.1", None),
            member("b", "239.1.1.1", Some("10.0.0.1")),
            member("c", "239.1.1.1", Some("10.0.0.2")),
            member("c", "ff3e::1", Some("2001:db8::1")),
        ]);
        let shown: Vec<_> = rules.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "up 239.1.1.1:* -> a *:*",
                "up 239.1.1.1:* from 10.0.0.1 -> a *:*, b *:*",
                "up 239.1.1.1:* from 10.0.0.2 -> a *:*, c *:*",
                "up [ff3e::1]:* from 2001:db8::1 -> c *:*",
            ]
        );
        assert!(proxy.rules(&[]).is_empty());
    }
}
