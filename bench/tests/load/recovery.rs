//! Tests of the load generator after a client or a server was killed.

use std::fs::read_dir;
use std::time::{Duration, Instant};

use pontoon_bench::job::{Direction, Job, JobMessage, ServerPorts};

use crate::client::{LOOPBACK, Program, last_message};

/// Returns the number of threads and of open descriptors of a process.
fn holdings(pid: u32) -> (usize, usize) {
    let count = |what| read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    (count("task"), count("fd"))
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(5), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn assert_healthy(server: &Program, ports: ServerPorts, before: (usize, usize)) {
    let message = last_message(LOOPBACK, ports, Job::RoundTrip);
    assert!(matches!(message, JobMessage::End(_)), "{message:?}");
    let pid = server.pid();
    wait_for("threads or descriptors are left", || holdings(pid) == before);
}

fn jobs() -> Vec<Job> {
    let stream = |direction| Job::Stream {
        direction,
        streams: 4,
    };
    vec![
        stream(Direction::Up),
        stream(Direction::Down),
        Job::Hash {
            direction: Direction::Down,
            bytes: 1 << 40,
        },
        Job::RoundTrip,
        Job::Connect { clients: 3 },
        Job::IdleFlows { flows: 300 },
        Job::Datagrams { size: 64, rate: None },
        Job::DatagramRoundTrip,
    ]
}

#[test]
fn server_survives_killed_clients() {
    let (server, ports) = Program::server();
    let before = holdings(server.pid());
    for job in jobs() {
        let mut client = Program::client(LOOPBACK, ports, job, 60.0);
        assert_eq!(client.message(), JobMessage::Begin);
        client.kill();
        assert_healthy(&server, ports, before);
    }
    server.release();
}

#[test]
fn server_releases_threads_and_descriptors_of_killed_clients() {
    let (server, ports) = Program::server();
    let before = holdings(server.pid());
    for job in jobs() {
        // The transfer is so long that it does not end during the test.
        if matches!(job, Job::Hash { .. }) {
            continue;
        }
        for _ in 0..2 {
            let message = last_message(LOOPBACK, ports, job.clone());
            assert!(matches!(message, JobMessage::End(_)), "{job:?}: {message:?}");
        }
    }
    assert_healthy(&server, ports, before);
}

#[test]
fn children_of_killed_client_end() {
    let (_server, ports) = Program::server();
    let mut client = Program::client(LOOPBACK, ports, Job::Connect { clients: 3 }, 60.0);
    assert_eq!(client.message(), JobMessage::Begin);
    let pid = client.pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let children: Vec<_> = children.split_whitespace().map(str::to_owned).collect();
    assert_eq!(children.len(), 3);
    client.kill();
    // Orphans are reaped by another process at an unknown time, so zombies count as ended.
    let is_running = |pid: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit(") ")
            .next()
            .is_some_and(|state| state.starts_with(['R', 'S', 'D']))
    };
    wait_for("a process is left", || !children.iter().any(is_running));
}

#[test]
fn client_reports_killed_server() {
    for job in jobs() {
        let (server, ports) = Program::server();
        let mut client = Program::client(LOOPBACK, ports, job.clone(), 1.0);
        assert_eq!(client.message(), JobMessage::Begin);
        server.kill();
        let message = client.message();
        let expected = match job {
            // Transactions before the kill are results; later ones are counted errors.
            Job::Connect { .. } | Job::DatagramRoundTrip => {
                matches!(&message, JobMessage::End(found) if found.values["errors"] > 0.0)
                    || matches!(message, JobMessage::Failed { .. })
            }
            _ => matches!(message, JobMessage::Failed { .. }),
        };
        assert!(expected, "{job:?}: {message:?}");
    }
}

#[test]
fn client_reports_missing_server() {
    let (server, ports) = Program::server();
    server.kill();
    for job in jobs() {
        let message = last_message(LOOPBACK, ports, job.clone());
        let expected = match job {
            Job::DatagramRoundTrip => matches!(message, JobMessage::Failed { .. }),
            _ => matches!(message, JobMessage::Unreachable { .. }),
        };
        assert!(expected, "{job:?}: {message:?}");
    }
}
