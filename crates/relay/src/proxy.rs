//! A proxy (RFC 4605): what hosts behind some interfaces want is joined on another, and relayed from there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

use crate::rule::parse::{RuleError, end, interface};
use crate::rule::{Hops, Input, Output, Rule};

/// From where to where: `eth0 -> eth1, eth2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Where groups are joined.
    pub upstream: String,
    /// Where hosts want them; at least one.
    pub downstream: Vec<String>,
}

/// That a group is wanted behind an interface, from this sender or from anybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The interface.
    pub behind: String,
    /// The group.
    pub group: IpAddr,
    /// The sender.
    pub from: Option<IpAddr>,
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
    /// The same proxies, those of one upstream as one.
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

    /// The rules that bring what is wanted.
    ///
    /// A rule for one sender takes its datagrams from the rule for any, so that it also leads to whoever wants any.
    #[must_use]
    pub fn rules(&self, wanted: &[Wanted]) -> Vec<Rule> {
        let mut inputs: BTreeMap<(IpAddr, Option<IpAddr>), BTreeSet<&str>> = BTreeMap::new();
        for wish in wanted {
            let behind = inputs.entry((wish.group, wish.from)).or_default();
            behind.insert(&wish.behind);
        }
        let rule = |((group, from), behind): (&(IpAddr, Option<IpAddr>), &BTreeSet<&str>)| {
            let from_any = inputs.get(&(*group, None)).into_iter().flatten();
            let behind: BTreeSet<&str> = behind.iter().chain(from_any).copied().collect();
            Rule {
                input: Input {
                    interface: self.upstream.clone(),
                    to: IpNet::from(*group),
                    port: None,
                    from: from.map(IpNet::from),
                },
                outputs: behind.into_iter().map(output).collect(),
            }
        };
        inputs.iter().map(rule).collect()
    }
}

/// As it is, one hop further.
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
    fn says_from_where_to_where() {
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
            ("eth0 -> eth1, eth0", "'eth0' is where it comes from"),
            ("eth0 -> eth1, eth1", "'eth1' is there twice"),
        ] {
            assert_eq!(text.parse::<Proxy>().unwrap_err().to_string(), why);
        }
    }

    #[test]
    fn those_of_one_upstream_are_one() {
        let proxies = ["up -> a", "other -> a", "up -> b, a"].map(|text| text.parse().unwrap());
        let merged = ["up -> a, b", "other -> a"].map(|text| text.parse().unwrap());
        assert_eq!(Proxy::merge(&proxies), merged);
    }

    #[test]
    fn makes_rules_of_wishes() {
        let proxy: Proxy = "up -> a, b, c".parse().unwrap();
        let wish = |behind: &str, group: &str, from: Option<&str>| Wanted {
            behind: behind.to_owned(),
            group: group.parse().unwrap(),
            from: from.map(|from| from.parse().unwrap()),
        };
        let rules = proxy.rules(&[
            wish("a", "239.1.1.1", None),
            wish("b", "239.1.1.1", Some("10.0.0.1")),
            wish("c", "239.1.1.1", Some("10.0.0.2")),
            wish("c", "ff3e::1", Some("2001:db8::1")),
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
