//! A STUN server, which answers a Binding request with XOR-MAPPED-ADDRESS (RFC 8489 sections 5 and 14.2).

use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Context, Result, bail, ensure};

use crate::sys;

const COOKIE: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];
const HEADER_BYTES: usize = 20;

pub(crate) fn start(address: SocketAddr) -> Result<SocketAddr> {
    let socket = UdpSocket::bind(address).with_context(|| format!("cannot bind UDP {address}"))?;
    let local = socket.local_addr()?;
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((len, peer)) = socket.recv_from(&mut buffer) {
            if len >= HEADER_BYTES && buffer[..2] == [0, 1] && buffer[4..8] == COOKIE {
                let _ = socket.send_to(&response(&buffer[4..HEADER_BYTES], peer), peer);
            }
        }
    });
    Ok(local)
}

/// Returns the address of `socket` that `server` sees.
pub(crate) fn mapped(socket: &UdpSocket, server: SocketAddr) -> Result<SocketAddr> {
    let mut request = vec![0, 1, 0, 0];
    request.extend(COOKIE);
    request.extend(server.port().to_be_bytes().repeat(6));
    socket.send_to(&request, server)?;
    let mut buffer = [0; 2048];
    let (len, from) = sys::uninterrupted(|| socket.recv_from(&mut buffer))
        .with_context(|| format!("no answer from {server}"))?;
    let answer = &buffer[..len];
    ensure!(from == server, "answered by {from} instead of {server}");
    ensure!(
        len > HEADER_BYTES + 8 && answer[..2] == [1, 1],
        "not a Binding response"
    );
    ensure!(
        answer[4..HEADER_BYTES] == request[4..],
        "the response has another transaction id"
    );
    let value = &answer[HEADER_BYTES + 4..];
    let port = u16::from_be_bytes([value[2] ^ COOKIE[0], value[3] ^ COOKIE[1]]);
    let plain: Vec<u8> = value[4..].iter().zip(&request[4..]).map(|(a, b)| a ^ b).collect();
    let address: IpAddr = match (value[1], plain.len()) {
        (1, 4..) => <[u8; 4]>::try_from(&plain[..4])?.into(),
        (2, 16..) => <[u8; 16]>::try_from(&plain[..16])?.into(),
        _ => bail!("the response has no XOR-MAPPED-ADDRESS"),
    };
    Ok(SocketAddr::new(address, port))
}

/// Returns a response for `peer`. `key` is the magic cookie and the transaction id, with which the address is XORed.
fn response(key: &[u8], peer: SocketAddr) -> Vec<u8> {
    let (family, address) = match peer.ip() {
        IpAddr::V4(v4) => (1, v4.octets().to_vec()),
        IpAddr::V6(v6) => (2, v6.octets().to_vec()),
    };
    let len = 4 + address.len() as u16;
    let mut response = vec![1, 1];
    response.extend((len + 4).to_be_bytes());
    response.extend(key);
    response.extend([0, 0x20]);
    response.extend(len.to_be_bytes());
    response.extend([0, family]);
    response.extend(peer.port().to_be_bytes().iter().zip(&COOKIE).map(|(a, b)| a ^ b));
    response.extend(address.iter().zip(key).map(|(a, b)| a ^ b));
    response
}
