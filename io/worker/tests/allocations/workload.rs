//! Workloads: exchanges of the guest with a server on the host's loopback.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

/// Workload: a server, the guest's operations, and the minimum number of operations.
pub(crate) struct Workload {
    /// Function that starts the server, which runs until this process exits, and returns its address.
    pub(crate) serve: fn() -> io::Result<SocketAddr>,
    /// Function that the guest runs, until [`finish`] is called.
    pub(crate) load: fn(SocketAddr) -> io::Result<()>,
    /// Unit of the counted operations.
    pub(crate) unit: &'static str,
    /// Minimum number of operations in the measured seconds; with fewer there was no load. A machine with other load
    /// reaches many times this number.
    pub(crate) least: u64,
}

pub(crate) const UP: Workload = Workload {
    serve: || serve_tcp(receive_block),
    load: |to| {
        let mut stream = connect(to)?;
        until_finish(|| send_block(&mut stream))
    },
    unit: "blocks of 64 KiB",
    least: 2_000,
};

pub(crate) const DOWN: Workload = Workload {
    serve: || serve_tcp(send_block),
    load: |to| {
        let mut stream = connect(to)?;
        until_finish(|| receive_block(&mut stream))
    },
    unit: "blocks of 64 KiB",
    least: 2_000,
};

pub(crate) const RR: Workload = Workload {
    serve: || serve_tcp(echo),
    load: |to| {
        let mut stream = connect(to)?;
        until_finish(|| ask(&mut stream))
    },
    unit: "round trips",
    least: 1_000,
};

/// Connections that the guest closes first. The scheduler determines how many connections are being closed while the next
/// one opens, so the warm-up has more of them at the same time than a slow worker causes later.
pub(crate) const CRR: Workload = Workload {
    serve: || serve_tcp(echo),
    load: |to| {
        let at_once: Vec<_> = (0..64).map(|_| connect(to)).collect::<Result<_, _>>()?;
        drop(at_once);
        until_finish(|| ask(&mut connect(to)?))
    },
    unit: "connections",
    least: 500,
};

pub(crate) const UDP: Workload = Workload {
    serve: || serve_udp(receive_datagram),
    load: |to| {
        let socket = datagrams(to)?;
        until_finish(|| socket.send(&[1; DATAGRAM]).map(drop))
    },
    unit: "datagrams",
    least: 10_000,
};

pub(crate) const UDP_RR: Workload = Workload {
    serve: || {
        serve_udp(|socket| {
            let (_, from) = socket.recv_from(&mut [0; DATAGRAM])?;
            socket.send_to(&[1; DATAGRAM], from).map(drop)
        })
    },
    load: |to| {
        let socket = datagrams(to)?;
        until_finish(|| {
            socket.send(&[1; DATAGRAM])?;
            receive_datagram(&socket)
        })
    },
    unit: "round trips",
    least: 1_000,
};

const BLOCK: usize = 64 << 10;
const DATAGRAM: usize = 64;

/// Timeout of each call of the guest.
const STUCK: Duration = Duration::from_secs(5);

static OPERATIONS: AtomicU64 = AtomicU64::new(0);
static FINISHED: AtomicBool = AtomicBool::new(false);

/// Returns the number of operations so far, which the receiving end counts.
pub(crate) fn operations() -> u64 {
    OPERATIONS.load(Relaxed)
}

/// Makes the guest end its operations.
pub(crate) fn finish() {
    FINISHED.store(true, Relaxed);
}

fn until_finish(mut operation: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    while !FINISHED.load(Relaxed) {
        operation()?;
    }
    Ok(())
}

/// Serves one connection after the other, each until its end. If a server fails, the guest fails, too, or counts no
/// operation.
fn serve_tcp(operation: fn(&mut TcpStream) -> io::Result<()>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let at = listener.local_addr()?;
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            while operation(&mut stream).is_ok() {}
        }
    });
    Ok(at)
}

fn serve_udp(operation: fn(&UdpSocket) -> io::Result<()>) -> io::Result<SocketAddr> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    let at = socket.local_addr()?;
    thread::spawn(move || while operation(&socket).is_ok() {});
    Ok(at)
}

fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, STUCK)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STUCK))?;
    stream.set_write_timeout(Some(STUCK))?;
    Ok(stream)
}

fn datagrams(to: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(STUCK))?;
    Ok(socket)
}

fn send_block(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(&[1; BLOCK])
}

fn receive_block(stream: &mut TcpStream) -> io::Result<()> {
    stream.read_exact(&mut [0; BLOCK])?;
    count();
    Ok(())
}

fn echo(stream: &mut TcpStream) -> io::Result<()> {
    let mut byte = [0];
    stream.read_exact(&mut byte)?;
    stream.write_all(&byte)
}

fn ask(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(&[1])?;
    stream.read_exact(&mut [0])?;
    count();
    Ok(())
}

fn receive_datagram(socket: &UdpSocket) -> io::Result<()> {
    socket.recv(&mut [0; DATAGRAM])?;
    count();
    Ok(())
}

fn count() {
    OPERATIONS.fetch_add(1, Relaxed);
}
