//! The incomplete datagrams of a state.

use pontoon_wire::emit::Ether;
use pontoon_wire::frame::{Fragment, Ip};

use super::{
    AssemblyState, ByteRange, DATAGRAMS, DatagramKey, FragmentBuffer, PIECES, PartialDatagram, ROOM, Reassembly,
    largest,
};
use crate::state::{Reader, Record, StateError, Writer, check, record, record_enum};

record! { DatagramKey { source, destination, id, protocol } }
record! { PartialDatagram { key, expires, state } }
record! { ByteRange { begin, end } }
record! { Fragment { id, offset, more } }
record! { Ether { source, destination } }
record! { Ip {
    source, destination, hop_limit, traffic_class, dont_fragment, protocol, fragment, payload_offset, payload_len,
} }
record_enum! { AssemblyState { 0 = Gathering(pieces), 1 = Refused } }

/// The record contains the data of the fragments only.
impl Record for FragmentBuffer {
    fn save(&self, to: &mut Writer<'_>) {
        let Self {
            bytes,
            spans,
            sum: _,
            total,
            first,
            partial,
        } = self;
        to.put(spans);
        to.put(total);
        to.put(first);
        to.put(partial);
        for span in spans {
            to.octets(&bytes[ROOM + span.begin..ROOM + span.end]);
        }
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        let mut buffer = Self {
            spans: from.list(PIECES)?,
            total: from.get()?,
            first: from.get()?,
            partial: from.get()?,
            ..Self::default()
        };
        check(buffer.is_sound())?;
        for span in buffer.spans.clone() {
            let octets = from.octets(span.end - span.begin)?;
            buffer.grow(ROOM + span.end);
            buffer.bytes[ROOM + span.begin..ROOM + span.end].copy_from_slice(octets);
            buffer.sum += octets.len();
        }
        check(buffer.total != Some(buffer.sum) || buffer.first.is_none())?;
        Ok(buffer)
    }
}

impl FragmentBuffer {
    /// Returns true if the fragments are in ascending order without overlaps, and within the datagram.
    fn is_sound(&self) -> bool {
        let most = self.first.map_or(super::LARGEST_V6, |(_, ip)| largest(&ip));
        let most = self.total.map_or(most, |total| total.min(most));
        let is_family_sound = |ip: &Ip| ip.source.is_ipv4() == ip.destination.is_ipv4();
        self.total.is_none_or(|total| total <= super::LARGEST_V6)
            && self.first.is_none_or(|(_, ip)| is_family_sound(&ip))
            && self.spans.iter().all(|span| span.begin < span.end && span.end <= most)
            && self.spans.windows(2).all(|pair| pair[0].end <= pair[1].begin)
    }
}

impl Reassembly {
    /// Appends the incomplete datagrams.
    pub(crate) fn save(&self, to: &mut Writer<'_>) {
        let Self { datagrams } = self;
        to.put(datagrams);
    }

    /// Reads what [`Self::save`] has written.
    pub(crate) fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        let datagrams: Vec<PartialDatagram> = from.list(DATAGRAMS)?;
        for (index, datagram) in datagrams.iter().enumerate() {
            let key = &datagram.key;
            check(datagrams[..index].iter().all(|other| other.key != *key))?;
            check(key.source.is_ipv4() == key.destination.is_ipv4())?;
            if let AssemblyState::Gathering(FragmentBuffer { first: Some((_, ip)), .. }) = &datagram.state {
                check((ip.source, ip.destination) == (key.source, key.destination))?;
            }
        }
        Ok(Self { datagrams })
    }
}
