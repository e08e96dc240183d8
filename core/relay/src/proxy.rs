//! IGMP/MLD proxying (RFC 4605): groups that hosts behind downstream interfaces join are joined on an upstream interface and
//! forwarded from there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

use crate::rule::parse::{RuleError, end, interface};
use crate::rule::{Hops, Input, Output, Rule};

/// An upstream interface and its downstream interfaces: `eth0 -> eth1, eth2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Interface on which groups are joined.
    pub upstream: String,
    /// Interfaces behind which the member hosts are; at least one.
    pub downstream: Vec<String>,
}

/// A group that hosts behind a downstream interface are members of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The downstream interface.
    pub interface: String,
    /// The group.
    pub group: IpAddr,
    /// The sender from which it is wanted; `None` is any.
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
    /// Merges proxies that have the same upstream interface.
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

    /// Returns the rules that forward what the members want.
    ///
    /// Of two rules for a group, the one for a single sender matches that sender's datagrams, so it also has the outputs of
    /// the rule for any sender.
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

/// Returns an output that keeps group and port and decrements the TTL.
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
    fn parses_upstream_and_downstream_interfaces() {
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
            ("eth0 -> eth1, eth0", "'eth0' is the input"),
            ("eth0 -> eth1, eth1", "duplicate 'eth1'"),
        ] {
            assert_eq!(text.parse::<Proxy>().unwrap_err().to_string(), why);
        }
    }

    #[test]
    fn merges_proxies_of_one_upstream() {
        let proxies = ["up -> a", "other -> a", "up -> b, a"].map(|text| text.parse().unwrap());
        let merged = ["up -> a, b", "other -> a"].map(|text| text.parse().unwrap());
        assert_eq!(Proxy::merge(&proxies), merged);
    }

    #[test]
    fn derives_rules_from_members() {
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
