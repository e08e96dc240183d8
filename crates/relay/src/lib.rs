//! Pure: what the multicast relay decides. The process that moves packets is `pontoon-relay-worker`, the one that opens
//! sockets is in `pontoon-supervisor`; nothing here makes a system call or reads a clock.
//!
//! A [`Rule`] says which datagrams leave where. A [`Table`] finds the rule of a [`Datagram`], which was parsed out of a
//! packet; [`Gather`] puts datagrams that leave alike into bursts, each of which is one send per output. A
//! [`filter`] makes the kernel keep everything else from us. Every datagram ends in exactly one of the [`counters`].
//! [`membership`] is who wants which group on a link, from which a [`proxy`] makes rules.

#![forbid(unsafe_code)]
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
pub use table::Table;
