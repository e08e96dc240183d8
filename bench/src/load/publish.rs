//! The job `PublishConnect`: TCP connections into the guest, which the server opens and times.

use std::sync::Arc;

use crate::job::JobMessage;

use super::client::JobClient;
use super::control::ControlConnection;
use super::fault::NoFault;
use super::{connect, failed, latency, socket, unreachable};

/// Runs the load client for the job `PublishConnect`: listens on `port` and answers until the server has finished.
pub(crate) fn run(client: &mut JobClient, port: u16) -> Result<(), JobMessage> {
    let listener = socket::listener_everywhere(port)
        .map_err(|error| unreachable(format_args!("cannot listen on port {port}: {error}")))?;
    connect::serve::<NoFault>(&Arc::new(listener)).map_err(failed)?;
    let mut control = ControlConnection::open(client)?;
    control.connect(client.warm_up())?;
    client.begin()?;
    let samples = control.connect(client.duration())?;
    client.end(latency::results(&[samples], control.congestion_control())?)
}
