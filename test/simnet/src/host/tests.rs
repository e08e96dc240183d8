use core::net::{IpAddr, Ipv4Addr, SocketAddr};

use pontoon_engine::Host;
use pontoon_engine::host::Connect;
use vm_memory::VolatileSlice;

use super::*;
use crate::app::{FinalAction, TransferPace};
use crate::{pattern, streams};

const T0: Instant = Instant(1_000_000);
const TO: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)), 80);
const FLOW: FlowId = FlowId {
    kind: Kind::Tcp,
    worker: WorkerId(0),
    index: 7,
    generation: 0,
};

fn host(script: Script, plan: HostPlan) -> (SimHost, SimSocket) {
    let mut host = SimHost::new(plan, Rng::new(1));
    host.serve(TO.port(), ConnectResult::Now, script);
    host.tick(T0);
    let (socket, connect) = host.tcp_connect(FLOW, TO).unwrap();
    assert_eq!(connect, Connect::Done);
    (host, socket)
}

fn after(micros: u64) -> Instant {
    T0 + Duration::from_micros(micros)
}

fn readiness(host: &mut SimHost) -> Option<Readiness> {
    host.events().first().map(|&(flow, ready)| {
        assert_eq!(flow, FLOW);
        ready
    })
}

fn send(host: &mut SimHost, socket: &mut SimSocket, at: u64, len: usize) -> Result<usize, Failure> {
    let mut bytes = pattern::bytes(streams::up(TO.port()), at, len);
    host.tcp_send(socket, &[VolatileSlice::from(bytes.as_mut_slice())])
}

fn peek(host: &mut SimHost, socket: &mut SimSocket, at: u32, len: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; len];
    let got = host.tcp_peek(socket, at, &[VolatileSlice::from(bytes.as_mut_slice())])?;
    bytes.truncate(got);
    Ok(bytes)
}

#[test]
fn each_change_causes_one_event() {
    let pace = TransferPace {
        chunk: 1,
        every: Duration::from_micros(10),
    };
    let script = Script {
        write: pace,
        ..Script::source(2)
    };
    let (mut host, mut socket) = host(script, HostPlan::default());
    let writable = Readiness {
        writable: true,
        ..Readiness::default()
    };
    let readable = Readiness {
        readable: true,
        ..writable
    };
    assert_eq!(readiness(&mut host), Some(writable));
    assert_eq!(readiness(&mut host), None);
    host.tick(T0);
    assert_eq!(
        (readiness(&mut host), readiness(&mut host)),
        (Some(readable), None)
    );
    host.tick(after(9));
    assert_eq!(
        readiness(&mut host),
        None,
        "an event is not repeated while the queue is not read"
    );
    host.tick(after(10));
    let ended = Readiness {
        end: true,
        ..readable
    };
    assert_eq!(readiness(&mut host), Some(ended));
    assert_eq!(
        peek(&mut host, &mut socket, 0, 10),
        Ok(pattern::bytes(streams::down(80), 0, 2))
    );
    assert_eq!(peek(&mut host, &mut socket, 2, 10), Ok(Vec::new()), "the end");
    host.tcp_discard(&mut socket, 2).unwrap();
    host.close(socket);
    assert_eq!((host.open(), host.wrong()), (0, &[][..]));
}

#[test]
fn room_is_an_event_only_after_a_refused_send() {
    let plan = HostPlan {
        send_buffer: 900,
        ..HostPlan::default()
    };
    let stall = Some(crate::app::ReadPause {
        after: 0,
        time: Duration::from_millis(1),
    });
    let script = Script {
        stall,
        ..Script::SINK
    };
    let (mut host, mut socket) = host(script, plan);
    host.tick(T0);
    host.events();
    assert_eq!(send(&mut host, &mut socket, 0, 400), Ok(400));
    assert_eq!(host.tcp_send_room(&mut socket), 500);
    assert_eq!(send(&mut host, &mut socket, 400, 600), Ok(500));
    assert_eq!(send(&mut host, &mut socket, 900, 1), Err(Failure::WouldBlock));
    host.tick(after(900));
    assert_eq!(readiness(&mut host), None);
    host.tick(after(1200));
    assert!(readiness(&mut host).is_some_and(|ready| ready.writable));
    assert_eq!(send(&mut host, &mut socket, 900, 100), Ok(100));
    host.tick(after(5000));
    assert_eq!(
        readiness(&mut host),
        None,
        "no event for room without a refused send"
    );
    assert_eq!(host.wrong(), [""; 0]);
}

#[test]
fn reset_is_one_error_and_keeps_received_data() {
    let script = Script {
        end: FinalAction::Reset(5),
        ..Script::source(5)
    };
    let (mut host, mut socket) = host(script, HostPlan::default());
    host.tick(T0);
    assert!(readiness(&mut host).is_some_and(|ready| ready.error && ready.end && ready.readable));
    assert_eq!(peek(&mut host, &mut socket, 0, 10).unwrap().len(), 5);
    assert_eq!(peek(&mut host, &mut socket, 5, 10), Err(Failure::Reset));
    assert_eq!(peek(&mut host, &mut socket, 5, 10), Ok(Vec::new()));
    assert_eq!(send(&mut host, &mut socket, 0, 1), Err(Failure::Reset));
    host.close(socket);
    assert_eq!(host.outcomes()[&80], Some(ConnectionEnd::Aborted));
    assert_eq!(host.wrong(), [""; 0]);
}

#[test]
fn close_with_unread_data_resets_the_peer() {
    for (discarded, outcome) in [(0, ConnectionEnd::Reset), (5, ConnectionEnd::Closed)] {
        let (mut host, mut socket) = host(Script::source(5), HostPlan::default());
        host.tick(T0);
        peek(&mut host, &mut socket, 0, 5).unwrap();
        if discarded > 0 {
            host.tcp_discard(&mut socket, discarded).unwrap();
        }
        host.close(socket);
        host.tick(after(1000));
        assert_eq!(host.outcomes()[&80], Some(outcome));
    }
}

#[test]
fn pending_connect_completes_by_an_event() {
    for (answer, expected) in [
        (ConnectResult::After(Duration::from_micros(50)), Ok(())),
        (
            ConnectResult::FailAfter(Duration::from_micros(50), Failure::Refused),
            Err(Failure::Refused),
        ),
    ] {
        let mut host = SimHost::new(HostPlan::default(), Rng::new(1));
        host.serve(TO.port(), answer, Script::SINK);
        host.tick(T0);
        let (mut socket, connect) = host.tcp_connect(FLOW, TO).unwrap();
        assert_eq!(connect, Connect::Pending);
        host.tick(after(49));
        assert_eq!(readiness(&mut host), None);
        assert_eq!(host.tcp_connected(&mut socket), Err(Failure::WouldBlock));
        host.tick(after(50));
        assert!(readiness(&mut host).is_some_and(|ready| ready.writable));
        assert_eq!(host.tcp_connected(&mut socket), expected);
        host.close(socket);
    }
}

#[test]
fn violations_of_the_interface_are_recorded() {
    let (mut host, mut socket) = host(Script::source(100), HostPlan::default());
    host.tick(T0);
    peek(&mut host, &mut socket, 0, 10).unwrap();
    assert!(host.tcp_discard(&mut socket, 11).is_err());
    assert!(peek(&mut host, &mut socket, 101, 1).is_err());
    assert!(peek(&mut host, &mut socket, 0, 0).is_err());
    assert_eq!(host.wrong().len(), 3);
    let mut bytes = [0xee; 4];
    let sent = host.tcp_send(&mut socket, &[VolatileSlice::from(&mut bytes[..])]);
    assert_eq!(
        (sent, host.wrong().len()),
        (Ok(4), 4),
        "wrong bytes are accepted and recorded"
    );
    host.tcp_shutdown(&mut socket).unwrap();
    assert!(host.tcp_shutdown(&mut socket).is_err());
    assert!(send(&mut host, &mut socket, 4, 1).is_err());
    assert_eq!(host.wrong().len(), 6);
    let again = SimSocket(SocketIndex::Tcp(0));
    host.close(socket);
    host.abort(again);
    assert_eq!(host.wrong().len(), 7, "closed twice");
}
