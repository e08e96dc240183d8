//! Parses the parts of a DNS response that rules with domains need: names and their addresses.

use core::net::IpAddr;

use domain::base::iana::{Class, Rcode};
use domain::base::name::{ParsedName, ToLabelIter};
use domain::base::rdata::ParseRecordData;
use domain::base::{Message, ParsedRecord, Record, Rtype};
use domain::rdata::svcb::value::{Ipv4Hint, Ipv6Hint};
use domain::rdata::svcb::{HttpsVariant, SvcbRdata, SvcbVariant};
use domain::rdata::{A, Aaaa, Cname};
use ipnet::IpNet;

use super::name::AddressUse;
use super::rule::Pattern;

/// The names and addresses of a DNS response. All sections count, because the additional section may contain the
/// addresses of mail servers and services.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DnsAnswer {
    /// The queried name, then other names, in lower case without a trailing dot.
    names: Vec<String>,
    addresses: Vec<AnswerAddress>,
}

/// An address in a DNS response, with the names to which it belongs as sets of one bit for each index in `names`.
#[derive(Debug, PartialEq, Eq)]
struct AnswerAddress {
    ip: IpAddr,
    /// Shortest time to live of the address in seconds.
    ttl: u32,
    /// Set of the names that own the address, directly or by CNAME aliases.
    aliases: u64,
    /// Set of `aliases` and of the names whose SVCB or HTTPS records lead to this address.
    services: u64,
}

impl DnsAnswer {
    /// Parses a DNS response; returns `None` if it contains no address or is malformed.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let message = Message::from_slice(message).ok()?;
        if message.header().rcode() != Rcode::NOERROR {
            return None;
        }
        let question = message.sole_question().ok()?;
        let mut reader = RecordReader::default();
        reader.place(text(question.qname()))?;
        for (record, _) in message.iter().flatten() {
            // A record that cannot be parsed is skipped, because clients cannot use it either.
            let _ = reader.read(&record);
        }
        let aliases = owners(reader.names.len(), &reader.aliases);
        let services = owners(reader.names.len(), &reader.leads);
        let whose = |(ip, ttl, owner): (IpAddr, u32, usize)| AnswerAddress {
            ip,
            ttl,
            aliases: aliases[owner],
            services: services[owner],
        };
        let addresses: Vec<_> = reader.addresses.into_iter().map(whose).collect();
        (!addresses.is_empty()).then_some(Self {
            names: reader.names,
            addresses,
        })
    }

    /// Returns true if an address of the response is in one of `networks`.
    pub(crate) fn has_address_in(&self, networks: &[IpNet]) -> bool {
        let mut addresses = self.addresses.iter();
        addresses.any(|address| networks.iter().any(|network| network.contains(&address.ip)))
    }

    /// Returns the addresses, each with its TTL in seconds, to which a rule with `pattern` applies. For an allow rule
    /// these are the addresses to which the queried name leads by CNAME records, if `pattern` matches the queried name,
    /// and if the rule requires proof, those to which it leads by SVCB or HTTPS records, too; for a deny rule all
    /// addresses to which any matching name leads by CNAME, SVCB or HTTPS records.
    pub(super) fn addresses(
        &self,
        address_use: AddressUse,
        pattern: &Pattern,
    ) -> impl Iterator<Item = (IpAddr, u32)> {
        let meant = self.names.iter().enumerate().fold(0, |meant, (place, name)| {
            meant | u64::from(pattern.matches(name)) << place
        });
        let concerned = move |address: &&AnswerAddress| match address_use {
            AddressUse::Allow => meant & address.aliases & ASKED != 0,
            AddressUse::Pin => meant & address.services & ASKED != 0,
            AddressUse::Deny => meant & address.services != 0,
        };
        let addresses = self.addresses.iter().filter(concerned);
        addresses.map(|address| (address.ip, address.ttl))
    }
}

/// Content of an SVCB or HTTPS record (RFC 9460).
type ServiceRecord<'a, V> = SvcbRdata<V, &'a [u8], ParsedName<&'a [u8]>>;

/// Names, aliases and addresses of the records read so far.
#[derive(Debug, Default)]
struct RecordReader {
    names: Vec<String>,
    /// CNAME aliases as pairs of indices in `names`: alias and target.
    aliases: Vec<[usize; 2]>,
    /// The pairs of `aliases`, and pairs of a name and the target of its service.
    leads: Vec<[usize; 2]>,
    /// Addresses, each with its TTL in seconds and the index of its owner's name.
    addresses: Vec<(IpAddr, u32, usize)>,
}

impl RecordReader {
    fn read(&mut self, record: &ParsedRecord<'_, [u8]>) -> Option<()> {
        if record.class() != Class::IN {
            return None;
        }
        let ttl = record.ttl().as_secs();
        match record.rtype() {
            Rtype::A => {
                let record: Record<_, A> = record.to_record().ok()??;
                let owner = self.place(text(record.owner()))?;
                self.address(record.data().addr(), ttl, owner);
            }
            Rtype::AAAA => {
                let record: Record<_, Aaaa> = record.to_record().ok()??;
                let owner = self.place(text(record.owner()))?;
                self.address(record.data().addr(), ttl, owner);
            }
            Rtype::CNAME => {
                let record: Record<_, Cname<_>> = record.to_record().ok()??;
                let alias = self.place(text(record.owner()))?;
                let of = self.place(text(record.data().cname()))?;
                self.aliases.push([alias, of]);
                self.leads.push([alias, of]);
            }
            Rtype::SVCB => self.service::<SvcbVariant>(record)?,
            Rtype::HTTPS => self.service::<HttpsVariant>(record)?,
            _ => {}
        }
        Some(())
    }

    /// Adds an SVCB or HTTPS record: its target is its owner or another name, for which the record may have address
    /// hints (RFC 9460 section 7.3).
    fn service<'a, V>(&mut self, record: &ParsedRecord<'a, [u8]>) -> Option<()>
    where
        ServiceRecord<'a, V>: ParseRecordData<'a, [u8]>,
    {
        let record: Record<_, ServiceRecord<'a, V>> = record.to_record().ok()??;
        let (name, service) = (text(record.owner()), record.data());
        let owner = self.place(name.clone())?;
        let site = self.place(without_prefix(&name).to_owned())?;
        let target = match text(service.target()) {
            own if own.is_empty() => owner,
            target => self.place(target)?,
        };
        self.leads.extend([[site, owner], [owner, target]]);
        if service.is_service() {
            let ttl = record.ttl().as_secs();
            let v4 = service.params().first::<Ipv4Hint<_>>();
            let v6 = service.params().first::<Ipv6Hint<_>>();
            for hint in v4.iter().flat_map(Ipv4Hint::iter) {
                self.address(hint, ttl, target);
            }
            for hint in v6.iter().flat_map(Ipv6Hint::iter) {
                self.address(hint, ttl, target);
            }
        }
        Some(())
    }

    /// Returns the index of a name, which is added if it is new; `None` if there are too many names.
    fn place(&mut self, name: String) -> Option<usize> {
        if let Some(place) = self.names.iter().position(|known| *known == name) {
            return Some(place);
        }
        (self.names.len() < MOST_NAMES).then(|| {
            self.names.push(name);
            self.names.len() - 1
        })
    }

    fn address(&mut self, ip: impl Into<IpAddr>, ttl: u32, owner: usize) {
        if self.addresses.len() < MOST_ADDRESSES {
            self.addresses.push((ip.into(), ttl, owner));
        }
    }
}

/// Returns, for each name, the set of that name and the names that lead to it directly or indirectly.
fn owners(names: usize, leads: &[[usize; 2]]) -> Vec<u64> {
    let mut owners: Vec<u64> = (0..names).map(|place| 1 << place).collect();
    // Each iteration resolves at least one more step of a chain.
    for _ in 0..names {
        let before = owners.clone();
        for &[from, to] in leads {
            owners[to] |= owners[from];
        }
        if owners == before {
            break;
        }
    }
    owners
}

/// Returns the host name without the labels that SVCB prefixes for services at other ports (RFC 9460 section 2.3).
fn without_prefix(mut name: &str) -> &str {
    while name.starts_with('_')
        && let Some((_, rest)) = name.split_once('.')
    {
        name = rest;
    }
    name
}

/// Returns a name as text. Octets that a rule cannot contain are replaced, so that none of them is mistaken for a dot.
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

/// Bit of the queried name, which has the index 0.
const ASKED: u64 = 1;

/// Maximum number of names in one response, which is the number of bits of a set. Resolvers follow fewer aliases (BIND
/// 16), and additional sections name about ten servers.
const MOST_NAMES: usize = 64;

/// Maximum number of addresses in one response, equal to that of one domain.
const MOST_ADDRESSES: usize = super::name::LIMIT;
