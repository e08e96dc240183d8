//! The job `DatagramRoundTrip`: one UDP datagram to the server and back.

use std::convert::Infallible;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::{RecvFlags, recv};

use crate::job::JobMessage;

use super::client::JobClient;
use super::fault::Fault;
use super::latency::{self, TransactionError};
use super::socket;

/// Timeout of the echo of a datagram, after which the transaction counts as an error.
pub(crate) const DEADLINE: Duration = Duration::from_secs(1);

/// Echoes every datagram to its sender.
pub(crate) fn answer<F: Fault>(socket: &UdpSocket) -> Infallible {
    let mut buffer = vec![0; 65536];
    loop {
        // The error is an ICMP error for an echo to a client that has ended.
        if let Ok((len, from)) = socket.recv_from(&mut buffer) {
            F::delay();
            let _ = socket.send_to(&buffer[..len], from);
        }
    }
}

/// Runs the load client for the job `DatagramRoundTrip`.
pub(crate) fn run(client: &mut JobClient) -> Result<(), JobMessage> {
    let socket = socket::datagram_client(client.at(client.ports().datagram_echo), DEADLINE)?;
    let mut count = 0_u64;
    latency::measure(client, None, || {
        count += 1;
        let request = count.to_le_bytes();
        exchange(&socket, &request, |answer| answer == request)
    })
}

/// Sends `request` and waits for its echo. Other datagrams are echoes of earlier requests that timed out.
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
