//! Parses a ClientHello (RFC 8446 section 4.1.2).

use nom::bytes::complete::take;
use nom::combinator::{all_consuming, verify};
use nom::error::Error;
use nom::multi::{length_data, many0};
use nom::number::complete::{be_u8, be_u16};
use nom::{IResult, Parser};

use super::{ClientHello, Failure};
use crate::HostName;

/// Parses the content of a handshake message of type ClientHello.
pub(super) fn parse(content: &[u8]) -> Result<ClientHello, Failure> {
    let (version, extensions) = complete(hello(content))?;
    if !VERSIONS.contains(&version) {
        return Err(Failure::Version(version));
    }
    let extensions = complete(all_consuming(many0(extension)).parse(extensions))?;
    let mut kinds: Vec<u16> = extensions.iter().map(|(kind, _)| *kind).collect();
    kinds.sort_unstable();
    if let Some(pair) = kinds.array_windows().find(|[first, second]| first == second) {
        return Err(Failure::RepeatedExtension(pair[0]));
    }
    let name = extensions.iter().find(|(kind, _)| *kind == SERVER_NAME);
    let (_, name) = name.ok_or(Failure::NoName)?;
    let names = complete(names(name))?;
    let name = match names[..] {
        [] => return Err(Failure::Malformed),
        [(HOST_NAME, name)] => HostName::from_octets(name)?,
        [(other, _)] => return Err(Failure::NameType(other)),
        [_, _, ..] => return Err(Failure::SeveralNames),
    };
    let ech = kinds.iter().any(|kind| is_ech(*kind));
    Ok(ClientHello { name, ech })
}

/// Returns the value of a parser's result.
fn complete<T>(result: IResult<&[u8], T>) -> Result<T, Failure> {
    result.map(|(_, value)| value).map_err(|_| Failure::Malformed)
}

/// Parses a whole ClientHello into its version and its extensions, which are empty if there are none.
fn hello(content: &[u8]) -> IResult<&[u8], (u16, &[u8])> {
    let (rest, version) = be_u16(content)?;
    let (rest, _random) = take(32_usize).parse(rest)?;
    let (rest, _session) = verify(length_data(be_u8), |id: &[u8]| id.len() <= 32).parse(rest)?;
    let suites = |suites: &[u8]| !suites.is_empty() && suites.len().is_multiple_of(2);
    let (rest, _suites) = verify(length_data(be_u16), suites).parse(rest)?;
    let (rest, _compressions) = verify(length_data(be_u8), |list: &[u8]| !list.is_empty()).parse(rest)?;
    if rest.is_empty() {
        // Before TLS 1.3, extensions are optional (RFC 5246 section 7.4.1.2).
        return Ok((rest, (version, rest)));
    }
    let (rest, extensions) = all_consuming(length_data(be_u16)).parse(rest)?;
    Ok((rest, (version, extensions)))
}

/// Parses an extension into its type and its content.
fn extension(input: &[u8]) -> IResult<&[u8], (u16, &[u8])> {
    (be_u16, length_data(be_u16)).parse(input)
}

/// Parses the content of the extension server_name into names, each with its type (RFC 6066 section 3). All names have a
/// length of two octets.
fn names(content: &[u8]) -> IResult<&[u8], Vec<(u8, &[u8])>> {
    let (rest, list) = all_consuming(length_data(be_u16)).parse(content)?;
    let name = (be_u8, length_data::<_, Error<&[u8]>, _>(be_u16));
    let (_, names) = all_consuming(many0(name)).parse(list)?;
    Ok((rest, names))
}

/// Returns true for the type of an extension that contains another server name, encrypted: encrypted_client_hello (RFC
/// 9849), and those of its drafts.
const fn is_ech(kind: u16) -> bool {
    matches!(kind, 0xfe08..=0xfe0d | 0xffce)
}

/// Versions from TLS 1.0 to TLS 1.3. Clients of TLS 1.3 state that of TLS 1.2 (RFC 8446 section 4.1.2).
const VERSIONS: core::ops::RangeInclusive<u16> = 0x0301..=0x0304;

/// Type of the extension server_name.
const SERVER_NAME: u16 = 0;

/// Type of a host name in the extension server_name.
const HOST_NAME: u8 = 0;
