//! As much of a DNS answer as rules about names have to know: which names it is about, and their addresses.

use core::net::IpAddr;

use domain::base::iana::{Class, Rcode};
use domain::base::name::{ParsedName, ToLabelIter};
use domain::base::rdata::ParseRecordData;
use domain::base::{Message, ParsedRecord, Record, Rtype};
use domain::rdata::svcb::value::{Ipv4Hint, Ipv6Hint};
use domain::rdata::svcb::{HttpsVariant, SvcbRdata, SvcbVariant};
use domain::rdata::{A, Aaaa, Cname};

use super::rule::{Action, Pattern};

/// An answer that has addresses, in whatever section: who asks for a mail server or a service may find them beside it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    /// The name that was asked for, then others, in lower case without a dot at the end.
    names: Vec<String>,
    addresses: Vec<Address>,
}

/// An address, and whose it is: a bit for each name, by its place.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    ip: IpAddr,
    /// Seconds that it may be remembered.
    ttl: u32,
    /// Its owner's and those that are aliases of it.
    aliases: u64,
    /// These and those whose services are there.
    services: u64,
}

impl Answer {
    /// The addresses that it gives names that a rule means, each with the seconds that it may be remembered. Who allows
    /// a name trusts it, not everybody who points at it; who denies one means it by whatever alias.
    pub(super) fn addresses(&self, action: Action, pattern: &Pattern) -> impl Iterator<Item = (IpAddr, u32)> {
        let meant = self.names.iter().enumerate().fold(0, |meant, (place, name)| {
            meant | u64::from(pattern.matches(name)) << place
        });
        let concerned = move |address: &&Address| match action {
            Action::Allow => meant & address.aliases & ASKED != 0,
            Action::Deny => meant & address.services != 0,
        };
        let addresses = self.addresses.iter().filter(concerned);
        addresses.map(|address| (address.ip, address.ttl))
    }
}

/// Reads an answer; `None` where it has no address, or is none.
pub(super) fn parse(message: &[u8]) -> Option<Answer> {
    let message = Message::from_slice(message).ok()?;
    if message.header().rcode() != Rcode::NOERROR {
        return None;
    }
    let question = message.sole_question().ok()?;
    let mut reader = Reader::default();
    reader.place(text(question.qname()))?;
    for (record, _) in message.iter().flatten() {
        // One that cannot be read says nothing to clients either.
        let _ = reader.read(&record);
    }
    let aliases = owners(reader.names.len(), &reader.aliases);
    let services = owners(reader.names.len(), &reader.leads);
    let whose = |(ip, ttl, owner): (IpAddr, u32, usize)| Address {
        ip,
        ttl,
        aliases: aliases[owner],
        services: services[owner],
    };
    let addresses: Vec<_> = reader.addresses.into_iter().map(whose).collect();
    (!addresses.is_empty()).then_some(Answer {
        names: reader.names,
        addresses,
    })
}

/// The contents of a service record of either type.
type Service<'a, V> = SvcbRdata<V, &'a [u8], ParsedName<&'a [u8]>>;

/// The records read so far.
#[derive(Debug, Default)]
struct Reader {
    names: Vec<String>,
    /// Places of an alias and of what it stands for.
    aliases: Vec<[usize; 2]>,
    /// These, and places of a name and of where its service is.
    leads: Vec<[usize; 2]>,
    /// Each with the seconds that it may be remembered, and its owner's place.
    addresses: Vec<(IpAddr, u32, usize)>,
}

impl Reader {
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

    /// A service is at its owner's or another name, whose addresses it may hint at (RFC 9460 section 7.3).
    fn service<'a, V>(&mut self, record: &ParsedRecord<'a, [u8]>) -> Option<()>
    where
        Service<'a, V>: ParseRecordData<'a, [u8]>,
    {
        let record: Record<_, Service<'a, V>> = record.to_record().ok()??;
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

    /// Returns the place of a name; `None` where there are too many.
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

/// For each of so many names, itself and the names that lead to it.
fn owners(names: usize, leads: &[[usize; 2]]) -> Vec<u64> {
    let mut owners: Vec<u64> = (0..names).map(|place| 1 << place).collect();
    // Each round leads one name further at least.
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

/// The name of a site: its services at other ports are asked for by prefixes (RFC 9460 section 2.3).
fn without_prefix(mut name: &str) -> &str {
    while name.starts_with('_')
        && let Some((_, rest)) = name.split_once('.')
    {
        name = rest;
    }
    name
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

/// The bit of the name that was asked for.
const ASKED: u64 = 1;

/// Names of one answer: as many as there are bits. A resolver follows fewer aliases (BIND 16), and the servers beside
/// an answer are some ten.
const MOST_NAMES: usize = 64;

/// Addresses of one answer: as many as are remembered of a name.
const MOST_ADDRESSES: usize = super::name::LIMIT;
