//! Answers queries for names that the upstream proxy resolves (`--proxy-dns`), without a query to a resolver.

use std::sync::Arc;

use pontoon_names::HostName;
use rand_chacha::rand_core::RngCore;

use super::message::{Query, Question};
use crate::Instant;
use crate::ctx::Net;
use crate::proxy;

/// Returns the response to a query for a name that the proxy resolves; `None` for another query. The response has an address
/// that stands for the name, of a family that the guest can reach. Records with other addresses of the name do not exist.
pub(super) fn answer(query: &Query, net: &mut Net, now: Instant) -> Option<Vec<u8>> {
    let proxy = Arc::clone(net.policy.proxy.as_ref()?);
    let names = proxy.names.as_ref()?;
    let Question { name, kind, class } = query.sole_question()?;
    let (A | AAAA | SVCB | HTTPS, IN) = (kind, class) else {
        return None;
    };
    let name = HostName::from_octets(name.as_bytes()).ok()?;
    if !proxy.resolves(&name) {
        return None;
    }
    let plan = &net.config.plan;
    let family = match kind {
        A if plan.v4.as_ref().is_some_and(|v4| v4.default_route) => 0,
        AAAA if plan.v6.as_ref().is_some_and(|v6| v6.default_route) => 1,
        _ => return Some(query.without_records().to_vec()),
    };
    Some(match names.number(&name, net.random.next_u32(), now) {
        Some(number) => query.with_address(proxy::addresses(number)[family], TTL),
        None => query.server_failure().to_vec(),
    })
}

/// Time to live of the addresses in seconds, much less than the time for which they stand for their names.
const TTL: u32 = 60;

/// Types and class of records (IANA "Domain Name System (DNS) Parameters").
const A: u16 = 1;
const AAAA: u16 = 28;
const SVCB: u16 = 64;
const HTTPS: u16 = 65;
const IN: u16 = 1;
