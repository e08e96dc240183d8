//! A control socket, its clients, and the statistics and reports of an engine.

mod capture;
mod clients;
mod decisions;
mod document;
mod end_flows;
mod engine_queries;
mod log_level;
mod pesto;
mod places;
mod policy;
mod publish;
mod requests;
mod slirp;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use pontoon_control::{CLIENTS, IDLE_TIMEOUT, REQUEST_TIMEOUT, reply};
use pontoon_engine::address_plan::AddressPlan;
use pontoon_engine::flow_dump::{Flow, Page};
use pontoon_engine::{Counters, Histograms, WorkerId};
use pontoon_test_support::process::{close_port, free_port};
use pontoon_worker::messages::{Confirmation, EndedFlows, FlowPage, FlowPageRequest, PortError};
use pontoon_worker::stats::{StatsTable, Values, WorkerHistograms};

use super::*;

/// Returns the state of a network with one worker and without rules and ports.
fn served() -> ControlSetup {
    let mut plan = AddressPlan::usual(true);
    plan.v6 = None;
    ControlSetup {
        statistics: Statistics::new(StatsTable::private(1, 0), Vec::new()),
        forwarder: true,
        ports: Ports::new(plan.clone()),
        forwards: Forwards::new(plan),
        events: None,
        set_log_level: |_| {},
    }
}

/// Control socket in a directory of its own, and the updates that it sends to the engine.
struct Fixture {
    control: Control,
    table: StatsTable,
    path: PathBuf,
    updates: Vec<Update>,
    /// Published ports that every worker reports as refused.
    refused: Vec<PortError>,
    /// Results of requests to end flows that every worker reports.
    ended: Vec<EndedFlows>,
    now: Instant,
    _directory: tempfile::TempDir,
}

impl Fixture {
    fn new(workers: u8) -> Self {
        Self::with(workers, |_| {})
    }

    fn with(workers: u8, set_log_level: fn(LevelFilter)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let table = StatsTable::private(workers, 8);
        let served = ControlSetup {
            statistics: Statistics::new(table.clone(), vec!["deny 192.0.2.1".parse().unwrap()]),
            events: None,
            set_log_level,
            ..served()
        };
        Self {
            control: Control::open(Some(&path), None, served).unwrap(),
            table,
            path,
            updates: Vec::new(),
            refused: Vec::new(),
            ended: Vec::new(),
            now: Instant::now(),
            _directory: directory,
        }
    }

    fn client(&self) -> UnixStream {
        let client = UnixStream::connect(&self.path).unwrap();
        client.set_nonblocking(true).unwrap();
        client
    }

    fn serve(&mut self) {
        let updates = &mut self.updates;
        self.control.serve(&mut |update| updates.push(update), self.now);
    }

    /// Publishes statistics of every worker, with hits of the rules of this generation.
    fn publish(&self, generation: u64, hits: &[u64]) {
        for worker in 0..self.table.workers() {
            let counters = Counters {
                frames_up: 10,
                ..Counters::default()
            };
            let mut values = Values::default();
            values.gauges.flows = 2;
            let mut writer = self.table.writer(WorkerId(worker));
            let histograms = (&Histograms::default(), &WorkerHistograms::default());
            writer.publish(
                &values,
                &counters,
                histograms,
                Some((generation, hits.iter().copied())),
            );
        }
    }

    /// Lets this many workers confirm the last request.
    fn confirm(&mut self, workers: u8) {
        let asked = self.updates.iter().rev().find_map(|update| match update {
            Update::Confirm(round) => Some(*round),
            _ => None,
        });
        for worker in 0..workers {
            let confirmation = Confirmation {
                round: asked.unwrap(),
                worker,
                port_errors: self.refused.clone(),
                ended: self.ended.clone(),
            };
            let updates = &mut self.updates;
            self.control.take_report(
                Report::Confirmed(confirmation),
                &mut |update| updates.push(update),
                self.now,
            );
        }
    }

    /// Reports `flows` for the last query; `next` is where the next page begins.
    fn report_flows(&mut self, flows: Vec<Flow>, next: Option<u64>) {
        let Some(Update::Flows(FlowPageRequest { number, .. })) = self.updates.last().cloned() else {
            panic!("{:?}", self.updates);
        };
        let page = Page { flows, next };
        let updates = &mut self.updates;
        self.control.take_report(
            Report::Flows(FlowPage { number, page }),
            &mut |update| updates.push(update),
            self.now,
        );
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.serve();
    }
}

fn send(mut client: &UnixStream, text: &str) {
    client.write_all(text.as_bytes()).unwrap();
}

/// Reads the text that the client has received; the flag is true if the connection is closed.
fn received(client: &UnixStream) -> (String, bool) {
    let (bytes, ended) = received_bytes(client);
    (String::from_utf8(bytes).unwrap(), ended)
}

/// Same as [`received`], of a protocol that is not text.
fn received_bytes(mut client: &UnixStream) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let ended = client.read_to_end(&mut bytes).is_ok();
    (bytes, ended)
}

fn status(answer: &str) -> &str {
    answer.split_whitespace().nth(1).unwrap_or(answer)
}

fn put(body: &str) -> String {
    format!(
        "PUT /v1/policy HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn post(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

const STATS: &str = "GET /v1/stats HTTP/1.1\r\nHost: pontoon\r\n\r\n";

/// A change that the workers confirm.
const CHANGE: &str = "PUT /v1/policy HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}";
