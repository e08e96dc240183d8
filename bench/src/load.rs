//! The load generator: one server and one client program, the same for every stack.
//!
//! A client opens a *session* over the server's control port (`control`). It lasts as long as that connection; at its
//! end the server closes what the client has opened. Everything is counted where it arrives: the client requests
//! *checkpoints* of the server, a count and the time at which it was read, and a figure is the difference of two. No
//! end polls or sleeps between a request and its answer. Every wait has a timeout, and a stall is reported within three
//! times the measurement's duration from its beginning.
//!
//! Each module contains the client and the server side of one job.

use std::fmt::Display;
use std::io::{self, Write};
use std::net::IpAddr;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::job::{Job, JobMessage, JobSpec};

mod blackhole;
mod calibrate;
mod client;
mod connect;
mod control;
mod datagram_counter;
mod datagram_round_trip;
mod datagrams;
mod descriptors;
mod fault;
mod flow;
mod fork;
mod hash;
mod idle_flows;
mod latency;
mod names;
mod ping;
mod publish;
mod round_trip;
mod server;
mod session;
mod socket;
mod stamp;
mod stream;

pub use calibrate::calibrate;
pub use fault::{Fault, NoFault};
pub use server::ServerThreads;

use client::JobClient;

/// Serves clients on `listen`: writes the [`ServerPorts`](crate::job::ServerPorts) as a line of JSON to standard output, and
/// returns when standard input ends.
///
/// # Errors
/// A port cannot be opened, or standard output is closed.
pub fn serve(listen: IpAddr) -> Result<()> {
    let server =
        ServerThreads::start::<NoFault>(listen).with_context(|| format!("cannot listen on {listen}"))?;
    write_line(&server.ports())?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

/// Runs a job with the server at `server`, and writes [`JobMessage`]s to standard output. The calling process
/// must have one thread.
///
/// # Errors
/// Standard output or input is closed.
pub fn work(server: IpAddr, job_spec: JobSpec) -> Result<()> {
    if let Err(message) = JobClient::new(server, job_spec).and_then(|mut client| perform(&mut client)) {
        write_line(&message)?;
    }
    Ok(())
}

fn perform(client: &mut JobClient) -> Result<(), JobMessage> {
    match client.job().clone() {
        Job::Stream { direction, streams } => stream::run(client, direction, streams),
        Job::Hash { direction, bytes } => hash::run(client, direction, bytes),
        Job::RoundTrip => round_trip::run(client),
        Job::Connect { clients } => connect::run(client, clients),
        Job::PublishConnect { port, .. } => publish::run_connect(client, port),
        Job::PublishRoundTrip { port, .. } => publish::run_round_trip(client, port),
        Job::PublishStream {
            port,
            direction,
            streams,
            ..
        } => publish::run_stream(client, port, direction, streams),
        Job::Datagrams { size, rate } => datagrams::run(client, size, rate),
        Job::SegmentedDatagrams { size, segments, gro } => {
            datagrams::run_segmented(client, size, segments, gro)
        }
        Job::DatagramRoundTrip => datagram_round_trip::run(client),
        Job::Blackhole { pending, address } => blackhole::run(client, pending, address),
        Job::IdleFlows { flows } => idle_flows::run(client, flows),
        Job::Names { resolver } => names::run(client, resolver),
        Job::Echo { address } => ping::run(client, address),
        Job::Idle => client.idle(),
    }
}

/// Writes `what` as one line of JSON to standard output.
fn write_line(what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    let mut out = io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}

fn failed(why: impl Display) -> JobMessage {
    JobMessage::Failed { why: why.to_string() }
}

fn unreachable(why: impl Display) -> JobMessage {
    JobMessage::Unreachable { why: why.to_string() }
}

/// Returns `Stalled` if `error` is a timeout, otherwise `Failed`. `at_byte` is the number of bytes (or
/// transactions) completed before.
fn stalled_or_failed(error: &io::Error, at_byte: u64) -> JobMessage {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => JobMessage::Stalled { at_byte },
        _ => failed(format_args!("connection lost at byte {at_byte}: {error}")),
    }
}
