use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream};
use std::process::Command;

use ipnet::IpNet;
use pontoon_engine::config::Protocol;
use pontoon_runtime::messages::Gathered;
use pontoon_runtime::{ledger, pacing};
use pontoon_simnet::settings;
use pontoon_sys::tun::TapOffload;

use super::*;

fn setup() -> Setup {
    let mut config = settings::config(1500);
    config.addresses.v6 = None;
    config.connect_timeout = None;
    config.max_flows = 64;
    Setup {
        config,
        owned: Vec::new(),
        published: Vec::new(),
        raw_icmp: [None, None],
        pacing: pacing::Pacing::Event,
        outbound: None,
        ledger: ledger::Shared::new(1, 64).unwrap(),
        set_log_level: |_| {},
    }
}

/// A child, and what would be its end of the channel.
#[expect(clippy::zombie_processes, reason = "what is returned waits")]
fn process(script: &str) -> (Process, OwnedFd) {
    let (socket, theirs) = seqpacket::pair().unwrap();
    rustix::io::ioctl_fionbio(&socket, true).unwrap();
    let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
    let child = Child::new(child.id().try_into().unwrap()).unwrap();
    let process = Process {
        child,
        socket,
        talk: Talk::pair().unwrap().0,
        last_words: Vec::new(),
    };
    (process, theirs)
}

fn engine(script: &str) -> (Engine, OwnedFd) {
    let (process, theirs) = process(script);
    let attachment = Attachment::Tap {
        queues: Vec::new(),
        offload: TapOffload::NONE,
        vhost: None,
    };
    let engine = Engine {
        life: Life::Alive(process),
        outbox: Outbox::default(),
        setup: setup(),
        ports: Vec::new(),
        places: Places::new(),
        attachment,
        require_sandbox: false,
        born_in: None,
        deaths: Deaths::default(),
    };
    (engine, theirs)
}

#[test]
fn tells_how_it_died() {
    assert_eq!(died(&[], 137), "the engine was killed by signal 9");
    assert_eq!(died(&[], 101), "the engine died with status 101");
    assert_eq!(died(b"error: no memory", 1), "the engine: no memory");
    assert_eq!(died(b"error: a\n\x1b[2Jb", 1), "the engine: a  [2Jb");
}

/// As this process has several threads, it can fork no engine.
#[test]
fn a_start_that_fails_is_no_death() {
    let (mut engine, _theirs) = engine("exit 1");
    let start = Instant::now();
    assert_eq!(engine.replace(start).unwrap(), Successor::Later);
    let mut now = start;
    for _ in 0..100 {
        let next = engine.next_turn().unwrap();
        assert!(next - now >= Duration::from_millis(50), "{:?}", next - now);
        assert!(engine.fd().is_none() && engine.voice().is_none() && engine.unsent().is_none());
        now = next;
        engine.tell(Update::Ipv6Route(true));
        assert_eq!(engine.replace(now).unwrap(), Successor::Later);
    }
    let end = engine.replace(start + Deaths::WITHIN).unwrap_err().to_string();
    assert!(
        end.starts_with("no other engine could be started in 10s: cannot fork the engine: "),
        "{end}"
    );
}

#[test]
fn a_port_that_the_dead_one_shut_down_is_open_again() {
    let (mut engine, _theirs) = engine("exit 1");
    // As a published port, which has a number from the start.
    let (bound, free) = loop {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        if let Ok(listener) = TcpListener::bind(free) {
            break (listener, free);
        }
    };
    rustix::net::shutdown(&bound, rustix::net::Shutdown::Both).unwrap();
    engine.ports = vec![Arc::new(bound.into())];
    engine.setup.config.published = vec![Published {
        protocol: Protocol::Tcp,
        host: free,
        guest_port: 80,
    }];
    assert_eq!(engine.replace(Instant::now()).unwrap(), Successor::Later);
    TcpStream::connect(free).unwrap();
}

#[test]
fn one_that_ends_in_order_has_no_successor() {
    let (mut engine, _theirs) = engine("exit 0");
    assert_eq!(engine.replace(Instant::now()).unwrap(), Successor::None);
}

#[test]
fn who_talks_without_end_is_heard_a_little_at_a_time() {
    let (mut engine, theirs) = engine("exit 1");
    for _ in 0..MOST_HEARD + 1 {
        seqpacket::send(&theirs, &Report::Ready.encode(), &[]).unwrap();
    }
    let last_words = [LAST_WORDS, b"no memory"].concat();
    seqpacket::send(&theirs, &last_words, &[]).unwrap();
    assert_eq!(engine.hear().len(), MOST_HEARD);
    assert_eq!(engine.hear().len(), 1);
    assert!(engine.hear().is_empty());
}

#[test]
fn one_that_lives_but_will_say_nothing_more_is_killed() {
    let (mut engine, theirs) = engine("exec sleep 60");
    seqpacket::send(&theirs, &Report::Ready.encode(), &[]).unwrap();
    rustix::net::shutdown(&theirs, rustix::net::Shutdown::Write).unwrap();
    assert_eq!(engine.hear().len(), 1);
    let patience = Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    let fd = engine.fd().unwrap();
    assert_eq!(
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience)),
        Ok(1),
        "it lives"
    );
    let Life::Alive(process) = &mut engine.life else {
        panic!("{:?}", engine.life)
    };
    assert!(matches!(process.autopsy(), Death::Died(why) if why == "the engine was killed by signal 9"));
}

#[test]
fn the_last_words_come_after_everything_else_and_whatever_was_unread() {
    let (mut process, theirs) = process("exit 1");
    rustix::io::ioctl_fionbio(&theirs, true).unwrap();
    let last_words = [LAST_WORDS, b"no memory"].concat();
    seqpacket::send(&process.socket, &Update::Ask(1).encode(), &[]).unwrap();
    for _ in 0..2 * MOST_HEARD {
        seqpacket::send(&theirs, &Report::Ready.encode(), &[]).unwrap();
    }
    seqpacket::send(&theirs, &last_words, &[]).unwrap();
    // It may not have closed its copy before.
    poll(&mut [PollFd::new(&process.child.fd(), PollFlags::IN)], None).unwrap();
    drop(theirs);
    assert!(matches!(process.autopsy(), Death::Died(why) if why == "the engine: no memory"));
}

#[test]
fn an_engine_is_told_of_any_number_of_addresses() {
    let (mut engine, theirs) = engine("exit 1");
    let address = |n: u128| IpNet::from(IpAddr::from(Ipv6Addr::from_bits(u128::MAX - n)));
    let owned: Vec<_> = (0..10_000).map(address).collect();
    engine.tell(Update::Owned(owned.clone()));
    assert!(engine.unsent().is_some(), "all of it has room");
    let (mut gathered, mut buffer) = (Gathered::default(), vec![0; MAX_LEN]);
    let arrived = loop {
        let message = seqpacket::receive(&theirs, &mut buffer).unwrap().unwrap();
        engine.flush();
        match Update::decode(&buffer[..message.len], Vec::new()).unwrap() {
            Update::SomeOwned(some) => {
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

/// It is run once more in a process of its own, which loses its descriptors and does not come back.
#[test]
fn an_engine_needs_no_second_descriptor_for_a_published_port() {
    const NAME: &str = "engine::tests::an_engine_needs_no_second_descriptor_for_a_published_port";
    const PORTS: usize = 100;
    if let Some(output) = spawn::alone(NAME) {
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("prepared"), "{said}");
        return;
    }
    let (_ours, theirs) = seqpacket::pair().unwrap();
    let (mut engine, _theirs) = engine("exit 0");
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let port = |number| Published {
        protocol: Protocol::Tcp,
        host: (IpAddr::from([127, 0, 0, 1]), number).into(),
        guest_port: 80,
    };
    engine.ports = (0..PORTS / 2).map(|_| Arc::new(null())).collect();
    engine.setup.config.published = vec![port(0); PORTS / 2];
    for number in 1..=PORTS / 2 {
        let port = port(number.try_into().unwrap());
        engine.tell(Update::Published(vec![Door::Open(port, Arc::new(null()).into())]));
    }
    engine.outbox.clear();
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
    // Three of any process, two ends of the channel, and the directory.
    let right = matches!(published, Ok(PORTS)) && open == PORTS + 6;
    eprintln!("prepared: {published:?}, and {open} are open");
    std::process::exit((!right).into());
}

#[test]
fn tens_of_thousands_of_published_ports_take_no_quadratic_time() {
    let socket = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
    let port = |address: u8, number: u16| Published {
        protocol: Protocol::Tcp,
        host: ([127, 0, 0, address], number).into(),
        guest_port: number,
    };
    let all = || (1..=3).flat_map(|address| (1..=u16::MAX).map(move |number| port(address, number)));
    let (mut published, mut sockets, mut places) = (Vec::new(), Vec::new(), Places::new());
    let start = Instant::now();
    let open: Vec<_> = all()
        .map(|port| Door::Open(port, Arc::clone(&socket).into()))
        .collect();
    change_ports(&mut published, &mut sockets, &mut places, &open);
    assert_eq!((published.len(), sockets.len()), (3 * 65_535, 3 * 65_535));
    let close: Vec<_> = all()
        .filter(|port| port.guest_port % 1000 != 0)
        .map(Door::Close)
        .collect();
    change_ports(&mut published, &mut sockets, &mut places, &close);
    // By looking through the list for each it would take minutes.
    assert!(
        start.elapsed() < std::time::Duration::from_secs(10),
        "{:?}",
        start.elapsed()
    );
    assert_eq!((published.len(), sockets.len()), (3 * 65, 3 * 65));
    for (place, port) in published.iter().enumerate() {
        assert_eq!(places[&(port.protocol, port.host)], place);
    }
}
