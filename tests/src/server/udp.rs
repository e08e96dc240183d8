//! A UDP server: sends each datagram back, or (asked by a datagram `give LEN`) the first LEN bytes of the pattern.

use std::net::{SocketAddr, UdpSocket};

use anyhow::{Context, Result};

use crate::pattern::Pattern;

/// Seed of what `give` answers.
pub(crate) const SEED: u64 = 53;

/// Largest payload of a datagram over IPv4.
pub(crate) const MAX_BYTES: usize = 65_507;

pub(crate) fn start(address: SocketAddr) -> Result<SocketAddr> {
    let socket = UdpSocket::bind(address).with_context(|| format!("cannot bind UDP {address}"))?;
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4 << 20)?;
    let local = socket.local_addr()?;
    std::thread::spawn(move || {
        let pattern = Pattern::of(SEED);
        let mut buffer = vec![0; 1 << 16];
        while let Ok((len, peer)) = socket.recv_from(&mut buffer) {
            let datagram = &buffer[..len];
            // A client that is gone is no reason to stop.
            let _ = match asked(datagram) {
                Some(give) => socket.send_to(pattern.prefix(give.min(MAX_BYTES)), peer),
                None => socket.send_to(datagram, peer),
            };
        }
    });
    Ok(local)
}

fn asked(datagram: &[u8]) -> Option<usize> {
    std::str::from_utf8(datagram.strip_prefix(b"give ")?)
        .ok()?
        .parse()
        .ok()
}
