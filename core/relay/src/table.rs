//! Looks up the rule that matches a datagram.

use std::net::IpAddr;

use ipnet::IpNet;
use rustc_hash::FxHashMap;

use crate::rule::Input;

#[cfg(test)]
mod tests;

/// Lookup table of the rules of one interface; a value `T`, such as a rule's index, is stored for each input.
///
/// If several inputs match a datagram, the most specific one is chosen: first by the longest prefix of the destination
/// address, then an input with the port before one for any port, then by the longest prefix of the sender, before an
/// input for any sender.
#[derive(Clone, Debug, Default)]
pub struct RuleTable<T> {
    /// Prefix lengths of the inputs' destination addresses, longest first.
    lengths: Vec<u8>,
    /// For each destination range and port, the senders (`None`: any) and values of the inputs, longest prefix first.
    entries: FxHashMap<DestinationKey, Vec<(Option<IpNet>, T)>>,
}

/// Destination range and port of an input; port 0 means any port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct DestinationKey {
    network: IpAddr,
    length: u8,
    port: u16,
}

impl<T: Copy> RuleTable<T> {
    /// Builds a table from inputs, each with its value.
    #[must_use]
    pub fn new<'a>(inputs: impl IntoIterator<Item = (&'a Input, T)>) -> Self {
        let mut entries: FxHashMap<DestinationKey, Vec<_>> = FxHashMap::default();
        let mut lengths = Vec::new();
        for (input, value) in inputs {
            let length = input.to.prefix_len();
            lengths.push(length);
            let key = DestinationKey {
                network: input.to.network(),
                length,
                port: input.port.map_or(0, Into::into),
            };
            entries.entry(key).or_default().push((input.from, value));
        }
        #[expect(
            clippy::disallowed_methods,
            clippy::iter_over_hash_type,
            reason = "each list is sorted separately"
        )]
        for senders in entries.values_mut() {
            senders.sort_by_key(|(from, _)| std::cmp::Reverse(from.map(|net| net.prefix_len())));
        }
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        Self { lengths, entries }
    }

    /// Returns the value of the most specific input that matches a datagram from `from` to `to` and `port`.
    #[must_use]
    pub fn find(&self, from: IpAddr, to: IpAddr, port: u16) -> Option<T> {
        self.lengths.iter().find_map(|&length| {
            let network = IpNet::new(to, length).ok()?.network();
            [port, 0].into_iter().find_map(|port| {
                let senders = self.entries.get(&DestinationKey {
                    network,
                    length,
                    port,
                })?;
                let fits = |net: &Option<IpNet>| net.is_none_or(|net| net.contains(&from));
                senders.iter().find(|(net, _)| fits(net)).map(|(_, value)| *value)
            })
        })
    }
}
