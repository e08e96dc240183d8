//! The memberships that the supervisor keeps.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{MAX_MEMBERSHIPS, MAX_SOURCES, SourceFilter};
use crate::rule::parse::unreachable;

/// The memberships of one interface and family that a querier process has reported to the supervisor. Each report is
/// checked, because the process may be compromised.
#[derive(Debug)]
pub struct Memberships {
    v6: bool,
    /// Filter of each group, with a number that counts up in the order in which groups were added.
    groups: BTreeMap<IpAddr, (u64, SourceFilter)>,
    added: u64,
}

/// Error: a reported membership that no correct querier reports. The group is not routable or of another family, a
/// sender is not a unicast address, or the number of groups or senders exceeds its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid membership")]
pub struct InvalidMembership;

impl Memberships {
    /// Creates an empty set of memberships for IPv6 (`v6`) or IPv4.
    #[must_use]
    pub fn new(v6: bool) -> Self {
        Self {
            v6,
            groups: BTreeMap::new(),
            added: 0,
        }
    }

    /// Sets the source filter of a group. A filter with an empty list of senders removes the group.
    ///
    /// # Errors
    /// No correct querier reports such a membership; nothing changes.
    pub fn set(&mut self, group: IpAddr, filter: SourceFilter) -> Result<(), InvalidMembership> {
        if group.is_ipv6() != self.v6 || !is_routable(group) {
            return Err(InvalidMembership);
        }
        match &filter {
            SourceFilter::Sources(sources) if sources.is_empty() => {
                self.groups.remove(&group);
                return Ok(());
            }
            SourceFilter::Sources(sources) => {
                let valid = sources.iter().all(|source| is_source_for(*source, group));
                if !valid || sources.len() > MAX_SOURCES {
                    return Err(InvalidMembership);
                }
            }
            SourceFilter::Any => {}
        }
        if !self.groups.contains_key(&group) && self.groups.len() == MAX_MEMBERSHIPS {
            return Err(InvalidMembership);
        }
        self.added += 1;
        let added = self.added;
        self.groups.entry(group).or_insert((added, SourceFilter::Any)).1 = filter;
        Ok(())
    }

    /// Removes all groups.
    pub fn clear(&mut self) {
        self.groups.clear();
    }

    /// Returns true if there is no group.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Returns the number of items of [`Memberships::iter`].
    #[must_use]
    pub fn count(&self) -> usize {
        let counts = self.groups.values().map(|(_, filter)| match filter {
            SourceFilter::Any => 1,
            SourceFilter::Sources(sources) => sources.len(),
        });
        counts.sum()
    }

    /// Returns the groups and their source filters, in the order in which the groups were added.
    pub fn groups(&self) -> impl Iterator<Item = (IpAddr, &SourceFilter)> {
        let mut groups: Vec<_> = self.groups.iter().collect();
        groups.sort_unstable_by_key(|(_, (added, _))| *added);
        groups.into_iter().map(|(group, (_, filter))| (*group, filter))
    }

    /// Returns the groups in the order in which they were added, one item for each sender; `None` means any sender.
    pub fn iter(&self) -> impl Iterator<Item = (IpAddr, Option<IpAddr>)> {
        self.groups().flat_map(|(group, filter)| {
            let sources: Vec<Option<IpAddr>> = match filter {
                SourceFilter::Any => vec![None],
                SourceFilter::Sources(sources) => sources.iter().copied().map(Some).collect(),
            };
            sources.into_iter().map(move |source| (group, source))
        })
    }
}

/// Returns true if routers forward datagrams to the group, which they do not for link-local scope (RFC 5771 section 4,
/// RFC 4291 section 2.7).
pub(super) fn is_routable(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(v4) => v4.is_multicast() && v4.octets()[..3] != [224, 0, 0],
        IpAddr::V6(v6) => v6.is_multicast() && v6.octets()[1] & 0xf > 2,
    }
}

/// Returns true if `source` can be a sender of the group: a unicast address of the same family that a rule accepts.
pub(super) fn is_source_for(source: IpAddr, group: IpAddr) -> bool {
    source.is_ipv4() == group.is_ipv4() && !source.is_multicast() && !unreachable(source)
}
