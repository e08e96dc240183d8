//! A UDP server that sends each datagram back, or, for a datagram `give LEN`, the first LEN bytes of the pattern.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use rustix::event::{Timespec, epoll};

use crate::pattern::Pattern;

/// Seed of the pattern in responses to `give`.
pub(crate) const SEED: u64 = 53;

/// Largest UDP payload over IPv4 in bytes.
pub(crate) const MAX_BYTES: usize = 65_507;

/// Interval at which [`echo_all`] checks whether it is done.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

pub(crate) fn bind(address: SocketAddr) -> Result<UdpSocket> {
    UdpSocket::bind(address).with_context(|| format!("cannot bind UDP {address}"))
}

pub(crate) fn start(address: SocketAddr) -> Result<SocketAddr> {
    let socket = bind(address)?;
    rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4 << 20)?;
    let local = socket.local_addr()?;
    std::thread::spawn(move || {
        let pattern = Pattern::of(SEED);
        let mut buffer = vec![0; 1 << 16];
        while let Ok((len, peer)) = socket.recv_from(&mut buffer) {
            let datagram = &buffer[..len];
            // A send to a client that has exited may fail, and the server continues.
            let _ = match asked(datagram) {
                Some(give) => socket.send_to(pattern.prefix(give.min(MAX_BYTES)), peer),
                None => socket.send_to(datagram, peer),
            };
        }
    });
    Ok(local)
}

/// Echoes the datagrams of all `sockets`, on one thread, until `done` is true.
pub(crate) fn echo_all(sockets: &[UdpSocket], done: &AtomicBool) -> Result<()> {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (socket, index) in sockets.iter().zip(0..) {
        epoll::add(
            &poll,
            socket,
            epoll::EventData::new_u64(index),
            epoll::EventFlags::IN,
        )?;
    }
    let mut events = Vec::with_capacity(64);
    let mut buffer = [0; 2048];
    while !done.load(Ordering::Relaxed) {
        events.clear();
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&LOOK))?;
        for event in &events {
            let socket = &sockets[usize::try_from(event.data.u64())?];
            let (len, peer) = socket.recv_from(&mut buffer)?;
            socket.send_to(&buffer[..len], peer)?;
        }
    }
    Ok(())
}

fn asked(datagram: &[u8]) -> Option<usize> {
    std::str::from_utf8(datagram.strip_prefix(b"give ")?)
        .ok()?
        .parse()
        .ok()
}
