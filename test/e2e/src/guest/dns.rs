//! A DNS client that sends many queries at once.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::Result;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

/// Number of unanswered queries on each socket.
const EACH: usize = 1000;

/// Number of times that a query is sent, the default of `dig`.
const TRIES: u32 = 3;

/// Queries `count` different names at once, and repeats queries without a response. Returns the number of responses.
pub(crate) fn parallel(server: SocketAddr, count: usize) -> Result<usize> {
    let any: std::net::IpAddr = if server.is_ipv4() {
        [0; 4].into()
    } else {
        [0; 16].into()
    };
    let mut sockets = Vec::new();
    for _ in 0..count.div_ceil(EACH) {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(server)?;
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4 << 20)?;
        sockets.push(socket);
    }
    let mut answered = vec![false; count];
    for _ in 0..TRIES {
        for index in (0..count).filter(|index| !answered[*index]) {
            sockets[index / EACH].send(&query(index))?;
        }
        collect(&sockets, &mut answered)?;
    }
    Ok(answered.iter().filter(|answered| **answered).count())
}

/// Receives responses until all have arrived, or none has arrived for three seconds.
fn collect(sockets: &[UdpSocket], answered: &mut [bool]) -> Result<()> {
    let step = Duration::from_millis(5);
    let mut quiet = Duration::ZERO;
    let mut buffer = [0; 4096];
    while quiet < Duration::from_secs(3) && answered.iter().any(|answered| !answered) {
        quiet += step;
        for (at, socket) in sockets.iter().enumerate() {
            loop {
                match recv(socket, &mut buffer, RecvFlags::DONTWAIT) {
                    Ok((len, _)) if len > 12 && buffer[3] & 0x0f == 0 && buffer[7] == 1 => {
                        let index = at * EACH + usize::from(u16::from_be_bytes([buffer[0], buffer[1]]));
                        if let Some(answered) = answered.get_mut(index) {
                            *answered = true;
                            quiet = Duration::ZERO;
                        }
                    }
                    Ok(_) => {}
                    Err(Errno::AGAIN) => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        std::thread::sleep(step);
    }
    Ok(())
}

/// Returns a query for the A record of `nINDEX.test`.
fn query(index: usize) -> Vec<u8> {
    let name = format!("n{index}");
    let mut query = ((index % EACH) as u16).to_be_bytes().to_vec();
    query.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    query.push(name.len() as u8);
    query.extend(name.as_bytes());
    query.extend(b"\x04test\0\0\x01\0\x01");
    query
}
