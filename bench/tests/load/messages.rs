//! Tests that the load client's messages have the documented format.

use std::collections::BTreeSet;

use pontoon_bench::job::{Direction, Job, JobMessage, ServerPorts};
use pontoon_bench::load::NoFault;
use pontoon_bench::schema::METRICS;

use crate::client::{DURATION, LOOPBACK, Program, faulty, found};

/// Returns the lines that a client writes for `job`.
fn lines(job: Job) -> Vec<String> {
    let mut client = Program::client(LOOPBACK, faulty::<NoFault>(), job, DURATION);
    let mut lines = vec![client.line().unwrap()];
    if lines[0] == r#"{"type":"begin"}"# {
        lines.push(client.line().unwrap());
    }
    client.release();
    lines
}

#[test]
fn begin_and_end_are_written_as_lines_of_json() {
    let lines = lines(Job::RoundTrip);
    assert_eq!(lines[0], r#"{"type":"begin"}"#);
    let end: serde_json::Value = serde_json::from_str(&lines[1]).unwrap();
    let keys: Vec<_> = end.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["congestion_control", "histograms", "type", "values"]);
    assert_eq!(end["type"], "end");
    assert_eq!(end["histograms"]["latency"]["unit"], "us");
    assert!(end["histograms"]["latency"]["counts"][0][1].is_u64());
}

#[test]
fn other_messages_are_written_as_lines_of_json() {
    for (message, line) in [
        (
            JobMessage::Stalled { at_byte: 5 },
            r#"{"type":"stalled","at_byte":5}"#,
        ),
        (
            JobMessage::Unreachable { why: "w".to_owned() },
            r#"{"type":"unreachable","why":"w"}"#,
        ),
        (
            JobMessage::Failed { why: "w".to_owned() },
            r#"{"type":"failed","why":"w"}"#,
        ),
    ] {
        assert_eq!(serde_json::to_string(&message).unwrap(), line);
        assert_eq!(serde_json::from_str::<JobMessage>(line).unwrap(), message);
    }
    let lines = lines(Job::Blackhole {
        pending: 1,
        address: LOOPBACK,
    });
    assert!(
        lines[0].starts_with(r#"{"type":"unreachable","why":""#),
        "{lines:?}"
    );
}

#[test]
fn values_are_metrics_of_the_schema() {
    let metrics: BTreeSet<_> = METRICS.iter().map(|metric| metric.name).collect();
    for job in [
        Job::Stream {
            direction: Direction::Up,
            streams: 1,
        },
        Job::Connect { clients: 2 },
        Job::Datagrams { size: 64, rate: None },
    ] {
        let line = lines(job).pop().unwrap();
        for name in found(serde_json::from_str(&line).unwrap()).values.keys() {
            assert!(metrics.contains(&**name), "{name}");
        }
    }
}

#[test]
fn server_writes_its_ports_and_ends_with_its_input() {
    let mut server = Program::start(&["load-server", "127.0.0.1"]);
    let ports: ServerPorts = serde_json::from_str(&server.line().unwrap()).unwrap();
    assert_ne!(ports.control, 0);
    server.release();
}

/// Tests that connections stay open between `End` and the close of the client's standard input.
#[test]
fn client_keeps_connections_until_released() {
    let job = Job::IdleFlows { flows: 100 };
    let mut client = Program::client(LOOPBACK, faulty::<NoFault>(), job, DURATION);
    assert_eq!(client.message(), JobMessage::Begin);
    assert!(matches!(client.message(), JobMessage::End(_)));
    let open = std::fs::read_dir(format!("/proc/{}/fd", client.pid()))
        .unwrap()
        .count();
    assert!(open > 100, "{open}");
    client.release();
}

#[test]
fn invalid_durations_are_refused() {
    for seconds in [-1.0, f64::MAX] {
        let mut client = Program::client(LOOPBACK, faulty::<NoFault>(), Job::Idle, seconds);
        assert!(matches!(client.message(), JobMessage::Failed { .. }));
    }
}
