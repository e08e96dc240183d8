//! A DNS resolver on the host's port 53, which gives the same answer for all names.

use std::net::{Ipv4Addr, UdpSocket};

use anyhow::{Context, Result};

/// Length of a DNS header (RFC 1035 section 4.1.1).
const HEADER: usize = 12;

/// The answer section for the name in the question: `A 192.0.2.1` with a TTL of 60 seconds.
const ANSWER: [u8; 16] = [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1];

/// Starts a thread that answers DNS queries until this process ends.
///
/// # Errors
/// The port is in use or not allowed.
pub(crate) fn start() -> Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 53)).context("cannot bind port 53")?;
    std::thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut query) {
            if let Some(answer) = answer(&query[..length]) {
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    Ok(())
}

/// Returns the response to a query with one question. Other sections of the query (EDNS) are ignored.
fn answer(query: &[u8]) -> Option<Vec<u8>> {
    let questions = query.get(4..6)?;
    let name = query.get(HEADER..)?.iter().position(|byte| *byte == 0)?;
    let question = query.get(HEADER..HEADER + name + 5)?;
    if questions != [0, 1] || query[2] & 0x80 != 0 {
        return None;
    }
    let mut answer = query[..2].to_vec();
    // QR set, RD copied, RA set, RCODE 0; one question, one answer.
    answer.extend([0x80 | query[2] & 1, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
    answer.extend(question);
    answer.extend(ANSWER);
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_queries_are_answered() {
        let mut query = vec![0xab, 0xcd, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        query.extend(b"\x01a\x00\x00\x01\x00\x01");
        let answer = answer(&query).unwrap();
        assert_eq!(answer[..8], [0xab, 0xcd, 0x81, 0x80, 0, 1, 0, 1]);
        assert_eq!(answer[HEADER..HEADER + 7], query[HEADER..]);
        assert_eq!(answer[HEADER + 7..], ANSWER);
        assert_eq!(super::answer(&answer), None);
        assert_eq!(super::answer(&query[..15]), None);
        assert_eq!(super::answer(&[]), None);
    }
}
