//! Tests of a decider and of a receiver of events in this process.

// A test panics on an error.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use pontoon::{
    DecisionToken, Denial, ErrorKind, EventKind, FlowRequest, Network, NetworkBuilder, Pacing, Verdict,
};
use pontoon_test_support::process::free_port;
use pontoon_wire::checksum::Sum;
use serde_json::Value;

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
/// Address of a server that does not exist (RFC 5737).
const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Flags of TCP.
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// Deadline of verdicts that do not arrive: no test waits for it.
const DEADLINE: Duration = Duration::from_secs(60);

/// Time after which a test fails.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns options whose addresses do not depend on the host.
fn options() -> NetworkBuilder {
    let options = Network::builder().ipv4_subnet("10.0.2.0/24").unwrap();
    options.decision_deadline(DEADLINE)
}

/// Guest behind a stream socket, and its network.
struct Guest {
    link: UnixStream,
    network: Network,
}

impl Guest {
    fn new(options: NetworkBuilder) -> Self {
        let (link, ours) = UnixStream::pair().unwrap();
        link.set_read_timeout(Some(PATIENCE)).unwrap();
        let ours = pontoon::Guest::stream(OwnedFd::from(ours)).unwrap();
        let network = options.pacing(Pacing::Event).attach(ours).unwrap();
        Self { link, network }
    }

    /// Sends a segment that opens a connection from port `from` to `port` of the server.
    fn connect(&mut self, from: u16, port: u16) {
        self.link.write_all(&syn(from, port)).unwrap();
    }

    /// Receives frames up to the next TCP segment; returns the guest's port and the flags.
    fn segment(&mut self) -> (u16, u8) {
        loop {
            let mut len = [0; 4];
            self.link.read_exact(&mut len).unwrap();
            let mut frame = vec![0; u32::from_be_bytes(len) as usize];
            self.link.read_exact(&mut frame).unwrap();
            if frame[12..14] == [8, 0] && frame[23] == 6 {
                return (u16::from_be_bytes([frame[36], frame[37]]), frame[47]);
            }
        }
    }
}

/// Returns a frame with a SYN (RFC 9293), preceded by its length.
fn syn(from: u16, port: u16) -> Vec<u8> {
    let mut tcp = Vec::new();
    tcp.extend(from.to_be_bytes());
    tcp.extend(port.to_be_bytes());
    tcp.extend([0, 0, 0, 1, 0, 0, 0, 0, 5 << 4, SYN, 0xff, 0xff, 0, 0, 0, 0]);
    let ends = [GUEST, SERVER].map(IpAddr::V4);
    let sum = Sum::pseudo(ends[0], ends[1], 6, tcp.len()).add(&tcp).finish();
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    let mut ip = vec![0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0];
    ip.extend(GUEST.octets());
    ip.extend(SERVER.octets());
    let sum = Sum::new().add(&ip).finish();
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    let mut frame = vec![0, 0, 0, 54];
    frame.extend(pontoon_engine::config::OUR_MAC.0);
    frame.extend([2, 0, 0, 0, 0, 1, 8, 0]);
    frame.extend(ip);
    frame.extend(tcp);
    frame
}

/// Returns options with a decider that denies port 1, redirects port 2, and decides later about others.
fn by_port(to: SocketAddr, later: mpsc::Sender<FlowRequest>) -> NetworkBuilder {
    options().decide_by(move |request| match request.remote.port() {
        1 => Some(Verdict::Deny(Denial::Reset)),
        2 => Some(Verdict::Redirect(to)),
        _ => {
            later.send(request.clone()).unwrap();
            None
        }
    })
}

/// Records that a callback has received.
type Records = Arc<Mutex<Vec<Value>>>;

/// Returns options with a receiver of events, which calls `wait` before it takes a record, and the records.
fn recording(options: NetworkBuilder, wait: impl Fn() + Send + 'static) -> (NetworkBuilder, Records) {
    let records = Records::default();
    let received = Arc::clone(&records);
    let options = options.on_event(move |event| {
        wait();
        let value: Value = serde_json::from_str(event.json).unwrap();
        assert_eq!(value["type"], event.kind.name());
        if let Some(guest) = event.guest {
            assert_eq!(guest.to_string(), value["guest"].as_str().unwrap());
        }
        assert_eq!(event.bytes.is_some(), event.kind == EventKind::Closed);
        received.lock().unwrap().push(value);
    });
    (options, records)
}

/// Checks that the records have all numbers from 1 on but for those that gaps name; returns the types.
#[track_caller]
fn types(records: &[Value]) -> Vec<&str> {
    let mut next = 1;
    for record in records {
        assert_eq!(record["v"], 1, "{record}");
        if record["type"] == "gap" {
            assert_eq!(record["from"], next, "{record}");
            next = record["to"].as_u64().unwrap() + 1;
        } else {
            assert_eq!(record["n"], next, "{record}");
            next += 1;
        }
    }
    records
        .iter()
        .map(|record| record["type"].as_str().unwrap())
        .collect()
}

#[test]
fn decider_decides_at_once_and_later_and_each_flow_has_records() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let (later, requests) = mpsc::channel();
    let (options, records) = recording(by_port(to, later), || ());
    let mut guest = Guest::new(options);

    guest.connect(1001, 1);
    assert_eq!(guest.segment(), (1001, RST | ACK));
    guest.connect(1002, 2);
    assert_eq!(guest.segment(), (1002, SYN | ACK));
    let _first = listener.accept().unwrap();

    let asked = |guest: &mut Guest, from, port| {
        guest.connect(from, port);
        requests.recv_timeout(PATIENCE).unwrap()
    };
    let request = asked(&mut guest, 1003, 3);
    assert_eq!(request.guest, SocketAddr::from((GUEST, 1003)));
    assert_eq!(request.remote, SocketAddr::from((SERVER, 3)));
    let unknown = DecisionToken::from_number(request.token.number() ^ 1);
    guest.network.decide(unknown, Verdict::Allow).unwrap();
    guest
        .network
        .decide(request.token, Verdict::Redirect(to))
        .unwrap();
    assert_eq!(guest.segment(), (1003, SYN | ACK));

    let request = asked(&mut guest, 1004, 4);
    let (stream, mut server) = UnixStream::pair().unwrap();
    guest
        .network
        .redirect_to_stream(request.token, stream.into())
        .unwrap();
    assert_eq!(guest.segment(), (1004, SYN | ACK));

    let request = asked(&mut guest, 1005, 5);
    let denial = Verdict::Deny(Denial::Reset);
    let verdicts = guest.network.verdict_sender().unwrap();
    verdicts.decide(request.token, denial).unwrap();
    assert_eq!(guest.segment(), (1005, RST | ACK));

    let Guest { link, network } = guest;
    network.stop().unwrap();
    let ended = verdicts.decide(request.token, denial).unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::Ended);
    drop(link);
    // The connection is closed with the engine.
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(matches!(server.read(&mut [0]), Ok(0) | Err(_)));
    let records = std::mem::take(&mut *records.lock().unwrap());
    let flow = ["opened", "decided"];
    let expected = [
        &["start", "refused"][..],
        &flow,
        &flow,
        &flow,
        &["refused"],
        &["closed"; 3],
        &["end"],
    ];
    assert_eq!(types(&records), expected.concat(), "{records:?}");
    let reasons: Vec<_> = records.iter().filter_map(|it| it["reason"].as_str()).collect();
    assert_eq!(reasons, ["decider", "decider", "ended", "ended", "ended"]);
    assert_eq!(records[3]["decision"], "redirect");
}

/// Returns options with a decider that denies all flows.
fn silent() -> NetworkBuilder {
    options().decide_by(|_| Some(Verdict::Deny(Denial::Drop)))
}

/// A function that does not return delays no packet. The refusals that have no record are counted by one.
#[test]
fn refusals_without_records_are_counted() {
    /// More than have records.
    const FLOWS: u64 = 20_000;
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let passed = Arc::clone(&gate);
    let (options, records) = recording(silent(), move || {
        let open = passed.0.lock().unwrap();
        drop(passed.1.wait_while(open, |open| !*open).unwrap());
    });
    let mut guest = Guest::new(options);
    for number in 0..FLOWS {
        let port = u16::try_from(number % 50_000 + 1).unwrap();
        guest.connect(port, 1);
    }
    // All segments are handled although no record was taken.
    let deadline = Instant::now() + PATIENCE;
    while guest.network.stats().unwrap().counter("decisions_denied") != Some(FLOWS) {
        assert!(Instant::now() < deadline, "{:?}", guest.network.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    guest.network.stop().unwrap();
    let records = std::mem::take(&mut *records.lock().unwrap());
    let types = types(&records);
    assert_eq!((types[0], types.last()), ("start", Some(&"end")));
    let omitted: u64 = records
        .iter()
        .filter(|record| record["type"] == "omitted")
        .map(|record| record["count"].as_u64().unwrap())
        .sum();
    let refused = types.iter().filter(|kind| **kind == "refused").count() as u64;
    assert_eq!(refused + omitted, FLOWS, "{types:?}");
    assert!(omitted > 0, "all refusals have records");
    let last = records.last().unwrap()["n"].as_u64();
    assert_eq!(last, Some(records.len() as u64), "the numbers have no gap");
}

/// Memory for events is used again, and contains nothing of the earlier network.
#[test]
fn networks_one_after_the_other_have_records_of_their_own() {
    for _ in 0..3 {
        let (options, records) = recording(silent(), || ());
        let mut guest = Guest::new(options);
        guest.connect(1001, 1);
        let deadline = Instant::now() + PATIENCE;
        while records.lock().unwrap().len() < 2 {
            assert!(Instant::now() < deadline, "{records:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        guest.network.stop().unwrap();
        let records = std::mem::take(&mut *records.lock().unwrap());
        assert_eq!(types(&records), ["start", "refused", "end"]);
    }
}

/// Waits until `done` holds.
#[track_caller]
fn wait_until(mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn panic_of_a_decider_denies_its_flow_only() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = listener.local_addr().unwrap();
    let mut guest = Guest::new(options().decide_by(move |request| {
        assert_ne!(request.remote.port(), 1, "this panic is part of the test");
        Some(Verdict::Redirect(to))
    }));
    for number in 0..3_u16 {
        guest.connect(1001 + number, 1);
        assert_eq!(guest.segment(), (1001 + number, RST | ACK));
    }
    guest.connect(1010, 2);
    assert_eq!(guest.segment(), (1010, SYN | ACK));
    wait_until(|| guest.network.stats().unwrap().decider_panics == 3);
    guest.network.stop().unwrap();
}

/// While the decider sleeps, the worker processes nothing; afterwards everything continues.
#[test]
fn decider_that_blocks_is_counted() {
    let mut guest = Guest::new(options().decide_by(|_| {
        std::thread::sleep(Duration::from_millis(50));
        Some(Verdict::Deny(Denial::Reset))
    }));
    for number in 0..3_u16 {
        guest.connect(1001 + number, 1);
        assert_eq!(guest.segment(), (1001 + number, RST | ACK));
    }
    wait_until(|| guest.network.stats().unwrap().slow_decisions == 3);
    // A request waits for the decider.
    guest.connect(1010, 1);
    guest.network.set_rules(&["deny *"]).unwrap();
    guest.network.stop().unwrap();
}

/// The verdict that a decider sends itself refers to a request that is not pending yet, and has no effect.
#[test]
fn decider_may_use_a_sender_of_verdicts() {
    let sender = Arc::new(Mutex::new(None::<pontoon::VerdictSender>));
    let own = Arc::clone(&sender);
    let mut guest = Guest::new(options().decide_by(move |request| {
        if let Some(sender) = &*own.lock().unwrap() {
            sender.decide(request.token, Verdict::Allow).unwrap();
        }
        Some(Verdict::Deny(Denial::Reset))
    }));
    *sender.lock().unwrap() = Some(guest.network.verdict_sender().unwrap());
    for number in 0..2000_u16 {
        guest.connect(1001 + number, 1);
        assert_eq!(guest.segment(), (1001 + number, RST | ACK));
    }
    guest.network.stop().unwrap();
}

#[test]
fn function_for_events_is_not_called_again_after_a_panic() {
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    let mut guest = Guest::new(silent().on_event(move |event| {
        *counted.lock().unwrap() += 1;
        assert_eq!(event.kind, EventKind::Start, "this panic is part of the test");
    }));
    guest.connect(1001, 1);
    guest.connect(1002, 1);
    wait_until(|| guest.network.stats().unwrap().counter("decisions_denied") == Some(2));
    let error = guest.network.stop().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Panicked);
    assert_eq!(
        *calls.lock().unwrap(),
        2,
        "one record without and one with a panic"
    );
}

#[test]
fn queues_carry_requests_and_events() {
    for threadless in [false, true] {
        let (mut options, requests) = options().decide_by_queue().unwrap();
        if threadless {
            options = options.without_thread();
        }
        let (options, events) = options.events_by_queue().unwrap();
        let mut guest = Guest::new(options);
        guest.connect(1001, 1);
        let mut request = None;
        wait_until(|| {
            guest.network.dispatch().unwrap();
            request = requests.next(Duration::from_millis(1));
            request.is_some()
        });
        let request = request.unwrap();
        assert_eq!(request.destination, Some(SocketAddr::from((SERVER, 1))));
        guest
            .network
            .decide(request.token, Verdict::Deny(Denial::Reset))
            .unwrap();
        guest.network.dispatch().unwrap();
        assert_eq!(guest.segment(), (1001, RST | ACK));
        assert!(requests.try_next().is_none());
        guest.network.stop().unwrap();
        let records: Vec<Value> = std::iter::from_fn(|| events.try_next())
            .map(|line| serde_json::from_str(&line).unwrap())
            .collect();
        assert_eq!(types(&records), ["start", "refused", "end"]);
    }
}

/// Tests that a network without a thread does not wait for room in the queue of records, which only its own thread could make.
#[test]
fn full_queue_of_events_does_not_stop_a_network_without_a_thread() {
    const FLOWS: u16 = 6_000;
    // Nothing listens there: each connection is opened and closed.
    let forward = format!("{SERVER}:1:{}", free_port());
    let options = options().guest_forward(&forward).unwrap().without_thread();
    let (options, events) = options.events_by_queue().unwrap();
    let mut guest = Guest::new(options);
    let mut records = 0;
    for from in 0..FLOWS {
        guest.connect(1024 + from, 1);
        guest.network.dispatch().unwrap();
        guest.segment();
    }
    // Each call adds what there is room for.
    loop {
        let taken = std::iter::from_fn(|| events.try_next()).count();
        assert!(taken <= 4096, "{taken} records");
        records += taken;
        if taken == 0 {
            break;
        }
        guest.network.dispatch().unwrap();
    }
    assert!(records > 4096, "{records} records");
    guest.network.stop().unwrap();
}
