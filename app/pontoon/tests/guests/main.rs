//! A guest of each kind through the library: name resolution, an HTTP transfer, and a published port.

// A test panics on an error.
#![allow(clippy::unwrap_used)]

mod links;
mod server;
mod stack;
mod tap;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use pontoon::{Event, EventKind, Guest, Network, NetworkBuilder, Protocol};
use pontoon_test_support::process::free_port;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use links::{Calls, Link, PacketSocket, Queues, StreamSocket};
use server::Servers;
use stack::Stack;

/// Time after which a test fails.
const PATIENCE: Duration = Duration::from_secs(20);

/// Address of the DNS forwarder, and of the gateway, by which the guest reaches the host's loopback.
const DNS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// A network, the servers on the host that its guest uses, and the records of its flows.
struct World {
    servers: Servers,
    /// Published port of the host.
    port: u16,
    closed: Arc<Mutex<Vec<(Protocol, u64)>>>,
}

impl World {
    fn new() -> (Self, NetworkBuilder) {
        let servers = Servers::start();
        let port = free_port();
        let closed = Arc::new(Mutex::new(Vec::new()));
        let records = Arc::clone(&closed);
        let builder = Network::builder()
            .ipv4_subnet("10.0.2.0/24")
            .unwrap()
            .resolvers(&[servers.resolver])
            .host_loopback_at_gateway()
            .publish(&format!("127.0.0.1:{port}:80"))
            .unwrap()
            .allow("10.0.2.2")
            .unwrap()
            .on_event(move |event: &Event<'_>| {
                if let (EventKind::Closed, Some(bytes)) = (event.kind, event.bytes) {
                    records.lock().unwrap().push((event.protocol.unwrap(), bytes.1));
                }
            });
        let world = Self {
            servers,
            port,
            closed,
        };
        (world, builder)
    }

    /// Has a guest with this link use the network. Returns the guest, which disconnects when it is dropped.
    fn converse<L: Link>(&self, network: &mut Network, link: L) -> Stack<L> {
        let mut stack = Stack::new(link, Ipv4Addr::new(10, 0, 2, 15), GATEWAY);
        let mut turn = || network.dispatch().unwrap();
        let resolved = stack.resolve(SocketAddr::from((DNS, 53)), &mut turn);
        assert_eq!(resolved, server::ANSWER, "the address of the name");
        let page = stack.get(SocketAddr::from((GATEWAY, self.servers.http.port())), &mut turn);
        server::check(&page);
        let port = self.port;
        let client = thread::spawn(move || {
            let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            client.write_all(b"from the client").unwrap();
            let mut reply = String::new();
            client.read_to_string(&mut reply).unwrap();
            reply
        });
        stack.serve(80, b"from the client", b"from the guest", &mut turn);
        // The guest's last segments are processed while the client reads.
        let deadline = Instant::now() + PATIENCE;
        while !client.is_finished() && Instant::now() < deadline {
            stack.poll();
            turn();
            thread::sleep(Duration::from_micros(100));
        }
        assert_eq!(client.join().unwrap(), "from the guest");
        stack
    }

    /// Stops the network, and checks the records of its flows.
    fn stop(self, mut network: Network) {
        let stats = network.stats().unwrap();
        assert!(stats.counter("frames_up") > Some(10), "{stats:?}");
        assert!(stats.rules[0] >= 1, "{:?}", stats.rules);
        network.stop().unwrap();
        let closed = self.closed.lock().unwrap();
        let page = closed
            .iter()
            .any(|(protocol, bytes)| *protocol == Protocol::Tcp && *bytes >= server::PAGE as u64);
        assert!(page, "{closed:?}");
    }
}

/// Both kinds of networks: with a thread, and without.
fn both(test: impl Fn(World, NetworkBuilder)) {
    let (world, builder) = World::new();
    test(world, builder);
    let (world, builder) = World::new();
    test(world, builder.without_thread());
}

#[test]
fn guest_behind_a_stream_socket() {
    both(|world, builder| {
        let (guest, ours) = UnixStream::pair().unwrap();
        let ours = Guest::stream(OwnedFd::from(ours)).unwrap();
        let mut network = builder.attach(ours).unwrap();
        let _guest = world.converse(&mut network, StreamSocket::new(guest));
        world.stop(network);
    });
}

#[test]
fn guest_behind_a_packet_socket() {
    for kind in [SocketType::SEQPACKET, SocketType::DGRAM] {
        both(|world, builder| {
            let (guest, ours) = socketpair(AddressFamily::UNIX, kind, SocketFlags::NONBLOCK, None).unwrap();
            let mut network = builder.attach(Guest::packet(ours).unwrap()).unwrap();
            let _guest = world.converse(&mut network, PacketSocket(guest));
            world.stop(network);
        });
    }
}

#[test]
fn guest_whose_frames_are_written_and_read_by_calls() {
    both(|world, builder| {
        let (mut network, port) = builder.frames().unwrap();
        let _guest = world.converse(&mut network, Calls::new(port));
        world.stop(network);
    });
}

#[test]
fn guest_with_a_virtio_net_device() {
    let (world, builder) = World::new();
    let (mut network, device) = builder.device().unwrap();
    let (queues, mut device) = Queues::of_device(device);
    let _guest = world.converse(&mut network, queues);
    device.reset();
    world.stop(network);
}

#[test]
fn guest_behind_vhost_user() {
    // The guest's side waits for replies of the engine, which needs a thread.
    let (world, builder) = World::new();
    let (guest, ours) = UnixStream::pair().unwrap();
    let ours = Guest::vhost_user(OwnedFd::from(ours), 1).unwrap();
    let mut network = builder.attach(ours).unwrap();
    let _guest = world.converse(&mut network, Queues::of_socket(guest));
    world.stop(network);
}

#[test]
fn guest_in_a_network_namespace() {
    tap::run();
}

/// The guest reaches a server on the host's loopback by an address of its own.
#[test]
fn guest_reaches_a_port_of_the_host_by_a_forward() {
    const FORWARD: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 100);
    let (world, builder) = World::new();
    let port = world.servers.http.port();
    let builder = builder.allow("10.0.2.100").unwrap();
    let forward = format!("10.0.2.100:80:127.0.0.1:{port}/tcp");
    let builder = builder.guest_forward(&forward).unwrap();
    let (mut network, calls) = builder.frames().unwrap();
    let mut stack = Stack::new(Calls::new(calls), Ipv4Addr::new(10, 0, 2, 15), GATEWAY);
    let page = stack.get(SocketAddr::from((FORWARD, 80)), &mut || {
        network.dispatch().unwrap()
    });
    server::check(&page);
    network.stop().unwrap();
}

/// The guest reaches a server through a proxy that requires credentials.
#[test]
fn guest_reaches_a_server_through_a_proxy() {
    const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    let (world, builder) = World::new();
    let proxy = server::proxy(world.servers.http);
    let builder = builder.allow("192.0.2.1").unwrap().no_proxy("192.0.2.2").unwrap();
    let builder = builder.proxy_credentials("user", "pass").unwrap();
    let (mut network, calls) = builder
        .proxy(&format!("http://{proxy}"))
        .unwrap()
        .frames()
        .unwrap();
    let mut stack = Stack::new(Calls::new(calls), Ipv4Addr::new(10, 0, 2, 15), GATEWAY);
    let page = stack.get(SocketAddr::from((SERVER, 80)), &mut || {
        network.dispatch().unwrap()
    });
    server::check(&page);
    assert_eq!(network.stats().unwrap().counter("proxy_opened"), Some(1));
    network.stop().unwrap();
}

/// Two networks with the same addresses do not affect each other.
#[test]
fn two_networks_in_one_process() {
    let threads: Vec<_> = (0..2)
        .map(|_| {
            thread::spawn(|| {
                let (world, builder) = World::new();
                let (mut network, port) = builder.frames().unwrap();
                let _guest = world.converse(&mut network, Calls::new(port));
                world.stop(network);
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}
