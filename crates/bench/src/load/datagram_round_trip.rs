//! A datagram there, a datagram back.

use std::convert::Infallible;
use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::{RecvFlags, recv};

use crate::job::Word;

use super::fault::Fault;
use super::latency::{self, Miss};
use super::socket;
use super::stage::Stage;

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
pub(crate) fn run(stage: &mut Stage) -> Result<(), Word> {
    let socket = socket::datagram_client(stage.at(stage.ports().datagram_echo), DEADLINE)?;
    let mut turn = 0_u64;
    latency::measure(stage, None, || {
        turn += 1;
        let question = turn.to_le_bytes();
        exchange(&socket, &question, |answer| answer == question)
    })
}

/// Sends `question`, and waits for the answer to it; others are late ones, to questions given up.
pub(crate) fn exchange(
    socket: impl AsFd,
    question: &[u8],
    mut is_answer: impl FnMut(&[u8]) -> bool,
) -> Result<(), Miss> {
    let mut buffer = [0; 2048];
    let mut attempt = || {
        rustix::io::write(&socket, question)?;
        loop {
            let (len, _) = recv(&socket, &mut buffer, RecvFlags::empty())?;
            if is_answer(&buffer[..len]) {
                return Ok(());
            }
        }
    };
    attempt().map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => Miss::Counts(format!("no answer within {DEADLINE:?}")),
        _ => Miss::Counts(error.to_string()),
    })
}
