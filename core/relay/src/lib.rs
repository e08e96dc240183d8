//! Logic of the multicast relay without system calls and clock: rules, packet parsing, matching, bursts, filters and
//! group memberships. Packets are received and sent by the processes of `pontoon-relay-worker`, and sockets are opened
//! by `pontoon-relay-supervisor`.
//!
//! A [`Rule`] maps datagrams of one input to outputs. A [`RuleTable`] finds the rule that matches a [`Datagram`], which
//! was parsed from a packet. [`BurstGather`] groups datagrams with the same output and length into bursts, each of
//! which is sent by one system call for each output. A [`filter`] makes the kernel drop packets that no rule matches.
//! Every datagram is counted in exactly one of the [`counters`]. A [`proxy`] derives rules from the group
//! [`membership`] of hosts on a link.

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
pub use gather::BurstGather;
pub use rule::Rule;
pub use table::RuleTable;
