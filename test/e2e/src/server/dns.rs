//! A DNS server over UDP and TCP (RFC 1035, RFC 6891): `big.test` has 3,750 bytes of TXT records, and every other
//! name has the addresses [`A`] and [`AAAA`].

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};

use anyhow::{Context, Result, ensure};

pub(crate) const A: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);
pub(crate) const AAAA: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x77);

/// Number of strings of 250 bytes in the TXT record of `big.test`.
const BIG_STRINGS: usize = 15;

/// Largest UDP response to clients without EDNS, in bytes (RFC 1035 section 4.2.1).
const PLAIN_BYTES: usize = 512;

pub(crate) fn start(address: SocketAddr) -> Result<()> {
    let socket = UdpSocket::bind(address).with_context(|| format!("cannot bind UDP {address}"))?;
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4 << 20)?;
    super::accept(address, (), |(), stream| serve(stream))?;
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((len, peer)) = socket.recv_from(&mut buffer) {
            if let Some((mut response, limit)) = answer(&buffer[..len]) {
                if response.len() > limit {
                    // A truncated response contains the header and the question only, with TC set.
                    let question = question_end(&response).unwrap_or(12);
                    response.truncate(question);
                    response[2] |= 0x02;
                    response[6..12].fill(0);
                }
                let _ = socket.send_to(&response, peer);
            }
        }
    });
    Ok(())
}

fn serve(mut stream: TcpStream) -> Result<()> {
    loop {
        let mut len = [0; 2];
        stream.read_exact(&mut len)?;
        let mut query = vec![0; u16::from_be_bytes(len).into()];
        stream.read_exact(&mut query)?;
        let (response, _) = answer(&query).context("the DNS query is malformed")?;
        ensure!(
            response.len() <= usize::from(u16::MAX),
            "the DNS response is longer than 65,535 bytes"
        );
        stream.write_all(&[&(response.len() as u16).to_be_bytes(), response.as_slice()].concat())?;
    }
}

/// Returns the response to a query, and the largest response over UDP that the client accepts.
fn answer(query: &[u8]) -> Option<(Vec<u8>, usize)> {
    let end = question_end(query)?;
    let edns = query.get(10..12)? != [0, 0];
    // The client's OPT record: root name, type 41, then its UDP payload size.
    let limit = query
        .get(end..end + 5)
        .filter(|opt| edns && opt[..3] == [0, 0, 41]);
    let limit = limit.map_or(PLAIN_BYTES, |opt| u16::from_be_bytes([opt[3], opt[4]]).into());
    let mut records: Vec<Vec<u8>> = Vec::new();
    let big = query.get(12..22) == Some(&b"\x03big\x04test\0"[..]);
    match query[end - 4..end - 2] {
        [0, 1] if !big => records.push(A.octets().to_vec()),
        [0, 28] if !big => records.push(AAAA.octets().to_vec()),
        [0, 16] if big => records.extend((0..BIG_STRINGS).map(|string| {
            let mut text = vec![250];
            text.resize(251, b'a' + string as u8);
            text
        })),
        _ => {}
    }
    let mut response = query[..end].to_vec();
    response[2..4].copy_from_slice(&[0x85, 0x80]);
    response[6..12].copy_from_slice(&[0, records.len() as u8, 0, 0, 0, edns.into()]);
    for record in &records {
        response.extend([0xc0, 12]);
        response.extend(&query[end - 4..end]);
        response.extend([0, 0, 0, 60]);
        response.extend((record.len() as u16).to_be_bytes());
        response.extend(record);
    }
    if edns {
        response.extend([0, 0, 41, 0x10, 0, 0, 0, 0, 0, 0, 0]);
    }
    Some((response, limit))
}

/// Returns the offset after the first question.
fn question_end(message: &[u8]) -> Option<usize> {
    let mut at = 12;
    while *message.get(at)? != 0 {
        at += usize::from(message[at]) + 1;
    }
    (at + 5 <= message.len()).then_some(at + 5)
}
