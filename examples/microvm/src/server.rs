//! The server to which the guest's tasks connect, on the host's loopback.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

/// Number of datagrams that are sent before a pause, so that the queues on the path do not overflow.
const BURST: u32 = 64;
const PAUSE: Duration = Duration::from_millis(20);

/// Number of copies of the last datagram, because datagrams may be lost.
const ENDS: u32 = 50;

/// Length in bytes of each datagram but the last.
const LEN: usize = 64;

/// Starts the server, which runs until the process ends, and returns its port. A TCP client receives the byte that it
/// has sent; a UDP client receives the number of datagrams in the four bytes of its request.
pub(crate) fn start() -> Result<u16> {
    let host = Ipv4Addr::LOCALHOST;
    let listener = TcpListener::bind((host, 0)).context("cannot listen on the loopback address")?;
    let port = listener.local_addr()?.port();
    let socket = UdpSocket::bind((host, port)).context("cannot bind the TCP port for UDP too")?;
    thread::spawn(move || listener.incoming().flatten().for_each(echo));
    thread::spawn(move || serve(&socket));
    Ok(port)
}

fn echo(mut client: TcpStream) {
    let mut byte = [0];
    // Errors are ignored, because the guest reports a failed connection itself.
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
            // An error is ignored: a datagram may be lost.
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
