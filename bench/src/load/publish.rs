//! The jobs of published ports: TCP connections into the guest, which the server opens.

use std::net::TcpListener;
use std::sync::Arc;

use crate::job::{Direction, JobMessage};

use super::client::JobClient;
use super::control::ControlConnection;
use super::fault::NoFault;
use super::flow::BulkFlow;
use super::server::thread;
use super::{connect, failed, latency, round_trip, socket, stream, unreachable};

/// Runs the load client for the job `PublishConnect`: listens on `port` and answers until the server has finished.
pub(crate) fn run_connect(client: &mut JobClient, port: u16) -> Result<(), JobMessage> {
    connect::serve::<NoFault>(&Arc::new(listen(port)?)).map_err(failed)?;
    measure(client)
}

/// Runs the load client for the job `PublishRoundTrip`: echoes bytes, on one connection after the other.
pub(crate) fn run_round_trip(client: &mut JobClient, port: u16) -> Result<(), JobMessage> {
    let listener = listen(port)?;
    let serve = move || {
        while let Ok((socket, _)) = listener.accept() {
            round_trip::answer::<NoFault>(&socket);
        }
    };
    thread("echo", serve).map_err(failed)?;
    measure(client)
}

/// Runs the load client for the job `PublishStream`: accepts the server's connections, and transfers bulk data.
pub(crate) fn run_stream(
    client: &mut JobClient,
    port: u16,
    direction: Direction,
    streams: u16,
) -> Result<(), JobMessage> {
    let listener = listen(port)?;
    // Accepted sockets inherit the timeout.
    socket::bound_waits(&listener, client.timeout()).map_err(failed)?;
    let mut control = ControlConnection::open(client)?;
    control.open_streams()?;
    let flows = (0..streams)
        .map(|_| Ok(BulkFlow::new(listener.accept().map_err(failed)?.0)))
        .collect::<Result<Vec<_>, JobMessage>>()?;
    stream::transfer(client, control, direction, &flows)
}

fn listen(port: u16) -> Result<TcpListener, JobMessage> {
    socket::listener_everywhere(port)
        .map_err(|error| unreachable(format_args!("cannot listen on port {port}: {error}")))
}

/// Has the server run transactions with the guest, for the warm-up and for the measurement.
fn measure(client: &mut JobClient) -> Result<(), JobMessage> {
    let mut control = ControlConnection::open(client)?;
    control.transact(client.warm_up())?;
    client.begin()?;
    let samples = control.transact(client.duration())?;
    client.end(latency::results(&[samples], control.congestion_control())?)
}
