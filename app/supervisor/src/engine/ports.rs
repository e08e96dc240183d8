//! Changes of published ports, applied to the configuration of the next engine.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pontoon_engine::config::{Published, PublishedKey};
use pontoon_worker::messages::PortUpdate;

use crate::publish::disconnect_last;

/// Index of each published port in the list of ports, which may have tens of thousands of entries.
pub(super) type PortIndexes = BTreeMap<PublishedKey, usize>;

/// Applies port updates to the configuration of the next engine.
pub(super) fn change_ports(
    published: &mut Vec<Published>,
    sockets: &mut Vec<Arc<OwnedFd>>,
    indexes: &mut PortIndexes,
    port_updates: &[PortUpdate],
) {
    for port_update in port_updates {
        let port = port_update.published();
        let key = port.key();
        match (port_update, indexes.get(&key).copied()) {
            (PortUpdate::Open(port, socket), None) => {
                if let Ok(socket) = socket.clone().into_inner() {
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
                    indexes.insert(moved.key(), place);
                }
            }
            (PortUpdate::Open(..), Some(_)) | (PortUpdate::Redirect(_) | PortUpdate::Close(_), None) => {}
        }
    }
}
