//! The job `Names`: DNS queries (RFC 1035).

use std::net::{IpAddr, SocketAddr};
use std::time::SystemTime;

use crate::job::JobMessage;

use super::client::JobClient;
use super::datagram_round_trip::{DEADLINE, exchange};
use super::latency;
use super::socket;

const PORT: u16 = 53;

/// Runs the load client for the job `Names`. The resolver of the stack is the server.
pub(crate) fn run(client: &mut JobClient, resolver: IpAddr) -> Result<(), JobMessage> {
    run_at(client, SocketAddr::new(resolver, PORT))
}

fn run_at(client: &mut JobClient, resolver: SocketAddr) -> Result<(), JobMessage> {
    let socket = socket::datagram_client(resolver, DEADLINE)?;
    let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let mut count = 0_u64;
    latency::measure(client, None, || {
        count += 1;
        // The time makes the name unique among runs, so that no cache contains it.
        let query = query(count as u16, &format!("n{count}-{since_1970:x}"));
        exchange(&socket, &query, |answer| answers(answer, &query))
    })
}

/// Returns a DNS query for the A record of `label.bench.test`, with recursion desired.
fn query(id: u16, label: &str) -> Vec<u8> {
    let mut query = Vec::with_capacity(64);
    query.extend(id.to_be_bytes());
    query.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for label in [label, "bench", "test"] {
        query.push(label.len() as u8);
        query.extend(label.as_bytes());
    }
    // The root label that ends the name; QTYPE A, QCLASS IN.
    query.extend([0, 0, 1, 0, 1]);
    query
}

/// Returns true if `answer` is a response to `query` with RCODE 0 or 3 (NXDOMAIN); other codes are failures
/// of the resolver.
fn answers(answer: &[u8], query: &[u8]) -> bool {
    const NO_ERROR: u8 = 0;
    const NO_SUCH_NAME: u8 = 3;
    answer.len() >= query.len()
        && answer[..2] == query[..2]
        && answer[2] & 0x80 != 0
        && matches!(answer[3] & 0xf, NO_ERROR | NO_SUCH_NAME)
        && answer[12..query.len()] == query[12..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_is_encoded_as_in_rfc_1035() {
        let expected =
            b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x02n1\x05bench\x04test\x00\x00\x01\x00\x01";
        assert_eq!(query(0x1234, "n1"), expected);
    }

    #[test]
    fn only_the_answer_to_its_query_is_accepted() {
        let query = query(7, "n1");
        let mut answer = query.clone();
        assert!(!answers(&answer, &query), "a query is no answer");
        answer[2] |= 0x80;
        assert!(answers(&answer, &query));
        answer[3] = 3;
        assert!(answers(&answer, &query), "no such name");
        answer[3] = 2;
        assert!(!answers(&answer, &query), "a failure");
        answer[3] = 0;
        answer[1] = 8;
        assert!(!answers(&answer, &query), "another's");
        assert!(!answers(&[], &query));
    }
}
