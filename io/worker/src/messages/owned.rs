//! Lists of the host's addresses that do not fit into one message. A list is applied when it is complete, so that no
//! address of the host is ever missing from the list in force.

use ipnet::IpNet;
use pontoon_ipc::text;
use serde::{Deserialize, Serialize};

use super::MAX_LEN;

/// Part of a list of the host's addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnedPart {
    /// Number of addresses in the preceding messages of the list.
    pub from: usize,
    /// Number of addresses in the whole list.
    pub of: usize,
    /// Addresses in this message.
    #[serde(with = "text::list")]
    pub list: Vec<IpNet>,
}

/// Addresses of an incomplete list that have been received.
#[derive(Debug, Default)]
pub struct OwnedParts(Vec<IpNet>);

/// Length of the longest address in bytes, with quotes and comma.
const LONGEST: usize = "__,ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255/128".len();

/// Bytes of a message that precede the addresses.
const HEAD: usize = 128;

impl OwnedPart {
    /// Limit on the addresses in one message.
    pub(super) const MOST: usize = (MAX_LEN - HEAD) / LONGEST;

    /// Splits a list into parts, in order.
    pub(super) fn split(list: &[IpNet]) -> impl Iterator<Item = Self> {
        list.chunks(Self::MOST).enumerate().map(|(number, some)| Self {
            from: number * Self::MOST,
            of: list.len(),
            list: some.to_vec(),
        })
    }
}

impl OwnedParts {
    /// Adds a part of a list; returns the whole list after the last part. If the sender has replaced a list before it was
    /// sent completely, the first part of the next list discards the earlier parts.
    pub fn add(&mut self, some: OwnedPart) -> Option<Vec<IpNet>> {
        self.0.truncate(some.from);
        self.0.extend(some.list);
        (self.0.len() >= some.of).then(|| std::mem::take(&mut self.0))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv6Addr};
    use std::time::Instant;

    use pontoon_ipc::ChannelMessage as _;
    use pontoon_sys::seqpacket;

    use super::*;
    use crate::Update;
    use crate::messages::{EngineChannel, SupervisorChannel};

    fn addresses(count: u128, last: u128) -> Vec<IpNet> {
        let address = |n| IpAddr::from(Ipv6Addr::from_bits(u128::MAX - (n << 16) - last)).into();
        (0..count).map(address).collect()
    }

    /// Adds the addresses of `update`. Returns the whole list if it is complete.
    fn gather(gathered: &mut OwnedParts, update: Update) -> Option<Vec<IpNet>> {
        match update {
            Update::Owned(list) => Some(list),
            Update::OwnedPart(some) => gathered.add(some),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ten_thousand_addresses_arrive() {
        for count in [0, 1, OwnedPart::MOST as u128, OwnedPart::MOST as u128 + 1, 10_000] {
            let (ours, theirs) = seqpacket::pair().unwrap();
            let mut ours = SupervisorChannel::new(ours, 1000).unwrap();
            let mut theirs = EngineChannel::new(theirs, 0).unwrap();
            let list = addresses(count, 0);
            let updates = Update::owned(list.clone());
            let messages = updates.len();
            for update in updates {
                ours.send(update).unwrap();
            }
            let (mut gathered, mut arrived) = (OwnedParts::default(), Vec::new());
            for _ in 0..messages {
                ours.flush(Instant::now());
                arrived.extend(gather(&mut gathered, theirs.receive().unwrap().unwrap()));
            }
            assert_eq!(arrived, [list]);
        }
    }

    #[test]
    fn a_list_that_was_cut_off_leaves_nothing() {
        let (old, new) = (addresses(5_000, 0), addresses(4_000, 1));
        let mut gathered = OwnedParts::default();
        for update in Update::owned(old).into_iter().take(2) {
            assert_eq!(gather(&mut gathered, update), None);
        }
        let arrived: Vec<_> = Update::owned(new.clone())
            .into_iter()
            .filter_map(|update| gather(&mut gathered, update))
            .collect();
        assert_eq!(arrived, [new]);
    }

    #[test]
    fn the_beginning_of_a_list_replaces_all_of_one_before() {
        let (short, long) = (Update::owned(addresses(1, 0)), Update::owned(addresses(5_000, 0)));
        for older in short.iter().chain(&long) {
            assert!(short[0].replaces(older) && long[0].replaces(older));
            assert!(!long[1].replaces(older));
        }
    }
}
