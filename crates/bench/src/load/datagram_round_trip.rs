//! A datagram there, a datagram back.

use std::convert::Infallible;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::{RecvFlags, recv};

use crate::job::Message;

use super::client::Client;
use super::fault::Fault;
use super::latency::{self, TransactionError};
use super::socket;

/// An answer that takes longer is an error.
pub(crate) const DEADLINE: Duration = Duration::from_secs(1);

/// Sends back what comes.
pub(crate) fn answer<F: Fault>(socket: &UdpSocket) -> Infallible {
    let mut buffer = vec![0; 65536];
    loop {
        // Errors are about answers to somebody who has gone.
        if let Ok((len, from)) = socket.recv_from(&mut buffer) {
            F::delay();
            let _ = socket.send_to(&buffer[..len], from);
        }
    }
}

/// The client's side.
pub(crate) fn run(client: &mut Client) -> Result<(), Message> {
    let socket = socket::datagram_client(client.at(client.ports().datagram_echo), DEADLINE)?;
    let mut count = 0_u64;
    latency::measure(client, None, || {
        count += 1;
        let request = count.to_le_bytes();
        exchange(&socket, &request, |answer| answer == request)
    })
}

/// Sends `request`, and waits for the answer to it; others are late ones, to questions given up.
pub(crate) fn exchange(
    socket: impl AsFd,
    request: &[u8],
    mut is_answer: impl FnMut(&[u8]) -> bool,
) -> Result<(), TransactionError> {
    let mut buffer = [0; 2048];
    let mut attempt = || {
        rustix::io::write(&socket, request)?;
        loop {
            let (len, _) = recv(&socket, &mut buffer, RecvFlags::empty())?;
            if is_answer(&buffer[..len]) {
                return Ok(());
            }
        }
    };
    attempt().map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => TransactionError::Counted(format!("no answer within {DEADLINE:?}")),
        _ => TransactionError::Counted(error.to_string()),
    })
}
