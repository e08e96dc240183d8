//! Parses the parts of DNS messages that the forwarder needs: header and question (RFC 1035 section 4.1).

use core::hash::{Hash, Hasher};
use core::net::IpAddr;
use core::ops::Range;

use arrayvec::ArrayVec;

use crate::state::{Reader, Record, StateError, Writer, check};

/// A DNS query of the guest, with a copy of its message.
#[derive(Debug)]
pub(super) struct Query {
    bytes: ArrayVec<u8, LONGEST>,
    /// Offset of the end of the question section.
    question_end: usize,
    /// True if the message was longer than the stored copy.
    cut: bool,
}

/// Returns the NOTIMP response to a message with an opcode other than QUERY, such as UPDATE (RFC 2136), which a
/// resolver might permit to the host; `None` for queries and responses. The sections of such messages have other
/// meanings, so the response contains none.
pub(super) fn not_implemented(datagram: &[u8]) -> Option<[u8; HEADER]> {
    let header = datagram.first_chunk::<HEADER>()?;
    if !is_other_operation(header[2]) {
        return None;
    }
    let mut answer = [0; HEADER];
    answer[..2].copy_from_slice(&header[..2]);
    answer[2] = RESPONSE | header[2] & (OPCODE | RECURSION_DESIRED);
    answer[3] = NOTIMP;
    Some(answer)
}

/// Returns true if `flags`, the third octet of a message, is that of a request with an opcode other than QUERY.
const fn is_other_operation(flags: u8) -> bool {
    flags & RESPONSE == 0 && flags & OPCODE != 0
}

/// Returns true if `flags`, the third octet of a message, is that of a query (opcode QUERY, no response).
pub(super) const fn is_query(flags: u8) -> bool {
    flags & (RESPONSE | OPCODE) == 0
}

/// The record contains the message, which is parsed again.
impl Record for Query {
    fn save(&self, to: &mut Writer<'_>) {
        let Self {
            bytes,
            question_end: _,
            cut,
        } = self;
        debug_assert!(!cut, "a query that was cut is answered at once");
        to.put(bytes);
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        let bytes: ArrayVec<u8, LONGEST> = from.get()?;
        let query = Self::parse(&bytes).ok_or(StateError::Malformed)?;
        check(!query.cut)?;
        Ok(query)
    }
}

impl Query {
    /// Parses a query with one question, or with none (which RFC 7873 section 5.4 permits).
    pub(super) fn parse(datagram: &[u8]) -> Option<Self> {
        let header = datagram.first_chunk::<HEADER>()?;
        let question_end = match (header[4], header[5]) {
            _ if !is_query(header[2]) => return None,
            (0, 0) => HEADER,
            (0, 1) => HEADER + question_len(&datagram[HEADER..])?,
            _ => return None,
        };
        Some(Self {
            bytes: datagram.iter().copied().take(LONGEST).collect(),
            question_end,
            cut: datagram.len() > LONGEST,
        })
    }

    /// Returns the id that the guest has chosen for the query.
    pub(super) fn id(&self) -> [u8; 2] {
        [self.bytes[0], self.bytes[1]]
    }

    /// Returns the question: name, type and class.
    pub(super) fn question(&self) -> &[u8] {
        &self.bytes[HEADER..self.question_end]
    }

    /// Returns the message without its id, which is sent to the resolver behind another id.
    pub(super) fn after_id(&mut self) -> &mut [u8] {
        &mut self.bytes[2..]
    }

    /// Returns true if the query was too long to be forwarded over UDP.
    pub(super) fn is_cut(&self) -> bool {
        self.cut
    }

    /// Returns the byte range of the question's name, which is the same in the query and in its responses.
    pub(super) fn name_range(&self) -> Range<usize> {
        HEADER..HEADER.max(self.question_end - TYPE_AND_CLASS)
    }

    /// Returns the name of the question; empty if the query has no question.
    pub(super) fn name(&self) -> &[u8] {
        &self.bytes[self.name_range()]
    }

    /// Returns true if the query `other` has the same question: name without letter case, type and class.
    pub(super) fn has_question_of(&self, other: &Self) -> bool {
        let type_and_class = |query: &Self| -> [u8; TYPE_AND_CLASS] {
            *query.question().last_chunk().unwrap_or(&[0; TYPE_AND_CLASS])
        };
        self.question().len() == other.question().len()
            && self.name().eq_ignore_ascii_case(other.name())
            && type_and_class(self) == type_and_class(other)
    }

    /// Returns true if a response to this query is also one to `other`: the queries differ only in id and letter case,
    /// not in flags, EDNS options or anything else on which a response depends.
    pub(super) fn shares_answers_with(&self, other: &Self) -> bool {
        self.bytes[2..HEADER] == other.bytes[2..HEADER]
            && self.has_question_of(other)
            && self.bytes[self.question_end..] == other.bytes[other.question_end..]
    }

    /// Returns true if `message` is a response to this query with the id `id`. Names are compared byte by byte, because
    /// a guest may mix the case of letters to detect forged responses.
    pub(super) fn is_answered_by(&self, message: &[u8], id: u16) -> bool {
        let Some(header) = message.first_chunk::<HEADER>() else {
            return false;
        };
        header[..2] == id.to_be_bytes()
            && header[2] & RESPONSE != 0
            && header[2] & OPCODE == self.bytes[2] & OPCODE
            && header[4..6] == self.bytes[4..6]
            && message.get(HEADER..self.question_end) == Some(self.question())
    }

    /// Returns true if the response is an error that another resolver may not return (SERVFAIL, NOTIMP or REFUSED), and
    /// is short enough to be stored.
    pub(super) fn is_declined_by(answer: &[u8]) -> bool {
        answer.len() <= LONGEST_DECLINE
            && answer
                .get(3)
                .is_some_and(|flags| matches!(flags & RCODE, SERVFAIL | NOTIMP | REFUSED))
    }

    /// Returns the response SERVFAIL to this query.
    pub(super) fn server_failure(&self) -> EmptyResponse {
        self.empty(0, SERVFAIL)
    }

    /// Returns a truncated response (TC bit), after which the client queries over TCP.
    pub(super) fn truncated(&self) -> EmptyResponse {
        self.empty(TRUNCATED, 0)
    }

    /// Returns the response without error and without records.
    pub(super) fn without_records(&self) -> EmptyResponse {
        self.empty(0, 0)
    }

    /// Returns the response with one address and its time to live in seconds. The query has one question.
    pub(super) fn with_address(&self, address: IpAddr, ttl: u32) -> Vec<u8> {
        let mut answer = self.empty(0, 0).to_vec();
        answer[7] = 1;
        answer.extend(NAME_OF_QUESTION);
        match address {
            IpAddr::V4(_) => answer.extend([0, 1]),
            IpAddr::V6(_) => answer.extend([0, 28]),
        }
        answer.extend([0, 1]);
        answer.extend(ttl.to_be_bytes());
        match address {
            IpAddr::V4(v4) => answer.extend([0, 4].into_iter().chain(v4.octets())),
            IpAddr::V6(v6) => answer.extend([0, 16].into_iter().chain(v6.octets())),
        }
        answer
    }

    /// Returns the question; `None` if there is none, or if its name does not consist of ASCII letters and the like.
    pub(super) fn sole_question(&self) -> Option<Question> {
        let (wire, [a, b, c, d]) = self.question().split_last_chunk::<TYPE_AND_CLASS>()?;
        let mut name = String::new();
        let mut rest = wire;
        while let [len, after @ ..] = rest
            && *len > 0
        {
            let (label, after) = after.split_at_checked(usize::from(*len))?;
            if label.contains(&b'.') {
                return None;
            }
            if !name.is_empty() {
                name.push('.');
            }
            name.push_str(core::str::from_utf8(label).ok()?);
            rest = after;
        }
        Some(Question {
            name,
            kind: u16::from_be_bytes([*a, *b]),
            class: u16::from_be_bytes([*c, *d]),
        })
    }

    fn empty(&self, flags: u8, rcode: u8) -> EmptyResponse {
        let mut answer = EmptyResponse::new();
        answer.extend(self.id());
        answer.push(RESPONSE | self.bytes[2] & (OPCODE | RECURSION_DESIRED) | flags);
        answer.push(RECURSION_AVAILABLE | self.bytes[3] & CHECKING_DISABLED | rcode);
        answer.extend([self.bytes[4], self.bytes[5], 0, 0, 0, 0, 0, 0]);
        answer.extend(self.question().iter().copied());
        answer
    }
}

/// The question of a query.
pub(super) struct Question {
    /// The name as text, without a trailing dot.
    pub(super) name: String,
    /// The type of the records.
    pub(super) kind: u16,
    pub(super) class: u16,
}

/// Hashes the question independent of letter case.
impl Hash for Query {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let mut question: ArrayVec<u8, { LONGEST_NAME + TYPE_AND_CLASS }> =
            self.question().iter().copied().collect();
        // Type and class are lower-cased, too; questions that differ only in such a bit are distinguished by
        // comparison.
        question.make_ascii_lowercase();
        question.hash(state);
    }
}

/// A DNS response that consists of header and question.
pub(super) type EmptyResponse = ArrayVec<u8, { HEADER + LONGEST_NAME + TYPE_AND_CLASS }>;

/// Returns the length of the question at the start of `section`. Its name is not compressed, because no name precedes
/// it.
fn question_len(section: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match *section.get(at)? {
            0 => break,
            len @ 1..=63 => at += 1 + usize::from(len),
            _ => return None,
        }
    }
    let name = at + 1;
    (name <= LONGEST_NAME && section.len() >= name + TYPE_AND_CLASS).then_some(name + TYPE_AND_CLASS)
}

/// The name of a record that is that of the question, behind the header (RFC 1035 section 4.1.4).
const NAME_OF_QUESTION: [u8; 2] = [0xc0, 12];

pub(super) const HEADER: usize = 12;
/// Octets of type and class, which follow the name in a question.
const TYPE_AND_CLASS: usize = 4;
const LONGEST_NAME: usize = 255;
/// Longest forwarded query in bytes (RFC 1035 section 2.3.4). With EDNS, a client may send longer ones only to a server
/// that has announced a larger size.
const LONGEST: usize = 512;
/// Longest error response in bytes that is stored while other resolvers are queried: header, question, and perhaps an
/// extended error (RFC 8914).
const LONGEST_DECLINE: usize = 1_232;

/// Bits of the third and fourth octet of a DNS header (RFC 1035 section 4.1.1, RFC 4035 section 3.2.2).
const RESPONSE: u8 = 0x80;
const OPCODE: u8 = 0x78;
const TRUNCATED: u8 = 0x02;
const RECURSION_DESIRED: u8 = 0x01;
const RECURSION_AVAILABLE: u8 = 0x80;
const CHECKING_DISABLED: u8 = 0x10;
const RCODE: u8 = 0x0f;
const SERVFAIL: u8 = 2;
const NOTIMP: u8 = 4;
const REFUSED: u8 = 5;
