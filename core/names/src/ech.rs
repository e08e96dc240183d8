//! Removes the keys of Encrypted Client Hello (ECH) from DNS responses.
//!
//! Without the parameter `ech` of an HTTPS or SVCB record (RFC 9848), a client has no key with which it could encrypt the
//! name of the server, and sends the name itself in its ClientHello.
//!
//! A response keeps its length, because names in it may be compressed: they refer to offsets. The octets of the removed
//! parameter are used for a parameter with a key for private use, which clients ignore (RFC 9460 sections 8 and 14.3.2).
//! A DNSSEC signature of a changed record is not valid any more.

use core::ops::Range;

use domain::base::iana::SvcParamKey;
use domain::base::name::ParsedName;
use domain::base::{Message, Question, RecordHeader, Rtype};
use domain::dep::octseq::Parser;
use domain::rdata::svcb::SvcParams;
use thiserror::Error;

/// The result of [`remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The message contains no `ech`, and is unchanged.
    Unchanged,
    /// The parameters `ech` were removed.
    Removed,
}

/// Error: the message is malformed, or contains an HTTPS or SVCB record from which `ech` cannot be removed. A client might
/// parse it all the same, so it must not be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the DNS response is malformed")]
pub struct Malformed;

/// Removes the parameters `ech` from the HTTPS and SVCB records in all sections of a DNS response.
///
/// # Errors
/// [`Malformed`]; the message is then unchanged.
pub fn remove(message: &mut [u8]) -> Result<Removal, Malformed> {
    let edits = edits(message)?;
    if edits.is_empty() {
        return Ok(Removal::Unchanged);
    }
    let mut changed = message.to_vec();
    for Edit { range, params } in edits {
        changed[range].copy_from_slice(&params);
    }
    // A compressed name of a malicious message may refer to octets that have changed.
    if !self::edits(&changed)?.is_empty() {
        return Err(Malformed);
    }
    // The resolver has not validated the changed records (RFC 4035 section 3.2.3).
    changed[FLAGS] &= !AUTHENTIC_DATA;
    message.copy_from_slice(&changed);
    Ok(Removal::Removed)
}

/// A change of the parameters of one record.
struct Edit {
    /// Offsets of the parameters in the message.
    range: Range<usize>,
    /// The new parameters, of the same length.
    params: Vec<u8>,
}

/// Returns the changes that remove all parameters `ech`.
fn edits(message: &[u8]) -> Result<Vec<Edit>, Malformed> {
    let counts = Message::from_slice(message)
        .map_err(|_| Malformed)?
        .header_counts();
    let mut parser = Parser::from_ref(message);
    parser.advance(HEADER).map_err(|_| Malformed)?;
    for _ in 0..counts.qdcount() {
        Question::<ParsedName<&[u8]>>::parse(&mut parser).map_err(|_| Malformed)?;
    }
    let records = [counts.ancount(), counts.nscount(), counts.arcount()];
    let mut edits = Vec::new();
    for _ in 0..records.map(u32::from).iter().sum() {
        let header = RecordHeader::parse_ref(&mut parser).map_err(|_| Malformed)?;
        let end = parser.pos() + usize::from(header.rdlen());
        if matches!(header.rtype(), Rtype::HTTPS | Rtype::SVCB) {
            let mut data = parser
                .parse_parser(usize::from(header.rdlen()))
                .map_err(|_| Malformed)?;
            data.advance(PRIORITY).map_err(|_| Malformed)?;
            ParsedName::skip(&mut data).map_err(|_| Malformed)?;
            let range = data.pos()..end;
            let params = SvcParams::from_octets(&message[range.clone()]).map_err(|_| Malformed)?;
            edits.extend(without_ech(&params)?.map(|params| Edit { range, params }));
        } else {
            parser
                .advance(usize::from(header.rdlen()))
                .map_err(|_| Malformed)?;
        }
    }
    Ok(edits)
}

/// Returns the parameters without `ech`, filled up to the same length; `None` if they contain no `ech`.
fn without_ech(params: &SvcParams<&[u8]>) -> Result<Option<Vec<u8>>, Malformed> {
    let length = params.len();
    if params.iter_raw().all(|param| param.key() != SvcParamKey::ECH) {
        return Ok(None);
    }
    let mut kept = Vec::with_capacity(length);
    for param in params.iter_raw() {
        if param.key() == SvcParamKey::MANDATORY {
            // The list of mandatory keys must not contain a key that is absent (RFC 9460 section 8).
            let keys = param
                .as_slice()
                .chunks(2)
                .filter(|key| **key != SvcParamKey::ECH.to_int().to_be_bytes());
            let keys = keys.collect::<Vec<_>>().concat();
            if !keys.is_empty() {
                push(&mut kept, param.key(), &keys);
            }
        } else if param.key() == FILLER {
            // The keys are unique and in ascending order, and this is the last one that may be used.
            return Err(Malformed);
        } else if param.key() != SvcParamKey::ECH {
            push(&mut kept, param.key(), param.as_slice());
        }
    }
    // At least the key and the length of `ech` are left.
    let filler = length - kept.len() - PARAM_HEADER;
    push(&mut kept, FILLER, &vec![0; filler]);
    Ok(Some(kept))
}

/// Appends a parameter: key, length, value.
fn push(params: &mut Vec<u8>, key: SvcParamKey, value: &[u8]) {
    params.extend(key.to_int().to_be_bytes());
    // A value is a part of a record's data, whose length has two octets too.
    params.extend(u16::try_from(value.len()).unwrap_or(u16::MAX).to_be_bytes());
    params.extend(value);
}

/// The last key for private use (RFC 9460 section 14.3.2). The one behind it is reserved as invalid.
const FILLER: SvcParamKey = SvcParamKey::from_int(65_534);

/// Length of a parameter's key and length.
const PARAM_HEADER: usize = 4;

/// Length of the priority of a service, which precedes the name of its target.
const PRIORITY: usize = 2;

/// Length of the header of a DNS message.
const HEADER: usize = 12;

/// Offset of the octet with the flag AD, and the flag (RFC 4035 section 3.2.3).
const FLAGS: usize = 3;
const AUTHENTIC_DATA: u8 = 0x20;

#[cfg(test)]
mod tests;
