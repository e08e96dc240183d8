//! Hand-over of the host's sockets from an engine to its successor.

use pontoon_engine::state::{SocketDescription, SocketKind, SocketRefused};
use pontoon_engine::{Engine, Instant, Siblings};

use super::{PendingEvent, SimHost, SimSocket, SocketIndex};

/// Saves the state of an engine, and restores it in a successor, which has the same sockets. The engine must not be used any
/// more, unless the successor is dropped. `siblings` connects the successor to other workers.
///
/// # Errors
/// The state is refused, a socket is not described correctly, or the successor has another state.
pub fn succeed(
    engine: &mut Engine<SimHost>,
    siblings: Option<Box<dyn Siblings>>,
    seed: [u8; 32],
    host: &mut SimHost,
    now: Instant,
) -> Result<Engine<SimHost>, String> {
    let saved = engine.save_state(now);
    let sockets: Vec<SocketIndex> = saved.sockets.iter().map(|saved| saved.socket.0).collect();
    let descriptions: Vec<_> = saved.sockets.into_iter().map(|saved| saved.description).collect();
    let bytes = saved.bytes;
    let mut successor = engine.successor(seed, now);
    if let Some(siblings) = siblings {
        successor.join(siblings);
    }
    let mut wrong = Vec::new();
    let restored = successor.restore_state(&bytes, now, &mut |place, description| {
        let place = place as usize;
        let index = *sockets.get(place).ok_or(SocketRefused)?;
        if descriptions[place] != *description {
            wrong.push(format!(
                "{:?} is described as {description:?}",
                descriptions[place]
            ));
        }
        if let Err(what) = host.verify(index, description) {
            wrong.push(format!("{index:?} is {what}, but described as {description:?}"));
        }
        Ok(SimSocket(index))
    });
    let restored = restored.map_err(|error| format!("the state is refused: {error}"))?;
    if let Some(what) = wrong.first() {
        return Err(what.clone());
    }
    if restored.refused > 0 || restored.flows as usize != engine.flows() {
        return Err(format!("{restored:?} of {} flows", engine.flows()));
    }
    let again = successor.save_state(now);
    if again.bytes != bytes || again.sockets.len() != sockets.len() {
        let place = again
            .bytes
            .iter()
            .zip(&bytes)
            .position(|(one, other)| one != other);
        return Err(format!(
            "the successor has another state: {} and {} bytes, which differ at {place:?}",
            bytes.len(),
            again.bytes.len()
        ));
    }
    if successor.pool_in_use() != engine.pool_in_use() || successor.proving() != engine.proving() {
        return Err("the successor counts its memory or proofs differently".into());
    }
    Ok(successor)
}

impl SimHost {
    /// Compares a socket with its description.
    fn verify(&self, index: SocketIndex, description: &SocketDescription) -> Result<(), String> {
        let (flow, peer) = match index {
            SocketIndex::Tcp(index) => {
                let conn = &self.conns[index];
                (conn.flow.filter(|_| conn.held), Some(conn.peer))
            }
            SocketIndex::Datagram(index) => self.datagrams.registered(index),
        };
        if flow != Some(description.flow) {
            return Err(format!("registered for {flow:?}"));
        }
        let is_tcp = matches!(index, SocketIndex::Tcp(_));
        let is_datagram = match description.kind {
            SocketKind::TcpConnecting
            | SocketKind::TcpConnected
            | SocketKind::TcpAccepted
            | SocketKind::Stream
            | SocketKind::GuestTcp => false,
            SocketKind::Udp
            | SocketKind::UdpConnected
            | SocketKind::UdpPublished(_)
            | SocketKind::Ping
            | SocketKind::Dns => true,
        };
        if is_tcp == is_datagram {
            return Err("of another type".into());
        }
        match peer {
            _ if description.peers.is_empty() => Ok(()),
            Some(peer) if description.peers.contains(&peer) => Ok(()),
            peer => Err(format!("connected to {peer:?}")),
        }
    }

    /// Reports the present state of all sockets as events, as when they are registered with another epoll instance.
    pub fn report_all(&mut self) {
        for index in 0..self.conns.len() {
            self.wake(PendingEvent::Conn(index));
        }
        for index in 0..self.datagrams.len() {
            self.wake(PendingEvent::Datagram(index));
        }
        let listeners: Vec<u32> = self.listeners.keys().copied().collect();
        for listener in listeners {
            self.wake(PendingEvent::Listener(listener));
        }
    }
}
