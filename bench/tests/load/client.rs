//! Runs the load server and the load client as programs.

use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::process::{Child, ChildStdout, Command, Stdio};

use pontoon_bench::job::{Job, JobMessage, JobResults, JobSpec, ServerPorts};
use pontoon_bench::load::{Fault, NoFault, ServerThreads};

pub(crate) const LOOPBACK: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

pub(crate) const DURATION: f64 = 0.4;

/// Timeout of a job in seconds, which is not reached even on a loaded machine.
const TIMEOUT: f64 = 30.0;

/// Timeout in seconds of a job whose server has stopped answering.
const STALL_TIMEOUT: f64 = 0.8;

/// A running program whose output is read line by line. It is killed on drop.
pub(crate) struct Program {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Program {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pontoon-bench"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    pub(crate) fn client(server: IpAddr, ports: ServerPorts, job: Job, duration: f64) -> Self {
        Self::client_with_timeout(server, ports, job, duration, TIMEOUT)
    }

    fn client_with_timeout(
        server: IpAddr,
        ports: ServerPorts,
        job: Job,
        duration: f64,
        timeout: f64,
    ) -> Self {
        let job_spec = JobSpec {
            job,
            ports,
            warm_up: 0.05,
            duration,
            timeout,
        };
        let job_spec = serde_json::to_string(&job_spec).unwrap();
        Self::start(&["load-client", &server.to_string(), &job_spec])
    }

    pub(crate) fn server() -> (Self, ServerPorts) {
        let mut server = Self::start(&["load-server", "127.0.0.1"]);
        let ports = serde_json::from_str(&server.line().unwrap()).unwrap();
        (server, ports)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads the next line of the program's output. Returns `None` at the end.
    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.pop().map(|_| line)
    }

    pub(crate) fn message(&mut self) -> JobMessage {
        let line = self.line().expect("a message");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// Closes the program's standard input. The program must then exit successfully without another message.
    pub(crate) fn release(mut self) {
        drop(self.child.stdin.take());
        assert_eq!(self.line(), None);
        assert!(self.child.wait().unwrap().success());
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a server with the fault `F` in this process, and returns its ports.
pub(crate) fn faulty<F: Fault>() -> ServerPorts {
    ServerThreads::start::<F>(LOOPBACK).unwrap().ports()
}

/// Returns the last message of a client that runs `job` with a server that has the fault `F`.
pub(crate) fn last_message_with<F: Fault>(job: Job) -> JobMessage {
    last_message(LOOPBACK, faulty::<F>(), job)
}

/// Returns the last message of a client that runs `job` with a server that stops answering.
pub(crate) fn stalled_message_with<F: Fault>(job: Job) -> JobMessage {
    let client = Program::client_with_timeout(LOOPBACK, faulty::<F>(), job, DURATION, STALL_TIMEOUT);
    last_message_of(client)
}

pub(crate) fn last_message(server: IpAddr, ports: ServerPorts, job: Job) -> JobMessage {
    last_message_of(Program::client(server, ports, job, DURATION))
}

fn last_message_of(mut client: Program) -> JobMessage {
    let mut message = client.message();
    if message == JobMessage::Begin {
        message = client.message();
    }
    client.release();
    message
}

/// Returns the results of a client that runs `job` with a server without faults.
pub(crate) fn results(job: Job) -> JobResults {
    results_with::<NoFault>(job)
}

pub(crate) fn results_with<F: Fault>(job: Job) -> JobResults {
    found(last_message_with::<F>(job))
}

pub(crate) fn found(message: JobMessage) -> JobResults {
    match message {
        JobMessage::End(results) => results,
        other => panic!("{other:?}"),
    }
}
