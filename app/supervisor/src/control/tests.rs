//! A control socket, its clients, and an engine that says what it is told to.

mod asking;
mod capture;
mod clients;
pub(crate) mod document;
mod log_level;
mod places;
mod policy;
mod publish;
mod requests;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use pontoon_engine::flow_dump::{Flow, Page};
use pontoon_worker::messages::{Flows, Refused, Stats, Turn};

use super::*;
use crate::publish::Families;

/// One worker without rules and ports.
fn served() -> Served {
    Served {
        rules: Vec::new(),
        forwarder: true,
        workers: 1,
        ports: Ports::new(Families::V4),
        set_log_level: |_| {},
    }
}

/// A control socket in a directory of its own.
struct Desk {
    control: Control,
    path: PathBuf,
    told: Vec<Update>,
    /// Published ports that every worker does without.
    refused: Vec<Refused>,
    now: Instant,
    _directory: tempfile::TempDir,
}

impl Desk {
    fn new(workers: u8) -> Self {
        Self::with(workers, |_| {})
    }

    fn with(workers: u8, set_log_level: fn(LevelFilter)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let served = Served {
            rules: vec!["deny 192.0.2.1".parse().unwrap()],
            workers,
            set_log_level,
            ..served()
        };
        Self {
            control: Control::open(Some(&path), None, served).unwrap(),
            path,
            told: Vec::new(),
            refused: Vec::new(),
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
        let told = &mut self.told;
        self.control.serve(&mut |update| told.push(update), self.now);
    }

    /// Every worker answers what it was last asked.
    fn answer(&mut self, workers: u8) {
        let asked = self.told.iter().rev().find_map(|update| match update {
            Update::Ask(round) => Some(*round),
            _ => None,
        });
        for worker in 0..workers {
            let stats = Stats {
                round: asked.unwrap(),
                worker,
                flows: 2,
                pool_bytes: 65_536,
                rules: vec![3, 4, 5],
                refused: self.refused.clone(),
                histograms: Vec::new(),
                counters: vec![("frames_up".to_owned(), 10)],
            };
            let told = &mut self.told;
            self.control
                .take_report(Report::Stats(stats), &mut |update| told.push(update), self.now);
        }
    }

    /// The worker that was asked last for flows tells of these.
    fn tell_flows(&mut self, flows: Vec<Flow>, next: Option<u64>) {
        let Some(Update::Flows(Turn { number, .. })) = self.told.last().cloned() else {
            panic!("{:?}", self.told);
        };
        let page = Page { flows, next };
        let told = &mut self.told;
        self.control.take_report(
            Report::Flows(Flows { number, page }),
            &mut |update| told.push(update),
            self.now,
        );
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
        self.serve();
    }
}

fn say(mut client: &UnixStream, text: &str) {
    client.write_all(text.as_bytes()).unwrap();
}

/// Reads the received text; the flag is true if the connection is closed.
fn heard(mut client: &UnixStream) -> (String, bool) {
    let mut text = Vec::new();
    let ended = client.read_to_end(&mut text).is_ok();
    (String::from_utf8(text).unwrap(), ended)
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
