//! The load server: its listening sockets, and the threads that serve them.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use crate::job::{Job, ServerPorts};

use super::fault::Fault;
use super::session::{ServerState, Session, serve_session};
use super::{
    connect, datagram_counter, datagram_round_trip, flow::BulkFlow, hash, round_trip, socket, stream,
};

/// Delay after an accept(2) that failed, by lack of descriptors for example.
const ACCEPT_RETRY: Duration = Duration::from_millis(10);

/// A load server on threads, which run until the process ends.
#[derive(Debug)]
pub struct ServerThreads {
    ports: ServerPorts,
}

impl ServerThreads {
    /// Opens all ports of [`ServerPorts`] at the address `listen`, and starts the threads that serve them.
    ///
    /// # Errors
    /// The address is not this machine's, or there are too few descriptors or threads.
    pub fn start<F: Fault>(listen: IpAddr) -> io::Result<Self> {
        let shared = Arc::new(ServerState::default());
        let shared = &shared;
        let tcp = || {
            let listener = socket::listener(SocketAddr::new(listen, 0))?;
            let port = listener.local_addr()?.port();
            Ok::<_, io::Error>((listener, port))
        };
        let udp = || {
            let socket = socket::datagram_server(listen)?;
            let port = socket.local_addr()?.port();
            Ok::<_, io::Error>((socket, port))
        };

        let (listener, control) = tcp()?;
        each(listener, shared, |shared, socket| {
            // An error means that the client has ended, and its session with it.
            let _ = serve_session(shared, socket);
        })?;
        let (listener, sink) = tcp()?;
        each(listener, shared, take::<F>)?;
        let (listener, source) = tcp()?;
        each(listener, shared, give::<F>)?;
        let (listener, echo) = tcp()?;
        each(listener, shared, |_, socket| round_trip::answer::<F>(&socket))?;
        let (listener, connect) = tcp()?;
        connect::serve::<F>(&Arc::new(listener))?;
        let mut idle = [0; ServerPorts::IDLE];
        for port in &mut idle {
            let (listener, chosen) = tcp()?;
            *port = chosen;
            let shared = Arc::clone(shared);
            thread("idle", move || accept(&listener, |socket| shared.keep(socket)))?;
        }

        let (socket, datagram_sink) = udp()?;
        datagrams(socket, shared, |shared, socket| {
            match datagram_counter::count::<F>(shared, socket) {}
        })?;
        let (socket, datagram_run_sink) = udp()?;
        // Without the option the kernel delivers single datagrams, which are counted as well.
        let _ = pontoon_sys::udp::coalesce(&socket);
        datagrams(
            socket,
            shared,
            |shared, socket| match datagram_counter::count_runs::<F>(shared, socket) {},
        )?;
        let (socket, datagram_echo) = udp()?;
        datagrams(socket, shared, |_, socket| {
            match datagram_round_trip::answer::<F>(socket) {}
        })?;

        Ok(Self {
            ports: ServerPorts {
                control,
                sink,
                source,
                echo,
                connect,
                idle,
                datagram_sink,
                datagram_run_sink,
                datagram_echo,
            },
        })
    }

    /// Returns the ports on which the server listens.
    #[must_use]
    pub fn ports(&self) -> ServerPorts {
        self.ports
    }
}

/// Serves a connection to the sink port: receives the client's bytes.
fn take<F: Fault>(shared: &ServerState, socket: TcpStream) {
    bulk(shared, socket, |session, flow| match session.job {
        Job::Hash { bytes, .. } => flow.end(hash::receive::<F>(flow, bytes)),
        _ => flow.end(Err(stream::receive::<F>(flow))),
    });
}

/// Serves a connection to the source port: sends bytes to the client.
fn give<F: Fault>(shared: &ServerState, socket: TcpStream) {
    bulk(shared, socket, |session, flow| match session.job {
        Job::Hash { bytes, .. } => flow.end(hash::send::<F>(flow, session.id, bytes)),
        _ => flow.end(Err(stream::send::<F>(flow))),
    });
}

fn bulk(shared: &ServerState, socket: TcpStream, work: impl Fn(&Session, &BulkFlow)) {
    if let Some((session, flow)) = shared.join(socket) {
        work(&session, &flow);
        flow.close();
    }
}

/// Accepts connections, and serves each on a thread of its own.
fn each(
    listener: TcpListener,
    shared: &Arc<ServerState>,
    serve: impl Fn(&ServerState, TcpStream) + Clone + Send + 'static,
) -> io::Result<()> {
    socket::keep_alive(&listener)?;
    let shared = Arc::clone(shared);
    thread("accept", move || {
        accept(&listener, |socket| {
            let (serve, shared) = (serve.clone(), Arc::clone(&shared));
            // If no thread can be started, the connection is closed, and the client reports an error.
            let _ = thread("serve", move || serve(&shared, socket));
        });
    })
}

fn accept(listener: &TcpListener, serve: impl Fn(TcpStream)) {
    loop {
        match listener.accept() {
            Ok((socket, _)) => serve(socket),
            Err(_) => std::thread::sleep(ACCEPT_RETRY),
        }
    }
}

fn datagrams(
    socket: UdpSocket,
    shared: &Arc<ServerState>,
    serve: impl Fn(&ServerState, &UdpSocket) + Send + 'static,
) -> io::Result<()> {
    let shared = Arc::clone(shared);
    thread("datagrams", move || serve(&shared, &socket))
}

pub(crate) fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body)?;
    Ok(())
}
