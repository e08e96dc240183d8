//! A guest in a network namespace, whose kernel is the guest's stack.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::thread;

use pontoon::Guest;
use pontoon_netns::{Namespace, ip, unit_test};
use pontoon_sys::tun::{self, TapOffload};

use crate::{DNS, GATEWAY, PATIENCE, World, server};

/// Commands that configure the tap.
const SETUP: &str = "link set tap0 up mtu 1500
addr add 10.0.2.15/24 dev tap0
route add default via 10.0.2.2";

/// The test, which needs root.
pub(crate) fn run() {
    const NAME: &str = "guest_in_a_network_namespace";
    let namespace = match Namespace::new() {
        Ok(namespace) => namespace,
        Err(error) => return unit_test::skipped(NAME, &format!("{error:#}")),
    };
    if let Err(error) = tun::probe() {
        return unit_test::skipped(NAME, &error.to_string());
    }
    for offload in [false, true] {
        let queue = namespace.enter(|| {
            let queue = match offload {
                true => Guest::open_tap("tap0")?,
                false => tun::open("tap0", TapOffload::NONE, 1)?.queues.remove(0),
            };
            ip(SETUP)?;
            Ok(queue)
        });
        let (world, builder) = World::new();
        let network = builder.attach(Guest::tap(queue.unwrap()).unwrap()).unwrap();
        converse(&world, &namespace);
        world.stop(network);
    }
    refuses_other_descriptors(&namespace);
}

/// Has programs in the namespace use the network.
fn converse(world: &World, namespace: &Namespace) {
    let (sender, listening) = mpsc::channel();
    let http = SocketAddr::from((GATEWAY, world.servers.http.port()));
    let port = world.port;
    let client = thread::spawn(move || {
        listening.recv_timeout(PATIENCE).unwrap();
        let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut reply = String::new();
        client.read_to_string(&mut reply).unwrap();
        reply
    });
    let inside = namespace.enter(|| {
        let resolver = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        resolver.set_read_timeout(Some(PATIENCE))?;
        resolver.send_to(&server::query(), (DNS, 53))?;
        let mut reply = [0; 512];
        let len = resolver.recv(&mut reply)?;
        assert_eq!(server::address(&reply[..len]), server::ANSWER);

        let mut connection = TcpStream::connect_timeout(&http, PATIENCE)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut response = Vec::new();
        connection.read_to_end(&mut response)?;
        server::check(&response);

        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80))?;
        sender.send(())?;
        let (mut accepted, _) = listener.accept()?;
        accepted.write_all(b"from the guest")?;
        Ok(())
    });
    inside.unwrap();
    assert_eq!(client.join().unwrap(), "from the guest");
}

/// A device that is attached to no interface is refused.
fn refuses_other_descriptors(namespace: &Namespace) {
    let device = namespace.enter(|| {
        Ok(std::fs::File::options()
            .read(true)
            .write(true)
            .open("/dev/net/tun")?)
    });
    let error = Guest::tap(OwnedFd::from(device.unwrap())).unwrap_err();
    assert_eq!(error.kind(), pontoon::ErrorKind::InvalidOption, "{error}");
}
