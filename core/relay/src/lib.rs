//! Pure logic of the multicast relay: rules, packet parsing, matching, bursts, filters and group memberships. Nothing here
//! makes a system call or reads a clock. Packets are moved by the processes of `pontoon-relay-worker`, and sockets are
//! opened by `pontoon-relay-supervisor`.
//!
//! A [`Rule`] maps datagrams of one input to outputs. A [`RuleTable`] finds the rule of a [`Datagram`], which was parsed from a
//! packet. [`Gather`] groups datagrams that leave alike into bursts, each of which is one send for each output. A [`filter`]
//! makes the kernel drop what no rule matches. Every datagram is counted in exactly one of the [`counters`]. From the group
//! [`membership`] of hosts on a link a [`proxy`] derives rules.

#![forbid(unsafe_code)]
#![deny(clippy::iter_over_hash_type)]
#![deny(missing_docs)]

pub mod config;
pub mod counters;
pub mod datagram;
pub mod filter;
pub mod gather;
pub mod membership;
pub mod proxy;
pub mod rates;
pub mod rule;
pub mod rules;
pub mod table;

pub use datagram::Datagram;
pub use gather::Gather;
pub use rule::Rule;
pub use table::RuleTable;
