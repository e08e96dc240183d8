//! Published ports, as each engine shares their sockets with the supervisor.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use pontoon_engine::config::{Protocol, Published};
use pontoon_worker::messages::PortUpdate;

use crate::publish::{bind_again, disconnect_last, listen_again};

/// Index of each published port, for lists with tens of thousands of ports.
pub(super) type PortIndexes = BTreeMap<(Protocol, SocketAddr), usize>;

/// Has published TCP sockets listen again, and binds UDP sockets again. The old engine shared them, and may have shut them down,
/// connected them or set options.
pub(super) fn reopen_ports(published: &[Published], sockets: &[impl AsFd]) {
    for (port, socket) in published.iter().zip(sockets) {
        let host = port.host;
        let reopened = match port.protocol {
            Protocol::Tcp => listen_again(socket),
            Protocol::Udp => bind_again(socket, host).map(|()| false),
        };
        match reopened {
            Ok(false) => {}
            Ok(true) => tracing::warn!("port {host}/tcp, which the engine had shut down, listens again"),
            Err(error) => tracing::warn!("cannot reopen port {host}/{}: {error}", port.protocol),
        }
    }
}

/// Applies port updates to the configuration of the next engine.
pub(super) fn change_ports(
    published: &mut Vec<Published>,
    sockets: &mut Vec<Arc<OwnedFd>>,
    indexes: &mut PortIndexes,
    port_updates: &[PortUpdate],
) {
    for port_update in port_updates {
        let port = port_update.published();
        let key = (port.protocol, port.host);
        match (port_update, indexes.get(&key).copied()) {
            (PortUpdate::Open(port, socket), None) => {
                if let Some(socket) = socket.clone().into_inner() {
                    indexes.insert(key, published.len());
                    sockets.push(socket);
                    published.push(*port);
                }
            }
            (PortUpdate::Redirect(port), Some(place)) => published[place] = *port,
            (PortUpdate::Close(_), Some(place)) => {
                indexes.remove(&key);
                published.swap_remove(place);
                disconnect_last(&sockets.swap_remove(place));
                if let Some(moved) = published.get(place) {
                    indexes.insert((moved.protocol, moved.host), place);
                }
            }
            (PortUpdate::Open(..), Some(_)) | (PortUpdate::Redirect(_) | PortUpdate::Close(_), None) => {}
        }
    }
}
