use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pontoon_engine::config::{Protocol, Published};
use pontoon_sandbox::{Namespaces, Role};
use pontoon_simnet::settings::{self, GUEST_MAC, OUR_MAC};
use pontoon_sys::{caps, seqpacket, tun};
use pontoon_test_support::exhaustion::without_descriptors;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect};

use super::*;
use crate::messages::SupervisorChannel;
use crate::namespace::{self, ip};

mod machine;
/// The sandbox of the test's engine has only the layers that a single thread of a process can enter.
const SANDBOX: Sandbox = Sandbox {
    role: Role::Engine,
    namespaces: Namespaces::NONE,
    required: false,
};

/// Returns a new tap of this network namespace with `queues` queues.
fn tap(queues: u8) -> Attachment {
    let tap = tun::open("tap0", TapOffload::all_but(&Disabled::default()), queues).unwrap();
    ip("link set tap0 up");
    Attachment::Tap(TapQueues {
        queues: tap.queues,
        offload: tap.offload,
        vhost: None,
    })
}

/// Returns the setup of an engine, and both ends of its channel to the supervisor.
fn setup(pacing: Pacing, workers: u8) -> (EngineSetup, EngineChannel, SupervisorChannel) {
    let (supervisor, ours) = seqpacket::pair().unwrap();
    let mut config = settings::config(1500);
    config.plan.v6 = None;
    config.connect_timeout = None;
    config.max_flows = 64;
    let setup = EngineSetup {
        config,
        owned: Vec::new(),
        published: Vec::new(),
        socket_helper: None,
        raw_icmp: [None, None],
        pacing,
        outbound: pontoon_host::Outbound::default(),
        ledger: ledger::SharedLedger::new(workers, 64).unwrap(),
        stats: stats::StatsTable::private(workers, 4),
        events: None,
        rules_generation: 1,
        decider: None,
        restarted: false,
        set_log_level: |_| {},
    };
    let ours = EngineChannel::new(ours, 0).unwrap();
    (setup, ours, SupervisorChannel::new(supervisor, 0).unwrap())
}

/// Starts an engine in a thread of its own, because the engine drops the thread's privileges irrevocably.
fn spawn(
    setup: EngineSetup,
    attachment: Attachment,
    supervisor: EngineChannel,
) -> JoinHandle<io::Result<()>> {
    let disabled = Disabled::from_env().unwrap();
    thread::spawn(move || run(setup, attachment, SANDBOX, &disabled, supervisor))
}

/// Waits for the engine's report that its loop runs.
fn until_ready(supervisor: &mut SupervisorChannel) {
    let timeout = Timespec {
        tv_sec: 10,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(&*supervisor, PollFlags::IN)], Some(&timeout)).unwrap();
    assert_eq!(supervisor.receive().unwrap(), Some(Report::Ready));
}

#[test]
fn engine_runs_unprivileged_until_the_supervisor_closes_the_channel() {
    namespace::run(
        "tests::engine_runs_unprivileged_until_the_supervisor_closes_the_channel",
        || {
            for (pacing, queues) in [
                (Pacing::Event, 1),
                (Pacing::Hybrid, 1),
                (Pacing::Poll, 1),
                (Pacing::Event, 4),
            ] {
                let ((setup, ours, mut supervisor), attachment) = (setup(pacing, queues), tap(queues));
                let other = thread::spawn(move || {
                    until_ready(&mut supervisor);
                    let update = Update::Owned(vec!["192.0.2.1/32".parse().unwrap()]);
                    supervisor.try_send(&update).unwrap();
                    seqpacket::send(&supervisor, b"nonsense", &[]).unwrap();
                    thread::sleep(Duration::from_millis(50));
                });
                // The engine has a thread of its own, because it drops the thread's privileges irrevocably.
                let engine = thread::spawn(move || {
                    run(setup, attachment, SANDBOX, &Disabled::from_env().unwrap(), ours).unwrap();
                    // The seccomp filter refuses the call.
                    assert_eq!(
                        caps::verify().unwrap_err().kind(),
                        io::ErrorKind::PermissionDenied
                    );
                });
                other.join().unwrap();
                engine.join().unwrap();
            }
        },
    );
}

#[test]
fn engine_ends_when_the_interface_is_deleted() {
    namespace::run("tests::engine_ends_when_the_interface_is_deleted", || {
        for queues in [1, 4] {
            let ((setup, ours, mut supervisor), attachment) = (setup(Pacing::Event, queues), tap(queues));
            let engine = spawn(setup, attachment, ours);
            until_ready(&mut supervisor);
            ip("link del tap0");
            engine.join().unwrap().unwrap();
        }
    });
}

/// Tests more published UDP ports for one port of the guest than the engine supports.
#[test]
fn restarted_engine_reports_ports_that_it_cannot_take_over() {
    namespace::run(
        "tests::restarted_engine_reports_ports_that_it_cannot_take_over",
        || {
            ip("link set lo up");
            for restarted in [false, true] {
                let (mut setup, ours, mut supervisor) = setup(Pacing::Event, 1);
                setup.restarted = restarted;
                for host in 40_000..40_256 {
                    let socket = std::net::UdpSocket::bind(("127.0.0.1", host)).unwrap();
                    socket.set_nonblocking(true).unwrap();
                    setup.published.push(socket.into());
                    let host = ([127, 0, 0, 1], host).into();
                    setup
                        .config
                        .published
                        .push(Published::new(Protocol::Udp, host, 5000));
                }
                let engine = spawn(setup, tap(1), ours);
                if !restarted {
                    let error = engine.join().unwrap().unwrap_err();
                    assert!(
                        error.to_string().contains("cannot publish 127.0.0.1:40255"),
                        "{error}"
                    );
                    continue;
                }
                until_ready(&mut supervisor);
                supervisor.try_send(&Update::Confirm(7)).unwrap();
                let timeout = Timespec {
                    tv_sec: 10,
                    tv_nsec: 0,
                };
                poll(&mut [PollFd::new(&supervisor, PollFlags::IN)], Some(&timeout)).unwrap();
                let Some(Report::Confirmed(confirmation)) = supervisor.receive().unwrap() else {
                    panic!("no confirmation");
                };
                let ports = confirmation
                    .port_errors
                    .iter()
                    .map(|error| error.port.host.port());
                assert_eq!(ports.collect::<Vec<_>>(), [40_255]);
                drop(supervisor);
                engine.join().unwrap().unwrap();
            }
        },
    );
}

/// Returns a listening Unix socket with an abstract name, and its address.
fn listener(name: &str) -> (OwnedFd, SocketAddr) {
    let name = format!("pontoon-worker.{}.{name}", std::process::id());
    let name = SocketAddr::from_abstract_name(name).unwrap();
    (UnixListener::bind_addr(&name).unwrap().into(), name)
}

/// In a process of its own, as it takes every descriptor.
#[test]
fn guest_without_descriptor_is_accepted_after_a_pause_in_every_pacing() {
    namespace::run(
        "tests::guest_without_descriptor_is_accepted_after_a_pause_in_every_pacing",
        || {
            for pacing in [Pacing::Event, Pacing::Hybrid, Pacing::Poll] {
                let (setup, ours, mut supervisor) = setup(pacing, 1);
                let (listener, name) = listener("exhausted");
                let source = Source::Listening {
                    listener,
                    one_off: false,
                };
                let engine = spawn(setup, Attachment::Stream(source), ours);
                until_ready(&mut supervisor);
                let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
                without_descriptors(|| {
                    connect(
                        &socket,
                        &SocketAddrUnix::new_abstract_name(name.as_abstract_name().unwrap()).unwrap(),
                    )
                    .unwrap();
                    // The engine fails to accept the connection.
                    thread::sleep(Duration::from_millis(50));
                });
                drop(greet(socket.into()));
                drop(supervisor);
                engine.join().unwrap().unwrap();
            }
        },
    );
}

/// Connects as a guest, and receives the gateway's Ethernet address by ARP.
fn come(name: &SocketAddr) -> UnixStream {
    greet(UnixStream::connect_addr(name).unwrap())
}

/// Receives the gateway's Ethernet address by ARP.
fn greet(mut guest: UnixStream) -> UnixStream {
    guest.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let mut request = vec![0, 0, 0, 42];
    request.extend([0xff; 6]);
    request.extend(GUEST_MAC.0);
    request.extend([8, 6]);
    request.extend([0, 1, 8, 0, 6, 4, 0, 1]);
    request.extend(GUEST_MAC.0);
    request.extend([10, 0, 2, 15]);
    request.extend([0, 0, 0, 0, 0, 0, 10, 0, 2, 2]);
    guest.write_all(&request).unwrap();
    let mut frame = || {
        let mut length = [0; 4];
        guest.read_exact(&mut length).unwrap();
        let mut frame = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap()];
        guest.read_exact(&mut frame).unwrap();
        frame
    };
    // The engine has requested the guest's Ethernet address first.
    let arp = |operation| [8, 6, 0, 1, 8, 0, 6, 4, 0, operation];
    let requested = frame();
    assert_eq!(requested[12..22], arp(1));
    assert_eq!(requested[38..42], [10, 0, 2, 15]);
    let reply = loop {
        let frame = frame();
        if frame[12..22] == arp(2) {
            break frame;
        }
    };
    assert_eq!(reply[22..32], *[&OUR_MAC.0[..], &[10, 0, 2, 2]].concat());
    guest
}

#[test]
fn engine_serves_guests_one_after_the_other() {
    let (setup, ours, mut supervisor) = setup(Pacing::Event, 1);
    let (listener, name) = listener("several");
    let source = Source::Listening {
        listener,
        one_off: false,
    };
    let engine = spawn(setup, Attachment::Stream(source), ours);
    until_ready(&mut supervisor);
    for _ in 0..3 {
        drop(come(&name));
    }
    drop(supervisor);
    engine.join().unwrap().unwrap();
}

#[test]
fn engine_ends_when_a_one_off_guest_disconnects() {
    let (setup, ours, mut supervisor) = setup(Pacing::Hybrid, 1);
    let (listener, name) = listener("one");
    let source = Source::Listening {
        listener,
        one_off: true,
    };
    let engine = spawn(setup, Attachment::Stream(source), ours);
    until_ready(&mut supervisor);
    drop(come(&name));
    engine.join().unwrap().unwrap();
}
