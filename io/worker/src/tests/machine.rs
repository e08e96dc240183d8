//! Test of a whole machine: a network namespace whose tap is connected to the link's queues by a driver at native speed.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};

use pontoon_vm_peer::vhost_user::{Machine, Options, bridge_tap};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::*;

const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);

/// Length in bytes of a stream in each direction.
const LEN: usize = 32 << 20;

#[test]
fn streams_pass_through_the_memory_of_a_machine() {
    namespace::run(
        "tests::machine::streams_pass_through_the_memory_of_a_machine",
        || {
            ip("link set lo up");
            // The driver accepts all features that are offered, or only VIRTIO_F_VERSION_1.
            for features in [u64::MAX, 1 << 32] {
                transfer(features);
            }
        },
    );
}

fn transfer(features: u64) {
    let (mut setup, ours, mut supervisor) = setup(Pacing::Hybrid, 1);
    setup.config.host_loopback = vec![GATEWAY.into()];
    let (socket, theirs) = UnixStream::pair().unwrap();
    let attachment = Attachment::VhostUser(FrontEndSocket {
        source: Source::Connected(socket.into()),
        workers: 1,
    });
    let engine = spawn(setup, attachment, ours);
    until_ready(&mut supervisor);

    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = server.local_addr().unwrap().port();
    let server = thread::spawn(move || {
        let mut client = server.accept().unwrap().0;
        check(&mut client, 1);
        pour(&mut client, 2);
    });
    let guest = thread::spawn(move || guest(theirs, features, port));
    guest.join().unwrap();
    server.join().unwrap();
    // The guest has disconnected, and no other can connect.
    engine.join().unwrap().unwrap();
}

/// Runs the machine in a network namespace of its own.
fn guest(socket: UnixStream, features: u64, port: u16) {
    // SAFETY: unshare(2) with this flag changes only the network namespace of the calling thread.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
    let tap = tun::open("tap0", TapOffload::all_but(&Disabled::default()), 1).unwrap();
    let mac = GUEST_MAC.0.map(|byte| format!("{byte:02x}")).join(":");
    ip(&format!("link set tap0 address {mac} up"));
    ip("addr add 10.0.2.15/24 dev tap0");
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let options = Options {
        features,
        pairs: 1,
        queue_size: 256,
        buffer: 70_000,
    };
    let (machine, pairs) = Machine::connect(socket, &options).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        // The client's thread is in the same namespace, because this thread starts it.
        let client = scope.spawn(|| {
            let _ends = Ends(&over);
            let mut server = TcpStream::connect((GATEWAY, port)).unwrap();
            pour(&mut server, 1);
            server.shutdown(Shutdown::Write).unwrap();
            check(&mut server, 2);
        });
        bridge_tap(&tap.queues[0], &machine, pairs, &over).unwrap();
        client.join().unwrap();
    });
}

/// Guard that stops the driver, also when the test has failed.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the bytes of a stream.
fn stream(seed: usize) -> Vec<u8> {
    (0..LEN)
        .map(|at| (at ^ at >> 8 ^ at >> 16).wrapping_mul(seed) as u8)
        .collect()
}

fn pour(to: &mut TcpStream, seed: usize) {
    to.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    to.write_all(&stream(seed)).unwrap();
}

/// Reads a stream to its end, and checks its bytes and length.
fn check(from: &mut TcpStream, seed: usize) {
    from.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut bytes = Vec::new();
    from.take(LEN as u64 + 1).read_to_end(&mut bytes).unwrap();
    assert!(bytes == stream(seed), "{} bytes of {LEN}", bytes.len());
}
