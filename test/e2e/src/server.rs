//! Servers of the tests: each binds in the caller's network namespace, and serves on threads until the process exits.

pub(crate) mod dns;
pub(crate) mod http;
pub(crate) mod stun;
pub(crate) mod tcp;
pub(crate) mod tls;
pub(crate) mod udp;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use anyhow::{Context, Result};

/// Stack size of a server's thread in bytes, so small that ten thousand threads fit into memory.
const STACK_BYTES: usize = 128 * 1024;

/// Accepts connections until the process exits, and serves each on a thread. Returns the listening address.
fn accept<S: Send + Sync + 'static>(
    address: SocketAddr,
    state: S,
    serve: impl Fn(&S, TcpStream) -> Result<()> + Send + Sync + Copy + 'static,
) -> Result<SocketAddr> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    // Tests make many connects at once: a SYN that a full backlog drops would be retransmitted after a second.
    rustix::net::listen(&listener, 4096)?;
    let local = listener.local_addr()?;
    let state = Arc::new(state);
    std::thread::spawn(move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            let state = Arc::clone(&state);
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            // The client reports an error of its connection.
            let _ = thread.spawn(move || serve(&state, stream));
        }
    });
    Ok(local)
}
