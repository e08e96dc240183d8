//! Servers of the tests: each binds in the caller's namespace and serves on threads until the process ends.

pub(crate) mod dns;
pub(crate) mod http;
pub(crate) mod stun;
pub(crate) mod tcp;
pub(crate) mod udp;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use anyhow::{Context, Result};

/// Enough for what the servers do, and ten thousand of them fit.
const STACK_BYTES: usize = 128 * 1024;

/// Accepts for ever; each connection gets a thread. Returns where it listens.
fn accept<S: Send + Sync + 'static>(
    address: SocketAddr,
    state: S,
    serve: impl Fn(&S, TcpStream) -> Result<()> + Send + Sync + Copy + 'static,
) -> Result<SocketAddr> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    // Many connects at once are part of the tests: a SYN dropped by a full backlog would cost a second.
    rustix::net::listen(&listener, 4096)?;
    let local = listener.local_addr()?;
    let state = Arc::new(state);
    std::thread::spawn(move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            let state = Arc::clone(&state);
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES);
            // A connection that breaks is the client's to report.
            let _ = thread.spawn(move || serve(&state, stream));
        }
    });
    Ok(local)
}
