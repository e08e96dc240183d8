//! Changes of the host's network while a network runs, which the library follows without a call. The tests need root.

// A test panics on an error.
#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use pontoon::{Guest, Network, NetworkBuilder, Stats};
use pontoon_netns::{Namespace, add_address, ip, unit_test, veth};
use pontoon_wire::checksum::Sum;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Time after which a test fails.
const PATIENCE: Duration = Duration::from_secs(10);

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const FORWARDER: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);
/// Address that the host does not have at first (RFC 5737).
const ADDED: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);

/// A network, and the link of its guest.
struct World {
    network: Network,
    guest: UnixStream,
    threadless: bool,
}

impl World {
    fn new(options: NetworkBuilder, threadless: bool) -> Self {
        let options = options.ipv4_subnet("10.0.2.0/24").unwrap();
        let options = match threadless {
            true => options.without_thread(),
            false => options,
        };
        let (guest, ours) = UnixStream::pair().unwrap();
        let network = options
            .attach(Guest::stream(OwnedFd::from(ours)).unwrap())
            .unwrap();
        Self {
            network,
            guest,
            threadless,
        }
    }

    /// Sends a datagram of the guest without a checksum.
    fn send(&mut self, to: (Ipv4Addr, u16), payload: &[u8]) {
        let len = |head: usize| u16::try_from(head + payload.len()).unwrap().to_be_bytes();
        let mut packet = vec![0x45, 0];
        packet.extend(len(28));
        packet.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
        packet.extend(GUEST.octets());
        packet.extend(to.0.octets());
        let sum = Sum::new().add(&packet).finish();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend(40_000_u16.to_be_bytes());
        packet.extend(to.1.to_be_bytes());
        packet.extend(len(8));
        packet.extend([0, 0]);
        packet.extend(payload);
        let mut frame = (u32::try_from(packet.len()).unwrap() + 14).to_be_bytes().to_vec();
        frame.extend(pontoon_engine::config::OUR_MAC.0);
        frame.extend([2, 0, 0, 0, 0, 1, 8, 0]);
        frame.extend(packet);
        self.guest.write_all(&frame).unwrap();
    }

    /// Processes what is pending. The descriptor of a network without a thread must be readable within 10 s.
    #[track_caller]
    fn turn(&mut self) {
        if !self.threadless {
            return thread::sleep(Duration::from_millis(1));
        }
        let timeout = Timespec {
            tv_sec: PATIENCE.as_secs().cast_signed(),
            tv_nsec: 0,
        };
        let ready = poll(&mut [PollFd::new(&self.network, PollFlags::IN)], Some(&timeout));
        assert_eq!(ready, Ok(1), "the descriptor is readable");
        self.network.dispatch().unwrap();
    }

    /// Repeats a datagram of the guest until `done` holds.
    #[track_caller]
    fn send_until(
        &mut self,
        what: &str,
        (to, payload): ((Ipv4Addr, u16), &[u8]),
        mut done: impl FnMut(&Stats) -> bool,
    ) {
        let deadline = Instant::now() + PATIENCE;
        while !done(&self.network.stats().unwrap()) {
            assert!(Instant::now() < deadline, "{what}");
            self.send(to, payload);
            self.turn();
        }
    }
}

#[test]
fn address_that_the_host_gets_is_refused_to_the_guest() {
    const NAME: &str = "address_that_the_host_gets_is_refused_to_the_guest";
    let namespaces = Namespace::new().and_then(|host| Ok((host, Namespace::new()?)));
    let (host, other) = match namespaces {
        Ok(namespaces) => namespaces,
        Err(error) => return unit_test::skipped(NAME, &format!("{error:#}")),
    };
    let inside = host.enter(|| {
        veth("eth0", &other, "eth0")?;
        add_address("eth0", "192.0.2.1/24")?;
        for threadless in [false, true] {
            let mut world = World::new(Network::builder().resolvers(&[]), threadless);
            let datagram = ((ADDED, 9), &b"datagram"[..]);
            let refused = |stats: &Stats| stats.counter("policy_refused").unwrap();
            world.send_until("the flow is open", datagram, |stats| stats.flows == 1);
            add_address("eth0", "192.0.2.77/24")?;
            // The change itself makes the descriptor readable.
            world.turn();
            world.send_until("it is refused", datagram, |stats| refused(stats) > 0);
            ip("addr del 192.0.2.77/24 dev eth0")?;
            // The call waits until the change applies.
            world.network.refresh_host().unwrap();
            let before = world.network.stats().unwrap();
            let frames = |stats: &Stats| stats.counter("frames_up").unwrap();
            world.send_until("it is sent again", datagram, |stats| {
                frames(stats) > frames(&before)
            });
            assert_eq!(refused(&world.network.stats().unwrap()), refused(&before));
            world.network.stop().unwrap();
        }
        Ok(())
    });
    inside.unwrap();
}

/// Runs a command that succeeds.
#[track_caller]
fn run(command: &[&str]) {
    let status = Command::new(command[0]).args(&command[1..]).status();
    assert!(status.unwrap().success(), "{command:?}");
}

#[test]
fn resolvers_of_the_host_are_followed() {
    const NAME: &str = "resolvers_of_the_host_are_followed";
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(error) => return unit_test::skipped(NAME, &format!("{error:#}")),
    };
    let file = std::env::temp_dir().join(format!("pontoon-resolv-{}", std::process::id()));
    let set = |server: &str| std::fs::write(&file, format!("nameserver {server}\n")).unwrap();
    let inside = namespace.enter(|| {
        // SAFETY: only this thread and those of the network have the mount namespace, and they share no working directory with
        // others whose paths matter.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
        run(&["mount", "--make-rprivate", "/"]);
        set("127.0.0.1");
        run(&["mount", "--bind", file.to_str().unwrap(), "/etc/resolv.conf"]);
        let resolver = |last| {
            let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, last), 53)).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let resolvers = [resolver(1), resolver(2)];
        let asked = |number: usize| resolvers[number].recv(&mut [0; 512]).is_ok();
        let to = (FORWARDER, 53);
        for threadless in [false, true] {
            set("127.0.0.1");
            let mut world = World::new(Network::builder(), threadless);
            world.send_until("the first resolver is asked", (to, &query(1)), |_| asked(0));
            set("127.0.0.2");
            world.turn();
            world.send_until("the second resolver is asked", (to, &query(2)), |_| asked(1));
            while asked(0) || asked(1) {}

            // The program's resolvers replace those of the host for good.
            world
                .network
                .set_resolvers(&["127.0.0.2:53".parse().unwrap()])
                .unwrap();
            set("127.0.0.1");
            world.network.refresh_host().unwrap();
            world.send_until("the program's resolver is asked", (to, &query(3)), |_| asked(1));
            assert!(!asked(0), "the host's resolver is not asked");
            world.network.stop().unwrap();
        }
        Ok(())
    });
    inside.unwrap();
    let _ = std::fs::remove_file(&file);
}

/// Returns a query (RFC 1035) for a name of its own.
fn query(number: u8) -> Vec<u8> {
    let mut query = vec![0x12, number, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    query.extend([2, b'n', b'0' + number, 4, b't', b'e', b's', b't', 0, 0, 1, 0, 1]);
    query
}
