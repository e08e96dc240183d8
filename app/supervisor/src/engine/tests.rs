use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::Duration;

use ipnet::IpNet;
use pontoon_engine::config::{Protocol, Published};
use pontoon_ipc::ProcessReport as _;
use pontoon_process::child::spawn::Child;
use pontoon_process::child::stderr_pipe::StderrPipe;
use pontoon_simnet::settings;
use pontoon_sys::option;
use pontoon_sys::seqpacket;
use pontoon_sys::tun::TapOffload;
use pontoon_test_support::process::alone;
use pontoon_worker::messages::{Confirmation, EngineChannel, OwnedParts, PortUpdate, SupervisorChannel};
use pontoon_worker::{Source, TapQueues, ledger, pacing, stats};
use rustix::net::sockopt;

use super::child::{MAX_QUEUED, prepare};
use super::*;
use crate::host::open_raw_icmp;

fn setup() -> EngineSetup {
    let mut config = settings::config(1500);
    config.plan.v6 = None;
    config.connect_timeout = None;
    config.max_flows = 64;
    EngineSetup {
        config,
        owned: Vec::new(),
        published: Vec::new(),
        socket_helper: None,
        raw_icmp: [None, None],
        pacing: pacing::Pacing::Event,
        outbound: pontoon_worker::Outbound::default(),
        ledger: ledger::SharedLedger::new(1, 64).unwrap(),
        stats: stats::StatsTable::private(1, 0),
        events: None,
        rules_generation: 1,
        decider: None,
        restarted: false,
        set_log_level: |_| {},
    }
}

/// Starts a shell script in place of an engine; returns its process and the engine's end of the channel.
#[expect(clippy::zombie_processes, reason = "what is returned waits")]
fn process(script: &str) -> (EngineProcess, EngineChannel) {
    let (ours, theirs) = seqpacket::pair().unwrap();
    let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
    let child = Child::new(child.id().try_into().unwrap()).unwrap();
    let channel = SupervisorChannel::new(ours, MAX_QUEUED).unwrap();
    let process = ChildProcess::new(child, channel, StderrPipe::pair().unwrap().0, Instant::now());
    (process, EngineChannel::new(theirs, 0).unwrap())
}

fn engine(script: &str) -> (Engine, EngineChannel) {
    let (process, theirs) = process(script);
    let attachment = Attachment::Tap(TapQueues {
        queues: Vec::new(),
        offload: TapOffload::NONE,
        vhost: None,
    });
    let engine = Engine {
        state: ProcessState::Running(process),
        setup: setup(),
        ports: Vec::new(),
        indexes: PortIndexes::new(),
        attachment,
        helper: None,
        statistics: Statistics::new(stats::StatsTable::private(1, 0), Vec::new()),
        events: None,
        require_sandbox: false,
        namespaces: None,
        restart_policy: RestartPolicy::default(),
        hang_watch: HangWatch::new(1, Instant::now()),
    };
    (engine, theirs)
}

/// Asserts that the engine's process exits within 5 s.
#[track_caller]
fn assert_exits(engine: &Engine) {
    let patience = Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    let fd = engine.fd().unwrap();
    assert_eq!(
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience)),
        Ok(1),
        "it still runs"
    );
}

#[test]
fn failure_text_names_signal_status_or_reported_error() {
    let reported = ExitReason::Reported("a\n\x1b[2Jb".to_owned());
    assert_eq!(
        failure_text(&ExitReason::Killed(9)),
        "the engine was killed by signal 9"
    );
    assert_eq!(
        failure_text(&ExitReason::Exited(101)),
        "the engine exited with status 101"
    );
    assert_eq!(failure_text(&reported), "the engine: a  [2Jb");
}

#[test]
fn a_hung_engine_is_killed_and_replaced() {
    let (mut engine, _theirs) = engine("exec sleep 60");
    // An interval in which the process could run counts only with CPU time.
    let stat = format!(
        "/proc/{}/stat",
        engine.state.process_mut().unwrap().pid().as_raw_nonzero()
    );
    while !std::fs::read_to_string(&stat).unwrap().contains("(sleep) S ") {
        std::thread::sleep(Duration::from_millis(1));
    }
    let table = engine.statistics.table();
    let turns = table.writer(pontoon_engine::WorkerId(0));
    turns.begin_turn(pontoon_engine::Instant(7));
    for _ in 0..2 {
        engine.look_for_hang(engine.next_look().unwrap());
        assert!(!engine.state.process_mut().unwrap().exits_within(Duration::ZERO));
    }
    engine.look_for_hang(engine.next_look().unwrap());
    assert_exits(&engine);
    assert_eq!(engine.next_look(), None);
    let reason = reap(engine.state.process_mut().unwrap());
    assert_eq!(
        failure_text(&reason),
        "the engine: a worker has been in one turn of its loop for 10s"
    );
}

/// The test process has several threads, so it cannot fork an engine.
#[test]
fn a_failed_start_is_not_counted_as_a_crash() {
    let (mut engine, _theirs) = engine("exit 1");
    let start = Instant::now();
    assert_eq!(engine.replace(start).unwrap(), Restart::Scheduled);
    let mut now = start;
    for _ in 0..100 {
        let next = engine.next_turn().unwrap();
        assert!(next - now >= Duration::from_millis(50), "{:?}", next - now);
        assert!(engine.fd().is_none() && engine.report_fd().is_none() && engine.unsent().is_none());
        now = next;
        engine.send(Update::Ipv6Route(true));
        assert_eq!(engine.replace(now).unwrap(), Restart::Scheduled);
    }
    let end = engine
        .replace(start + RestartPolicy::WITHIN)
        .unwrap_err()
        .to_string();
    assert!(
        end.starts_with("the engine could not be restarted in 10s: cannot fork the engine: "),
        "{end}"
    );
}

#[test]
fn a_port_that_the_old_engine_shut_down_listens_again() {
    let (mut engine, _theirs) = engine("exit 1");
    // A published port has a fixed number, so one that is free is chosen first.
    let (bound, free) = loop {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        if let Ok(listener) = TcpListener::bind(free) {
            break (listener, free);
        }
    };
    rustix::net::shutdown(&bound, rustix::net::Shutdown::Both).unwrap();
    engine.ports = vec![Arc::new(bound.into())];
    engine.setup.config.published = vec![Published::new(Protocol::Tcp, free, 80)];
    assert_eq!(engine.replace(Instant::now()).unwrap(), Restart::Scheduled);
    TcpStream::connect(free).unwrap();
}

#[test]
fn an_engine_that_exits_with_status_0_is_not_restarted() {
    let (mut engine, _theirs) = engine("exit 0");
    assert_eq!(engine.replace(Instant::now()).unwrap(), Restart::Final);
}

fn confirmed() -> Report {
    Report::Confirmed(Confirmation::default())
}

fn no_memory() -> Report {
    Report::failed(&io::Error::other("no memory"))
}

#[test]
fn wait_until_ready_returns_reported_error_or_exit_status() {
    let (mut ready, theirs) = process("exec sleep 60");
    theirs.try_send(&Report::Ready).unwrap();
    assert_eq!(ready.wait_until_ready().unwrap(), None);
    assert_eq!(ready.ready_deadline(), None);
    ready.kill();

    let (mut failed, theirs) = process("exit 1");
    theirs.try_send(&no_memory()).unwrap();
    let reported = ExitReason::Reported("no memory".to_owned());
    assert_eq!(failed.wait_until_ready().unwrap(), Some(reported));

    let (mut exited, theirs) = process("exit 3");
    poll(&mut [PollFd::new(&exited.fd(), PollFlags::IN)], None).unwrap();
    drop(theirs);
    assert_eq!(exited.wait_until_ready().unwrap(), Some(ExitReason::Exited(3)));
}

#[test]
fn at_most_max_reports_are_received_in_one_call() {
    let (mut engine, theirs) = engine("exit 1");
    for _ in 0..MAX_REPORTS + 1 {
        theirs.try_send(&confirmed()).unwrap();
    }
    theirs.try_send(&no_memory()).unwrap();
    assert_eq!(engine.receive().len(), MAX_REPORTS);
    assert_eq!(engine.receive().len(), 1);
    assert!(engine.receive().is_empty());
}

#[test]
fn an_engine_that_closed_its_channel_but_does_not_exit_is_killed() {
    let (mut engine, theirs) = engine("exec sleep 60");
    theirs.try_send(&confirmed()).unwrap();
    rustix::net::shutdown(&theirs, rustix::net::Shutdown::Write).unwrap();
    assert_eq!(engine.receive().len(), 1);
    assert_exits(&engine);
    let ProcessState::Running(process) = &mut engine.state else {
        panic!("{:?}", engine.state)
    };
    assert_eq!(reap(process), ExitReason::Killed(9));
}

#[test]
fn reported_error_is_found_behind_unread_reports_and_after_a_connection_reset() {
    let (mut process, theirs) = process("exit 1");
    process.send(Update::Confirm(1)).unwrap();
    for _ in 0..2 * MAX_REPORTS {
        theirs.try_send(&confirmed()).unwrap();
    }
    theirs.try_send(&no_memory()).unwrap();
    // The process may not have closed its copy of the channel before its exit.
    poll(&mut [PollFd::new(&process.fd(), PollFlags::IN)], None).unwrap();
    drop(theirs);
    assert_eq!(reap(&mut process), ExitReason::Reported("no memory".to_owned()));
}

#[test]
fn any_number_of_addresses_is_sent_to_the_engine() {
    let (mut engine, mut theirs) = engine("exit 1");
    let address = |n: u128| IpNet::from(IpAddr::from(Ipv6Addr::from_bits(u128::MAX - n)));
    let owned: Vec<_> = (0..10_000).map(address).collect();
    engine.send(Update::Owned(owned.clone()));
    assert!(engine.unsent().is_some(), "all of it has room");
    let mut gathered = OwnedParts::default();
    let arrived = loop {
        let update = theirs.receive().unwrap().unwrap();
        engine.flush();
        match update {
            Update::OwnedPart(some) => {
                if let Some(list) = gathered.add(some) {
                    break list;
                }
            }
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((&arrived, &engine.setup.owned), (&owned, &owned));
    assert!(engine.unsent().is_none());
}

/// The test runs once more in a process of its own, which closes its descriptors and exits without returning.
#[test]
fn an_engine_needs_no_second_descriptor_for_a_published_port() {
    const NAME: &str = "engine::tests::an_engine_needs_no_second_descriptor_for_a_published_port";
    const PORTS: usize = 100;
    if let Some(output) = alone(NAME) {
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains("prepared"), "{message}");
        return;
    }
    let (_ours, theirs) = seqpacket::pair().unwrap();
    let (mut engine, _theirs) = engine("exit 0");
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let port = |number| Published::new(Protocol::Tcp, (IpAddr::from([127, 0, 0, 1]), number).into(), 80);
    engine.ports = (0..PORTS / 2).map(|_| Arc::new(null())).collect();
    engine.setup.config.published = vec![port(0); PORTS / 2];
    for number in 1..=PORTS / 2 {
        let port = port(number.try_into().unwrap());
        engine.send(Update::Published(vec![PortUpdate::Open(
            port,
            Arc::new(null()).into(),
        )]));
    }
    // Only the copies in `ports` remain, as after the exit of an engine.
    engine.state = ProcessState::Backoff(StartAttempts::new(Instant::now()));
    let limit = Some(PORTS as u64 + 50);
    let (current, maximum) = (limit, limit);
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current, maximum },
    )
    .unwrap();
    let own = prepare(&mut engine.setup, &engine.ports, &engine.attachment, &theirs);
    let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let published = own.map(|own| own.setup.published.len());
    // Besides the ports the process has three standard descriptors, two ends of the channel and the open directory.
    let right = matches!(published, Ok(PORTS)) && open == PORTS + 6;
    eprintln!("prepared: {published:?}, and {open} are open");
    std::process::exit((!right).into());
}

#[test]
fn tens_of_thousands_of_published_ports_take_no_quadratic_time() {
    let socket = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
    let port = |address: u8, number: u16| {
        Published::new(Protocol::Tcp, ([127, 0, 0, address], number).into(), number)
    };
    let all = || (1..=3).flat_map(|address| (1..=u16::MAX).map(move |number| port(address, number)));
    let (mut published, mut sockets, mut indexes) = (Vec::new(), Vec::new(), PortIndexes::new());
    let start = Instant::now();
    let open: Vec<_> = all()
        .map(|port| PortUpdate::Open(port, Arc::clone(&socket).into()))
        .collect();
    change_ports(&mut published, &mut sockets, &mut indexes, &open);
    assert_eq!((published.len(), sockets.len()), (3 * 65_535, 3 * 65_535));
    let close: Vec<_> = all()
        .filter(|port| port.guest_port % 1000 != 0)
        .map(PortUpdate::Close)
        .collect();
    change_ports(&mut published, &mut sockets, &mut indexes, &close);
    // A linear search of the list for each port would take minutes.
    assert!(
        start.elapsed() < std::time::Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
    assert_eq!((published.len(), sockets.len()), (3 * 65, 3 * 65));
    for (place, port) in published.iter().enumerate() {
        assert_eq!(indexes[&port.key()], place);
    }
}

#[test]
fn refused_reports_are_skipped() {
    let (mut engine, theirs) = engine("exec sleep 60");
    let descriptor = std::fs::File::open("/dev/null").unwrap();
    seqpacket::send(&theirs, b"nonsense", &[]).unwrap();
    seqpacket::send(&theirs, b"\"ready\"", &[descriptor.as_fd()]).unwrap();
    theirs.try_send(&confirmed()).unwrap();
    assert_eq!(engine.receive(), [confirmed()]);
}

#[test]
fn an_engine_that_does_not_read_its_messages_is_killed() {
    let (mut engine, _theirs) = engine("exec sleep 60");
    let port = Published::new(Protocol::Tcp, ([127, 0, 0, 1], 80).into(), 80);
    for _ in 0..2 * MAX_QUEUED {
        engine.send(Update::Published(vec![PortUpdate::Redirect(port)]));
    }
    assert_exits(&engine);
}

/// Returns a published TCP socket that a compromised engine has connected, with data that its peer does not read.
fn connected_by_the_engine(bound: TcpListener, sink: &TcpListener) -> OwnedFd {
    let socket = OwnedFd::from(bound);
    rustix::net::shutdown(&socket, rustix::net::Shutdown::Both).unwrap();
    rustix::net::connect(&socket, &sink.local_addr().unwrap()).unwrap();
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::from_secs(3))).unwrap();
    rustix::io::ioctl_fionbio(&socket, true).unwrap();
    while rustix::io::write(&socket, &[0; 1 << 16]).is_ok() {}
    socket
}

fn published(host: SocketAddr) -> Published {
    Published::new(Protocol::Tcp, host, 80)
}

#[test]
fn closing_a_port_that_the_engine_has_connected_does_not_wait() {
    let sink = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut engine, _theirs) = engine("sleep 10");
    let bound = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = published(bound.local_addr().unwrap());
    engine.ports = vec![Arc::new(connected_by_the_engine(bound, &sink))];
    engine.setup.config.published = vec![port];
    engine.indexes = [(port.key(), 0)].into();
    let begin = Instant::now();
    engine.send(Update::Published(vec![PortUpdate::Close(port)]));
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
}

/// The engine accepts them when it receives the update.
#[test]
fn closing_a_port_keeps_the_clients_that_wait_to_be_accepted() {
    let (mut engine, _theirs) = engine("sleep 10");
    let bound = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = published(bound.local_addr().unwrap());
    let _client = TcpStream::connect(port.host).unwrap();
    let of_engine = bound.try_clone().unwrap();
    of_engine.set_nonblocking(true).unwrap();
    engine.ports = vec![Arc::new(bound.into())];
    engine.setup.config.published = vec![port];
    engine.indexes = [(port.key(), 0)].into();
    engine.send(Update::Published(vec![PortUpdate::Close(port)]));
    assert!(engine.ports.is_empty());
    of_engine.accept().unwrap();
}

#[test]
fn end_of_the_program_does_not_wait_for_a_port_that_the_engine_has_connected() {
    let sink = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut engine, _theirs) = engine("exit 1");
    let bound = TcpListener::bind("127.0.0.1:0").unwrap();
    engine.ports = vec![Arc::new(connected_by_the_engine(bound, &sink))];
    let begin = Instant::now();
    drop(engine);
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
}

/// Options of the sockets that a listener accepts, and its locks of buffer sizes.
fn inherited_options(listener: &TcpListener, host: SocketAddr) -> (u32, u8, bool, bool, usize, u8) {
    let _client = TcpStream::connect(host).unwrap();
    let accepted = (loop {
        match listener.accept() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            accepted => break accepted,
        }
    })
    .unwrap()
    .0;
    let mut locks = [0; 4];
    // Unknown before Linux 5.14.
    let _ = option::get(listener, libc::SOL_SOCKET, libc::SO_BUF_LOCK, &mut locks);
    (
        accepted.ttl().unwrap(),
        sockopt::ip_tos(&accepted).unwrap(),
        sockopt::socket_keepalive(&accepted).unwrap(),
        sockopt::tcp_nodelay(&accepted).unwrap(),
        sockopt::socket_recv_buffer_size(listener).unwrap(),
        locks[0],
    )
}

#[test]
fn raw_icmp_sockets_of_a_restarted_engine_are_new() {
    let (mut engine, _theirs) = engine("exit 1");
    engine.setup.raw_icmp = open_raw_icmp().unwrap();
    let Some(raw) = &engine.setup.raw_icmp[0] else {
        eprintln!("SKIPPED: raw_icmp_sockets_of_a_restarted_engine_are_new: no CAP_NET_RAW");
        return;
    };
    rustix::net::connect(raw, &SocketAddr::from(([127, 0, 0, 1], 1))).unwrap();
    rustix::net::getpeername(raw).unwrap();
    assert_eq!(engine.replace(Instant::now()).unwrap(), Restart::Scheduled);
    let raw = engine.setup.raw_icmp[0].as_ref().unwrap();
    assert!(rustix::net::getpeername(raw).is_err());
}

#[test]
fn program_ends_if_the_old_engine_shut_down_the_listener_of_the_guest() {
    for (shut_down, ends) in [(false, false), (true, true)] {
        let (mut engine, _theirs) = engine("exit 1");
        let directory = tempfile::tempdir().unwrap();
        let listener: OwnedFd = UnixListener::bind(directory.path().join("vm")).unwrap().into();
        let shared = listener.try_clone().unwrap();
        engine.attachment = Attachment::Stream(Source::Listening {
            listener,
            one_off: false,
        });
        if shut_down {
            rustix::net::shutdown(&shared, rustix::net::Shutdown::Both).unwrap();
        }
        let restart = engine.replace(Instant::now()).map_err(|error| error.to_string());
        let expected = match ends {
            false => Ok(Restart::Scheduled),
            true => Err(
                "the engine exited with status 1, and it has shut down the socket that the guest connects to"
                    .to_owned(),
            ),
        };
        assert_eq!(restart, expected);
    }
}

#[test]
fn port_of_a_restarted_engine_has_no_options_of_the_old_one() {
    let (mut engine, _theirs) = engine("exit 1");
    let bound = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = bound.local_addr().unwrap();
    rustix::net::sockopt::set_socket_linger(&bound, Some(Duration::from_secs(1 << 20))).unwrap();
    bound.set_nonblocking(false).unwrap();
    let before = inherited_options(&bound, host);
    bound.set_ttl(7).unwrap();
    sockopt::set_ip_tos(&bound, 0xb8).unwrap();
    sockopt::set_socket_keepalive(&bound, true).unwrap();
    sockopt::set_tcp_nodelay(&bound, true).unwrap();
    sockopt::set_socket_recv_buffer_size(&bound, 4096).unwrap();
    sockopt::set_socket_send_buffer_size(&bound, 4096).unwrap();
    assert_ne!(inherited_options(&bound, host), before);
    let clone = bound.try_clone().unwrap();
    engine.ports = vec![Arc::new(bound.into())];
    engine.setup.config.published = vec![published(host)];
    assert_eq!(engine.replace(Instant::now()).unwrap(), Restart::Scheduled);
    assert_eq!(inherited_options(&clone, host), before);
    let flags = rustix::fs::fcntl_getfl(&clone).unwrap();
    assert!(flags.contains(rustix::fs::OFlags::NONBLOCK), "{flags:?}");
    let _client = TcpStream::connect(host).unwrap();
    let (accepted, _) = clone.accept().unwrap();
    assert_eq!(rustix::net::sockopt::socket_linger(&accepted).unwrap(), None);
}

#[test]
fn udp_port_that_the_old_engine_connected_receives_from_all_senders() {
    let (mut engine, _theirs) = engine("exit 1");
    let bound = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let host = bound.local_addr().unwrap();
    bound.connect("127.0.0.1:9").unwrap();
    rustix::net::shutdown(&bound, rustix::net::Shutdown::Both).unwrap();
    let port = Arc::new(OwnedFd::from(bound));
    engine.ports = vec![Arc::clone(&port)];
    engine.setup.config.published = vec![Published {
        protocol: Protocol::Udp,
        ..published(host)
    }];
    assert_eq!(engine.replace(Instant::now()).unwrap(), Restart::Scheduled);
    let receiver = std::net::UdpSocket::from(port.try_clone().unwrap());
    receiver.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let sender = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.send_to(b"x", host).unwrap();
    assert_eq!(receiver.recv(&mut [0; 9]).unwrap(), 1);
    receiver.send_to(b"y", sender.local_addr().unwrap()).unwrap();
    // No other socket can be bound to the port after the socket was replaced.
    assert!(std::net::UdpSocket::bind(host).is_err());
}
