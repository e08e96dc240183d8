//! Each job gives figures that can be true.

use std::io::Write;
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream, UdpSocket};

use pontoon_bench::job::{Direction, Findings, Job, Word};
use pontoon_bench::load::{Sound, calibrate};

use crate::client::{LOOPBACK, faulty, findings, found, last_word, last_word_with};

const BOTH: [Direction; 2] = [Direction::Up, Direction::Down];

/// Says past the test harness, which keeps what passing tests print to itself, that a test was not run.
fn skipped(test: &str, why: &str) {
    let _ = std::io::stderr().write_all(format!("SKIPPED: {test}: {why}\n").as_bytes());
}

fn assert_streamed(findings: &Findings) {
    assert!(findings.values["mbps"] > 100.0, "{findings:?}");
    assert_congestion_control(findings);
}

fn assert_congestion_control(findings: &Findings) {
    let expected = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    let expected = expected.trim();
    assert_eq!(
        findings.congestion_control,
        Some([expected.to_owned(), expected.to_owned()])
    );
}

fn assert_transactions(findings: &Findings) {
    let (p50, p99) = (findings.values["p50_us"], findings.values["p99_us"]);
    assert!(1.0 < p50 && p50 <= p99 && p99 < 1e6, "{findings:?}");
    assert!(findings.values["per_s"] > 10.0, "{findings:?}");
    assert_eq!(findings.values["errors"], 0.0, "{findings:?}");
    let histogram = &findings.histograms["latency"];
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

fn assert_counted(findings: &Findings) {
    let (sent, received) = (findings.values["sent_per_s"], findings.values["per_s"]);
    assert!(received > 100.0 && received <= sent * 1.0001, "{findings:?}");
    assert!((0.0..1.0).contains(&findings.values["loss"]), "{findings:?}");
}

#[test]
fn stream() {
    for direction in BOTH {
        for streams in [1, 5] {
            assert_streamed(&findings(Job::Stream { direction, streams }));
        }
    }
}

#[test]
fn hash() {
    for direction in BOTH {
        for bytes in [0, 1, 10_000_001] {
            let findings = findings(Job::Hash { direction, bytes });
            assert!(findings.values.is_empty());
            assert_congestion_control(&findings);
        }
    }
}

#[test]
fn round_trip() {
    let findings = findings(Job::RoundTrip);
    assert_transactions(&findings);
    assert_congestion_control(&findings);
}

#[test]
fn connect() {
    for clients in [1, 4] {
        let findings = findings(Job::Connect { clients });
        assert_transactions(&findings);
        assert_congestion_control(&findings);
    }
}

#[test]
fn publish_connect() {
    for address in [LOOPBACK, Ipv6Addr::LOCALHOST.into()] {
        let Ok(listener) = TcpListener::bind((address, 0)) else {
            skipped("publish_connect", &format!("this machine has no {address}"));
            continue;
        };
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        assert_transactions(&findings(Job::PublishConnect { address, port }));
    }
}

#[test]
fn publish_connect_on_a_port_that_is_taken_is_unreachable() {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let address = LOOPBACK;
    let word = last_word_with::<Sound>(Job::PublishConnect { address, port });
    assert!(matches!(word, Word::Unreachable { .. }), "{word:?}");
}

#[test]
fn datagrams() {
    assert_counted(&findings(Job::Datagrams { size: 64, rate: None }));
    assert_counted(&findings(Job::Datagrams {
        size: 1400,
        rate: None,
    }));
}

#[test]
fn datagrams_at_a_rate_all_arrive() {
    let findings = findings(Job::Datagrams {
        size: 300,
        rate: Some(2000.0),
    });
    assert_counted(&findings);
    assert!(
        (500.0..2020.0).contains(&findings.values["sent_per_s"]),
        "{findings:?}"
    );
    assert_eq!(findings.values["loss"], 0.0, "{findings:?}");
}

#[test]
fn segmented_datagrams() {
    for gro in [false, true] {
        let job = Job::SegmentedDatagrams {
            size: 1400,
            segments: 40,
            gro,
        };
        assert_counted(&findings(job));
    }
}

#[test]
fn segments_that_are_too_many_are_unreachable() {
    let job = Job::SegmentedDatagrams {
        size: 1400,
        segments: 60,
        gro: true,
    };
    let word = last_word_with::<Sound>(job);
    assert!(matches!(word, Word::Unreachable { .. }), "{word:?}");
}

#[test]
fn datagram_round_trip() {
    assert_transactions(&findings(Job::DatagramRoundTrip));
}

/// A listener that accepts nobody and whose queue is full drops every SYN.
#[test]
fn blackhole() {
    let address: IpAddr = "127.0.0.78".parse().unwrap();
    let Ok(full) = TcpListener::bind((address, 9)) else {
        return skipped("blackhole", "port 9 is not for this user");
    };
    rustix::net::listen(&full, 0).unwrap();
    let _waiting = TcpStream::connect((address, 9)).unwrap();
    assert_transactions(&findings(Job::Blackhole { pending: 50, address }));
}

#[test]
fn a_blackhole_that_answers_is_unreachable() {
    let word = last_word_with::<Sound>(Job::Blackhole {
        pending: 3,
        address: LOOPBACK,
    });
    let Word::Unreachable { why } = &word else {
        panic!("{word:?}");
    };
    assert!(why.contains("127.0.0.1:9"), "{why}");
}

#[test]
fn idle_flows() {
    assert_transactions(&findings(Job::IdleFlows { flows: 2000 }));
}

#[test]
fn more_idle_flows_than_descriptors_are_unreachable() {
    let word = last_word_with::<Sound>(Job::IdleFlows { flows: u32::MAX });
    let Word::Unreachable { why } = &word else {
        panic!("{word:?}");
    };
    assert!(why.contains("RLIMIT_NOFILE"), "{why}");
}

#[test]
fn names() {
    let resolver: IpAddr = "127.0.0.79".parse().unwrap();
    let Ok(socket) = UdpSocket::bind((resolver, 53)) else {
        return skipped("names", "port 53 is not for this user");
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
    assert_transactions(&findings(Job::Names { resolver }));
}

#[test]
fn echo() {
    for address in [LOOPBACK, Ipv6Addr::LOCALHOST.into()] {
        if UdpSocket::bind((address, 0)).is_err() {
            skipped("echo", &format!("this machine has no {address}"));
            continue;
        }
        match last_word_with::<Sound>(Job::Echo { address }) {
            Word::Unreachable { why } if !rustix::process::geteuid().is_root() => {
                assert!(why.contains("ping_group_range"), "{why}");
                skipped("echo", &why);
            }
            word => assert_transactions(&found(word)),
        }
    }
}

#[test]
fn idle() {
    assert_eq!(findings(Job::Idle), Findings::default());
}

#[test]
fn ipv6() {
    let address = IpAddr::V6(Ipv6Addr::LOCALHOST);
    if UdpSocket::bind((address, 0)).is_err() {
        return skipped("ipv6", "this machine has no ::1");
    }
    let ports = pontoon_bench::load::Server::start::<Sound>(address)
        .unwrap()
        .ports();
    let findings = |job| found(last_word(address, ports, job));
    for direction in BOTH {
        assert_streamed(&findings(Job::Stream {
            direction,
            streams: 2,
        }));
    }
    assert_transactions(&findings(Job::RoundTrip));
    assert_transactions(&findings(Job::Connect { clients: 2 }));
    assert_transactions(&findings(Job::IdleFlows { flows: 100 }));
    assert_counted(&findings(Job::Datagrams { size: 64, rate: None }));
    assert_transactions(&findings(Job::DatagramRoundTrip));
}

#[test]
fn one_server_serves_any_number_of_jobs() {
    let ports = faulty::<Sound>();
    for _ in 0..3 {
        for direction in BOTH {
            let streams = 2;
            assert_streamed(&found(last_word(
                LOOPBACK,
                ports,
                Job::Stream { direction, streams },
            )));
        }
        let rate = Some(2000.0);
        let findings = found(last_word(LOOPBACK, ports, Job::Datagrams { size: 64, rate }));
        assert_eq!(findings.values["loss"], 0.0, "{findings:?}");
    }
}

#[test]
fn the_loads_own_cost_is_measured() {
    let cost = calibrate();
    assert!((1.0..10_000.0).contains(&cost.clock_ns), "{cost:?}");
    assert!((0.1..10_000.0).contains(&cost.record_ns), "{cost:?}");
    assert!((100.0..1e7).contains(&cost.stamp_ns_per_mib), "{cost:?}");
}
