//! The guest's server, on the host's loopback.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

/// Datagrams sent before a pause: no more than the queues on their path hold.
const BURST: u32 = 64;
const PAUSE: Duration = Duration::from_millis(20);

/// Number of copies of the last datagram, since datagrams may be lost.
const ENDS: u32 = 50;

/// Bytes of each datagram but the last.
const LEN: usize = 64;

/// Starts the server, which runs until the process ends, and returns its port. Over TCP it returns one byte; over UDP
/// it sends as many datagrams as the four bytes of a request state.
pub(crate) fn start() -> Result<u16> {
    let host = Ipv4Addr::LOCALHOST;
    let listener = TcpListener::bind((host, 0)).context("cannot listen")?;
    let port = listener.local_addr()?.port();
    let socket = UdpSocket::bind((host, port)).context("cannot bind the TCP port for UDP too")?;
    thread::spawn(move || listener.incoming().flatten().for_each(echo));
    thread::spawn(move || serve(&socket));
    Ok(port)
}

fn echo(mut client: TcpStream) {
    let mut byte = [0];
    // The guest reports a connection that it closed early as its own failure.
    let _ = client
        .read_exact(&mut byte)
        .and_then(|()| client.write_all(&byte))
        .and_then(|()| client.read(&mut byte));
}

fn serve(socket: &UdpSocket) {
    let mut buffer = [0; 2048];
    while let Ok((len, client)) = socket.recv_from(&mut buffer) {
        let Ok(count) = buffer[..len].try_into().map(u32::from_le_bytes) else {
            continue;
        };
        let send = |datagram: &[u8]| {
            // A datagram that the host refuses is lost, as any datagram may be.
            let _ = socket.send_to(datagram, client);
        };
        for number in 1..=count {
            send(&[0x55; LEN]);
            if number % BURST == 0 {
                thread::sleep(PAUSE);
            }
        }
        for _ in 0..ENDS {
            thread::sleep(PAUSE);
            send(b"end");
        }
    }
}
