//! The job `RoundTrip`: one byte to the server and back over one TCP connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::job::JobMessage;

use super::client::JobClient;
use super::control::ControlConnection;
use super::fault::Fault;
use super::latency::{self, TransactionError};
use super::{failed, socket, stalled_or_failed};

/// Echoes bytes until the client closes the connection.
pub(crate) fn answer<F: Fault>(mut socket: &TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    if socket.set_nodelay(true).is_err() {
        return;
    }
    while let Ok(len @ 1..) = socket.read(&mut buffer) {
        F::delay();
        if socket.write_all(&buffer[..len]).is_err() {
            return;
        }
    }
}

/// Runs the load client for the job `RoundTrip`.
pub(crate) fn run(client: &mut JobClient) -> Result<(), JobMessage> {
    let control = ControlConnection::open(client)?;
    let mut pinger = EchoConnection::connect(client)?;
    latency::measure(client, control.congestion_control(), || pinger.exchange())
}

/// A TCP connection to the echo port of the load server.
pub(crate) struct EchoConnection {
    socket: TcpStream,
    exchanged: u64,
}

impl EchoConnection {
    pub(crate) fn connect(client: &JobClient) -> Result<Self, JobMessage> {
        Self::open(client.at(client.ports().echo), client.timeout())
    }

    /// Connects to a socket that echoes bytes.
    pub(crate) fn open(to: SocketAddr, timeout: Duration) -> Result<Self, JobMessage> {
        let socket = socket::connect(to, timeout)?;
        socket.set_nodelay(true).map_err(failed)?;
        Ok(Self { socket, exchanged: 0 })
    }

    /// Sends one byte and waits for its echo.
    pub(crate) fn exchange(&mut self) -> Result<(), TransactionError> {
        let sent = [self.exchanged as u8];
        let mut back = [0];
        self.socket
            .write_all(&sent)
            .and_then(|()| self.socket.read_exact(&mut back))
            .map_err(|error| TransactionError::Fatal(stalled_or_failed(&error, self.exchanged)))?;
        if back != sent {
            return Err(TransactionError::Fatal(failed(format_args!(
                "byte {} came back as {back:?} instead of {sent:?}",
                self.exchanged
            ))));
        }
        self.exchanged += 1;
        Ok(())
    }
}
