//! Sockets through which relay workers send.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pontoon_ipc::Descriptor;
use pontoon_process::error::reason;
use pontoon_relay::rule::{Input, Output};
use pontoon_relay_worker::messages::{OutputConfig, RelayUpdate};
use pontoon_sys::{Family, bind, filter, multicast, udp};
use rustix::net::{SocketFlags, SocketType, connect, socket_with, sockopt};

use crate::links::{Link, Links, LocalAddress};
use crate::worker_pool::WorkerPool;

/// Destination and interface of an output socket. Outputs of rules with equal values share one socket per worker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Egress {
    interface: String,
    v6: bool,
    /// Destination address; `None` if each datagram keeps its own destination.
    to: Option<IpAddr>,
    port: Option<NonZeroU16>,
}

/// Output sockets by destination and interface.
#[derive(Debug)]
pub(super) struct Outputs {
    egresses: BTreeMap<Egress, EgressState>,
    /// Limit on open sockets; the other descriptors are for rings, inputs, clients and workers.
    max_open: usize,
    /// Number of open sockets.
    open: usize,
    /// Output numbers that can be reused.
    free: Vec<u32>,
}

/// State of the sockets of one output.
#[derive(Debug)]
struct EgressState {
    id: u32,
    /// Number of outputs of rules that use the sockets.
    users: usize,
    state: Result<OpenSockets, DownReason>,
}

/// Open sockets of one output, one for each worker, and the interface settings when they were opened.
#[derive(Debug)]
struct OpenSockets {
    sockets: Vec<Arc<OwnedFd>>,
    from: LinkConfig,
}

/// Interface settings on which an output socket depends: connect(2) has chosen its source address, and datagrams larger
/// than the MTU are fragmented.
#[derive(Debug, PartialEq, Eq)]
struct LinkConfig {
    index: u32,
    mtu: u32,
    addresses: Vec<LocalAddress>,
}

/// Reason why nothing can be sent through an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DownReason {
    NoInterface,
    NotUp,
    NoCarrier,
    NoAddress,
    /// The limit on open sockets is reached.
    Limit,
    Kernel(String),
}

/// Size of a socket's send buffer in bytes.
const SEND_BUFFER: usize = 4 << 20;

impl Egress {
    pub(super) fn of(output: &Output, input: &Input) -> Self {
        Self {
            interface: output.interface.clone(),
            v6: output.is_v6(input),
            to: output.to,
            port: output.port,
        }
    }

    fn family(&self) -> Family {
        if self.v6 { Family::V6 } else { Family::V4 }
    }

    /// Returns true if datagrams are sent to multicast groups. A destination address that a datagram keeps is always a
    /// group.
    fn is_multicast(&self) -> bool {
        self.to.is_none_or(|to| to.is_multicast())
    }

    fn open(&self, links: &Links, count: usize) -> Result<OpenSockets, DownReason> {
        let link = links.get(&self.interface).ok_or(DownReason::NoInterface)?;
        if !link.up {
            return Err(DownReason::NotUp);
        }
        if !link.carrier {
            return Err(DownReason::NoCarrier);
        }
        let from = LinkConfig::of(link, self.family());
        if from.addresses.is_empty() {
            return Err(DownReason::NoAddress);
        }
        let sockets = (0..count)
            .map(|_| self.socket(link).map(Arc::new))
            .collect::<io::Result<_>>();
        let sockets = sockets.map_err(|error| DownReason::Kernel(reason(&error)))?;
        Ok(OpenSockets { sockets, from })
    }

    fn socket(&self, link: &Link) -> io::Result<OwnedFd> {
        let family = self.family();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family.domain(), SocketType::DGRAM, flags, None)?;
        bind::to_device(&socket, &link.name)?;
        multicast::send_from(&socket, link.index, family)?;
        if !self.v6 {
            // The broadcast address of a link cannot be distinguished from other unicast addresses by its form.
            sockopt::set_socket_broadcast(&socket, true)?;
        }
        udp::set_dont_fragment(&socket, family, false)?;
        // The socket only sends.
        filter::refuse_all(&socket)?;
        sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER)
            .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER))?;
        if let (Some(to), Some(port)) = (self.to, self.port) {
            let to = match to {
                IpAddr::V4(_) => SocketAddr::new(to, port.get()),
                IpAddr::V6(to) => SocketAddrV6::new(to, port.get(), 0, link.index).into(),
            };
            connect(&socket, &to)?;
        }
        Ok(socket)
    }
}

impl LinkConfig {
    fn of(link: &Link, family: Family) -> Self {
        Self {
            index: link.index,
            mtu: link.mtu,
            addresses: link.addresses(family).collect(),
        }
    }
}

impl Outputs {
    /// Returns an empty set of outputs, with a limit of `max_open` sockets.
    pub(super) fn new(max_open: usize) -> Self {
        Self {
            egresses: BTreeMap::new(),
            max_open,
            open: 0,
            free: Vec::new(),
        }
    }

    /// Opens `count` sockets of an output, unless that exceeds the limit.
    fn open(&mut self, egress: &Egress, links: &Links, count: usize) -> Result<OpenSockets, DownReason> {
        if count > self.max_open.saturating_sub(self.open) {
            return Err(DownReason::Limit);
        }
        let open = egress.open(links, count)?;
        self.open += open.sockets.len();
        Ok(open)
    }

    /// Adds an output of a rule, and opens its sockets if no other rule uses them. Returns the number of the sockets in
    /// messages to workers.
    pub(super) fn acquire(&mut self, egress: &Egress, links: &Links, workers: &mut WorkerPool) -> u32 {
        if let Some(entry) = self.egresses.get_mut(egress) {
            entry.users += 1;
            return entry.id;
        }
        let id = self
            .free
            .pop()
            .unwrap_or_else(|| u32::try_from(self.egresses.len()).unwrap_or(u32::MAX));
        let entry = EgressState {
            id,
            users: 1,
            state: self.open(egress, links, workers.len()),
        };
        entry.send(egress, workers);
        if let Err(down) = &entry.state {
            tracing::warn!("{}: {down}; output suspended", egress.interface);
        }
        self.egresses.insert(egress.clone(), entry);
        id
    }

    /// Removes an output of a rule; closes its sockets if no other rule uses them.
    pub(super) fn release(&mut self, egress: &Egress, workers: &mut WorkerPool) {
        let Some(entry) = self.egresses.get_mut(egress) else {
            return;
        };
        entry.users -= 1;
        if entry.users == 0 {
            workers.send_all(&RelayUpdate::RemoveOutput(entry.id));
            self.open -= entry.sockets();
            self.free.push(entry.id);
            self.egresses.remove(egress);
        }
    }

    /// Opens and closes sockets according to the state of the interfaces.
    pub(super) fn update(&mut self, links: &Links, workers: &mut WorkerPool) {
        let mut egresses = std::mem::take(&mut self.egresses);
        for (egress, entry) in &mut egresses {
            if entry.is_current(egress, links) {
                continue;
            }
            self.open -= entry.sockets();
            let state = self.open(egress, links, workers.len());
            match (&entry.state, &state) {
                (Err(old), Err(new)) if old == new => continue,
                (Err(_), Ok(_)) => tracing::info!("{}: up", egress.interface),
                (Ok(_), Ok(_)) => {
                    tracing::debug!("{}: reopened, as the interface has changed", egress.interface)
                }
                (_, Err(down)) => tracing::warn!("{}: {down}", egress.interface),
            }
            entry.state = state;
            entry.send(egress, workers);
        }
        self.egresses = egresses;
    }

    /// Returns true if an output is not open, and another attempt may succeed.
    pub(super) fn incomplete(&self) -> bool {
        let has_room = self.open < self.max_open;
        self.egresses.values().any(|entry| match &entry.state {
            Err(DownReason::Limit) => has_room,
            state => state.is_err(),
        })
    }

    /// Sends all outputs to the worker `number`, whose process has just been started.
    pub(super) fn restore_worker(&self, number: usize, workers: &mut WorkerPool) {
        for (egress, entry) in &self.egresses {
            if let Ok(open) = &entry.state
                && let Some(socket) = open.sockets.get(number)
            {
                workers.send(number, entry.update(egress, Arc::clone(socket).into()));
            }
        }
    }

    /// Returns the reason why nothing can be sent through `egress`; `None` if sockets are open.
    pub(super) fn missing(&self, egress: &Egress) -> Option<&DownReason> {
        self.egresses.get(egress)?.state.as_ref().err()
    }
}

impl EgressState {
    /// Returns the number of open sockets.
    fn sockets(&self) -> usize {
        self.state.as_ref().map_or(0, |open| open.sockets.len())
    }

    /// Returns true if the interface settings on which the sockets depend are unchanged.
    fn is_current(&self, egress: &Egress, links: &Links) -> bool {
        let (Ok(open), Some(link)) = (&self.state, links.get(&egress.interface)) else {
            return false;
        };
        link.up && link.carrier && open.from == LinkConfig::of(link, egress.family())
    }

    fn update(&self, egress: &Egress, socket: Descriptor) -> RelayUpdate {
        let output = OutputConfig {
            id: self.id,
            v6: egress.v6,
            multicast: egress.is_multicast(),
        };
        RelayUpdate::Output(output, socket)
    }

    fn send(&self, egress: &Egress, workers: &mut WorkerPool) {
        match &self.state {
            Ok(open) => workers.send_each(|socket| self.update(egress, socket), &open.sockets),
            Err(_) => workers.send_all(&RelayUpdate::RemoveOutput(self.id)),
        }
    }
}

impl fmt::Display for DownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoInterface => f.write_str("no such interface"),
            Self::NotUp => f.write_str("the interface is down"),
            Self::NoCarrier => f.write_str("the interface has no carrier"),
            Self::NoAddress => f.write_str("the interface has no address of this family"),
            Self::Limit => f.write_str("the descriptor limit leaves no room for it"),
            Self::Kernel(reason) => f.write_str(reason),
        }
    }
}

#[cfg(test)]
mod tests {
    use pontoon_relay::Rule;

    use super::super::links::LinkWatch;
    use super::*;

    #[test]
    fn broadcast_address_is_a_valid_destination() {
        let rule: Rule = "a 239.1.1.1:5001 -> lo 127.255.255.255:5001".parse().unwrap();
        let egress = Egress::of(&rule.outputs[0], &rule.input);
        let (_, links) = LinkWatch::start().unwrap();
        let open = egress.open(&links, 1);
        assert!(open.is_ok(), "{:?}", open.err());
    }

    #[test]
    fn sockets_beyond_the_limit_are_not_opened() {
        let rule: Rule = "a 239.1.1.1:5001 -> lo 127.0.0.2:5001".parse().unwrap();
        let egress = Egress::of(&rule.outputs[0], &rule.input);
        let (_, links) = LinkWatch::start().unwrap();
        let mut outputs = Outputs::new(5);
        let first = outputs.open(&egress, &links, 2).unwrap();
        let second = outputs.open(&egress, &links, 3).unwrap();
        assert_eq!((first.sockets.len(), second.sockets.len()), (2, 3));
        assert_eq!(outputs.open(&egress, &links, 1).err(), Some(DownReason::Limit));
    }
}
