//! Tests that each job of the load client returns plausible figures.

use std::io::Write;
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};

use pontoon_bench::job::{Direction, Job, JobMessage, JobResults};
use pontoon_bench::load::{NoFault, calibrate};
use pontoon_test_support::process::free_port;

use crate::client::{LOOPBACK, faulty, found, last_message, last_message_with, results};

/// Datagrams per second. All datagrams of a test fit the receiver's buffer, so that none is lost if the receiver has
/// no CPU.
const LOW_RATE: f64 = 200.0;

const BOTH: [Direction; 2] = [Direction::Up, Direction::Down];

/// Prints that a test was skipped, directly to the process's standard error, as the test harness captures the output
/// of passing tests.
fn skipped(test: &str, why: &str) {
    let _ = std::io::stderr().write_all(format!("SKIPPED: {test}: {why}\n").as_bytes());
}

fn assert_streamed(results: &JobResults) {
    assert!(results.values["mbps"] > 0.0, "{results:?}");
    assert_congestion_control(results);
}

fn assert_congestion_control(results: &JobResults) {
    let expected = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    let expected = expected.trim();
    assert_eq!(
        results.congestion_control,
        Some([expected.to_owned(), expected.to_owned()])
    );
}

fn assert_transactions(results: &JobResults) {
    let (p50, p99) = (results.values["p50_us"], results.values["p99_us"]);
    assert!(1.0 < p50 && p50 <= p99, "{results:?}");
    assert!(results.values["per_s"] > 0.0, "{results:?}");
    assert_eq!(results.values["errors"], 0.0, "{results:?}");
    let histogram = &results.histograms["latency"];
    assert_eq!(histogram.unit, "us");
    assert!(histogram.counts.is_sorted_by(|a, b| a.0 < b.0), "{histogram:?}");
    let count: u64 = histogram.counts.iter().map(|(_, count)| count).sum();
    let below: u64 = histogram
        .counts
        .iter()
        .filter(|(value, _)| *value < p50 * 0.94)
        .map(|(_, count)| count)
        .sum();
    assert!(below <= count / 2, "{below} of {count} under the median of {p50}");
}

fn assert_counted(results: &JobResults) {
    let (sent, received) = (results.values["sent_per_s"], results.values["per_s"]);
    assert!(received > 0.0 && received <= sent * 1.0001, "{results:?}");
    assert!((0.0..1.0).contains(&results.values["loss"]), "{results:?}");
}

#[test]
fn stream_transfers_bytes() {
    for direction in BOTH {
        for streams in [1, 5] {
            assert_streamed(&results(Job::Stream { direction, streams }));
        }
    }
}

#[test]
fn hash_is_equal_at_both_ends() {
    for direction in BOTH {
        for bytes in [0, 1, 10_000_001] {
            let results = results(Job::Hash { direction, bytes });
            assert!(results.values.is_empty());
            assert_congestion_control(&results);
        }
    }
}

#[test]
fn round_trip_has_latencies() {
    let results = results(Job::RoundTrip);
    assert_transactions(&results);
    assert_congestion_control(&results);
}

#[test]
fn connect_has_latencies() {
    for clients in [1, 4] {
        let results = results(Job::Connect { clients });
        assert_transactions(&results);
        assert_congestion_control(&results);
    }
}

#[test]
fn published_port_is_connected() {
    for address in [LOOPBACK, Ipv6Addr::LOCALHOST.into()] {
        if TcpListener::bind((address, 0)).is_err() {
            let why = format!("this machine has no {address}");
            skipped("published_port_is_connected", &why);
            continue;
        }
        // Each job has a port of its own: the connections of the one before may be in TIME-WAIT.
        let port = free_port();
        assert_transactions(&results(Job::PublishConnect { address, port }));
        let port = free_port();
        assert_transactions(&results(Job::PublishRoundTrip { address, port }));
        for (direction, streams) in BOTH.into_iter().flat_map(|way| [(way, 1), (way, 5)]) {
            let port = free_port();
            assert_streamed(&results(Job::PublishStream {
                address,
                port,
                direction,
                streams,
            }));
        }
    }
}

#[test]
fn publish_connect_on_port_in_use_is_unreachable() {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let address = LOOPBACK;
    let message = last_message_with::<NoFault>(Job::PublishConnect { address, port });
    assert!(matches!(message, JobMessage::Unreachable { .. }), "{message:?}");
}

#[test]
fn datagrams_arrive() {
    assert_counted(&results(Job::Datagrams { size: 64, rate: None }));
    assert_counted(&results(Job::Datagrams {
        size: 1400,
        rate: None,
    }));
}

#[test]
fn datagrams_at_a_low_rate_all_arrive() {
    let results = results(Job::Datagrams {
        size: 300,
        rate: Some(LOW_RATE),
    });
    assert_counted(&results);
    assert!(
        (1.0..LOW_RATE * 1.01).contains(&results.values["sent_per_s"]),
        "{results:?}"
    );
    assert_eq!(results.values["loss"], 0.0, "{results:?}");
}

#[test]
fn segmented_datagrams_arrive() {
    for gro in [false, true] {
        let job = Job::SegmentedDatagrams {
            size: 1400,
            segments: 40,
            gro,
        };
        assert_counted(&results(job));
    }
}

#[test]
fn too_many_segments_are_unreachable() {
    let job = Job::SegmentedDatagrams {
        size: 1400,
        segments: 60,
        gro: true,
    };
    let message = last_message_with::<NoFault>(job);
    assert!(matches!(message, JobMessage::Unreachable { .. }), "{message:?}");
}

#[test]
fn datagram_round_trip_has_latencies() {
    assert_transactions(&results(Job::DatagramRoundTrip));
}

/// Tests round trips beside pending connections. The blackhole is a listener that never accepts: with a full accept
/// queue, the kernel drops every SYN.
#[test]
fn connections_to_a_blackhole_stay_pending() {
    let address: IpAddr = "127.0.0.78".parse().unwrap();
    let Ok(full) = TcpListener::bind((address, 9)) else {
        return skipped(
            "connections_to_a_blackhole_stay_pending",
            "port 9 is not for this user",
        );
    };
    rustix::net::listen(&full, 0).unwrap();
    let _waiting = TcpStream::connect((address, 9)).unwrap();
    assert_transactions(&results(Job::Blackhole { pending: 50, address }));
}

#[test]
fn blackhole_that_answers_is_unreachable() {
    let message = last_message_with::<NoFault>(Job::Blackhole {
        pending: 3,
        address: LOOPBACK,
    });
    let JobMessage::Unreachable { why } = &message else {
        panic!("{message:?}");
    };
    assert!(why.contains("127.0.0.1:9"), "{why}");
}

#[test]
fn idle_flows_stay_open() {
    assert_transactions(&results(Job::IdleFlows { flows: 2000 }));
}

#[test]
fn more_idle_flows_than_descriptors_are_unreachable() {
    let message = last_message_with::<NoFault>(Job::IdleFlows { flows: u32::MAX });
    let JobMessage::Unreachable { why } = &message else {
        panic!("{message:?}");
    };
    assert!(why.contains("RLIMIT_NOFILE"), "{why}");
}

#[test]
fn dns_queries_are_answered() {
    let resolver: IpAddr = "127.0.0.79".parse().unwrap();
    let Ok(socket) = UdpSocket::bind((resolver, 53)) else {
        return skipped("dns_queries_are_answered", "port 53 is not for this user");
    };
    std::thread::spawn(move || {
        let mut message = [0; 512];
        let mut seen = std::collections::BTreeSet::new();
        loop {
            let (len, from) = socket.recv_from(&mut message).unwrap();
            assert!(seen.insert(message[12..len].to_vec()), "a name twice");
            message[2] |= 0x80;
            socket.send_to(&message[..len], from).unwrap();
        }
    });
    assert_transactions(&results(Job::Names { resolver }));
}

#[test]
fn echo_requests_are_answered() {
    for address in [LOOPBACK, Ipv6Addr::LOCALHOST.into()] {
        if UdpSocket::bind((address, 0)).is_err() {
            skipped(
                "echo_requests_are_answered",
                &format!("this machine has no {address}"),
            );
            continue;
        }
        match last_message_with::<NoFault>(Job::Echo { address }) {
            JobMessage::Unreachable { why } if !rustix::process::geteuid().is_root() => {
                assert!(why.contains("ping_group_range"), "{why}");
                skipped("echo_requests_are_answered", &why);
            }
            message => assert_transactions(&found(message)),
        }
    }
}

#[test]
fn idle_job_has_no_figures() {
    assert_eq!(results(Job::Idle), JobResults::default());
}

#[test]
fn jobs_run_over_ipv6() {
    let address = IpAddr::V6(Ipv6Addr::LOCALHOST);
    if UdpSocket::bind((address, 0)).is_err() {
        return skipped("jobs_run_over_ipv6", "this machine has no ::1");
    }
    let ports = pontoon_bench::load::ServerThreads::start::<NoFault>(address)
        .unwrap()
        .ports();
    let results = |job| found(last_message(address, ports, job));
    for direction in BOTH {
        assert_streamed(&results(Job::Stream {
            direction,
            streams: 2,
        }));
    }
    assert_transactions(&results(Job::RoundTrip));
    assert_transactions(&results(Job::Connect { clients: 2 }));
    assert_transactions(&results(Job::IdleFlows { flows: 100 }));
    assert_counted(&results(Job::Datagrams { size: 64, rate: None }));
    assert_transactions(&results(Job::DatagramRoundTrip));
}

#[test]
fn one_server_serves_several_jobs() {
    let ports = faulty::<NoFault>();
    for _ in 0..3 {
        for direction in BOTH {
            let streams = 2;
            assert_streamed(&found(last_message(
                LOOPBACK,
                ports,
                Job::Stream { direction, streams },
            )));
        }
        let rate = Some(LOW_RATE);
        let results = found(last_message(LOOPBACK, ports, Job::Datagrams { size: 64, rate }));
        assert_eq!(results.values["loss"], 0.0, "{results:?}");
    }
}

#[test]
fn calibration_is_plausible() {
    let cost = calibrate();
    assert!((1.0..10_000.0).contains(&cost.clock_ns), "{cost:?}");
    assert!((0.1..10_000.0).contains(&cost.record_ns), "{cost:?}");
    assert!((100.0..1e7).contains(&cost.stamp_ns_per_mib), "{cost:?}");
}
