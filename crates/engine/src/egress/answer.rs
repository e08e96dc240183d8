//! As much of a DNS answer as rules about names have to know: which names it is about, and their addresses.

use core::net::IpAddr;

use domain::base::iana::Rcode;
use domain::base::name::{ParsedName, ToLabelIter};
use domain::base::{Message, Rtype};
use domain::rdata::{A, Aaaa, Cname};

/// An answer about addresses.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The name that was asked for, then its aliases, in lower case without a dot at the end.
    pub(super) names: Vec<String>,
    /// Their addresses, with the seconds that each may be remembered.
    pub(super) addresses: Vec<(IpAddr, u32)>,
}

/// Reads an answer; `None` where it has no address, or is none. Records of names that the question does not lead to are
/// passed over: nobody asked for them.
pub(super) fn parse(message: &[u8]) -> Option<Answer> {
    let message = Message::from_slice(message).ok()?;
    if message.header().rcode() != Rcode::NOERROR {
        return None;
    }
    let question = message.sole_question().ok()?;
    if !matches!(question.qtype(), Rtype::A | Rtype::AAAA | Rtype::ANY) {
        return None;
    }
    let records = message.answer().ok()?;
    let mut chain = vec![*question.qname()];
    while chain.len() < LONGEST_CHAIN
        && let Some(alias) = records
            .limit_to_in::<Cname<_>>()
            .flatten()
            .find(|record| chain.last().is_some_and(|last| *last == record.owner()))
    {
        chain.push(alias.into_data().into_cname());
    }
    let named = |owner: &ParsedName<&[u8]>| chain.iter().any(|name| *name == owner);
    let v4 = records
        .limit_to_in::<A>()
        .flatten()
        .filter(|record| named(record.owner()))
        .map(|record| (IpAddr::from(record.data().addr()), record.ttl().as_secs()));
    let v6 = records
        .limit_to_in::<Aaaa>()
        .flatten()
        .filter(|record| named(record.owner()))
        .map(|record| (IpAddr::from(record.data().addr()), record.ttl().as_secs()));
    let addresses: Vec<_> = v4.chain(v6).collect();
    (!addresses.is_empty()).then(|| Answer {
        names: chain.iter().map(text).collect(),
        addresses,
    })
}

/// Letters that a rule cannot contain are marked, so that none is taken for a dot.
fn text(name: &ParsedName<&[u8]>) -> String {
    let labels = name.iter_labels().filter(|label| !label.is_root());
    let label = |label: &domain::base::name::Label| {
        label
            .iter()
            .map(|octet| match octet.to_ascii_lowercase() {
                plain @ (b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_') => char::from(plain),
                _ => '?',
            })
            .collect::<String>()
    };
    labels.map(label).collect::<Vec<_>>().join(".")
}

/// Aliases that are followed, and the name itself; resolvers give up sooner (BIND after 16).
const LONGEST_CHAIN: usize = 17;
