//! What a door receives by, whether it is open, and what it lacks.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use pontoon_relay::counters::Interface::Position;
use pontoon_relay::counters::InterfaceStats;
use pontoon_relay::rule::Input;
use pontoon_relay_worker::messages::{self, Kind, Message};
use pontoon_sys::filter;

use super::packet_ring::PacketRing;
use super::sockets::Sockets;
use super::{Door, Engine, endpoint};
use crate::error::reason;
use crate::relay::closing::Closing;
use crate::relay::crew::Crew;
use crate::relay::links::Link;

#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) table: u32,
    pub(super) row: u32,
    pub(super) state: Result<Open, String>,
    /// What is not received though it is open.
    lacking: Lacking,
    /// What the kernel has counted for rings as far as it was asked, and for sockets that are closed.
    kernel_packets: u64,
    kernel_dropped: u64,
    /// How often the kernel had stopped a ring.
    reopened: u64,
}

/// Why some of what rules want is not received, by where it is sent to; `None` is what a ring's filter leaves out.
pub(super) type Lacking = BTreeMap<Option<SocketAddr>, String>;

#[derive(Debug)]
pub(super) struct Open {
    pub(super) born: Born,
    pub(super) what: What,
}

/// What a ring depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Born {
    pub(super) index: u32,
    pub(super) mtu: u32,
    /// IPv4 fragments are put together. What comes for an interface on top comes by this one's ring, too, and both would
    /// put the same fragments into one place, where what is there twice is thrown away: so only the upper one does.
    pub(super) whole: bool,
}

#[derive(Debug)]
pub(super) enum What {
    Ring(PacketRing),
    Sockets(Sockets),
}

/// Whether a worker has taken from a ring before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ring {
    New,
    Used,
}

impl Receiving {
    /// What is not open.
    pub(super) fn new(table: u32, row: u32) -> Self {
        Self {
            table,
            row,
            state: Err("not open".to_owned()),
            lacking: Lacking::new(),
            kernel_packets: 0,
            kernel_dropped: 0,
            reopened: 0,
        }
    }

    fn set_state(&mut self, door: &Door, state: Result<Open, String>) {
        let family = door.family_name();
        match (&self.state, &state) {
            (Err(old), Err(new)) if old == new => return,
            (_, Err(why)) => tracing::warn!("{}: {why}; its {family} rules wait", door.interface),
            (_, Ok(open)) => tracing::info!("{}: {family}: {}", door.interface, open.describe()),
        }
        self.state = state;
    }

    fn set_lacking(&mut self, door: &Door, lacking: Lacking) {
        let family = door.family_name();
        for (at, why) in &lacking {
            if self.lacking.get(at) != Some(why) {
                tracing::error!("{}: {family}: {why}; it is tried again", door.interface);
            }
        }
        if lacking.is_empty() && !self.lacking.is_empty() {
            tracing::info!("{}: {family}: nothing is lacking any more", door.interface);
        }
        self.lacking = lacking;
    }

    pub(super) fn born(&self) -> Option<Born> {
        self.state.as_ref().ok().map(|open| open.born)
    }

    pub(super) fn is_incomplete(&self) -> bool {
        self.state.is_err() || !self.lacking.is_empty()
    }

    /// Why nothing can be received for a rule.
    pub(super) fn missing(&self, input: &Input) -> Option<&str> {
        let lacking = || {
            let places = [None, endpoint(input)];
            places.iter().find_map(|place| self.lacking.get(place))
        };
        let why = self.state.as_ref().err().or_else(lacking);
        why.map(String::as_str)
    }

    fn describe(&self) -> String {
        let open = match &self.state {
            Ok(open) => open.describe(),
            Err(why) => return why.clone(),
        };
        match (self.lacking.first_key_value(), self.lacking.len()) {
            (None, _) => open,
            (Some((_, why)), 1) => format!("{open}; {why}"),
            (Some((_, why)), count) => format!("{open}; {why}; {} more", count - 1),
        }
    }

    /// Stays closed for a reason.
    pub(super) fn wait(&mut self, door: &Door, why: &str) {
        self.set_state(door, Err(why.to_owned()));
    }

    /// Opens what is not open, and tells the workers.
    pub(super) fn open(
        &mut self,
        door: &Door,
        engine: Engine,
        born: Born,
        next_id: &mut u32,
        crew: &mut Crew,
    ) {
        let what = match engine {
            Engine::Ring => PacketRing::open(door, born, next_id, crew.len()).map(What::Ring),
            Engine::Socket => Ok(What::Sockets(Sockets::default())),
        };
        let state = what.map(|what| Open { born, what });
        self.set_state(door, state.map_err(|error| reason(&error)));
        for number in 0..crew.len() {
            self.tell(number, Ring::New, crew);
        }
    }

    /// Receives what rules want, if it is open, and no more.
    pub(super) fn adapt<'a>(
        &mut self,
        door: &Door,
        link: &Link,
        rules: impl Iterator<Item = &'a Input> + Clone,
        next_id: &mut u32,
        crew: &mut Crew,
    ) {
        let (table, row) = (self.table, self.row);
        let Ok(open) = &mut self.state else {
            return;
        };
        let lacking = match &mut open.what {
            What::Ring(ring) => {
                let why = |error| format!("cannot adapt to the rules: {}", reason(&error));
                let adapted = ring.adapt(door, link, rules);
                adapted
                    .err()
                    .map(|error| (None, why(error)))
                    .into_iter()
                    .collect()
            }
            What::Sockets(sockets) => {
                let tell = |id, opened: Option<(SocketAddr, &OwnedFd)>| {
                    let input = |kind| Message::Input(messages::Input { id, table, row, kind });
                    let kind = opened.map(|(at, _)| Kind::Socket(at.port()));
                    let message = kind.map_or(Message::NoInput(id), input);
                    crew.tell(0, &message, opened.map(|(_, socket)| socket.as_fd()));
                };
                sockets.adapt(door, link, rules, &mut self.kernel_dropped, next_id, tell)
            }
        };
        self.set_lacking(door, lacking);
    }

    /// Workers take what is left, and no more.
    pub(super) fn close(&mut self, crew: &mut Crew, closing: &mut Closing) {
        if self.state.is_err() {
            return;
        }
        self.lacking.clear();
        self.ask_kernel();
        self.kernel_dropped += self.socket_drops();
        let open = std::mem::replace(&mut self.state, Err("closed".to_owned()));
        match open.map(|open| open.what) {
            Ok(What::Ring(ring)) => {
                ring.sockets.iter().for_each(receive_no_more);
                crew.tell_all(&Message::NoInput(ring.id));
                closing.extend(ring.sockets);
            }
            Ok(What::Sockets(sockets)) => {
                for (id, _, socket) in sockets.iter() {
                    receive_no_more(socket);
                    crew.tell(0, &Message::NoInput(id), None);
                }
            }
            Err(_) => {}
        }
    }

    /// Closes rings that the kernel has stopped one of. They are to be opened again.
    pub(super) fn close_stuck(&mut self, door: &Door, crew: &mut Crew, closing: &mut Closing) {
        if self.reopened == 0 {
            tracing::warn!(
                "{}: {}: the kernel has stopped the ring over a packet that it cannot describe; it is opened anew",
                door.interface,
                door.family_name()
            );
        }
        self.reopened += 1;
        self.close(crew, closing);
    }

    fn ring(&self) -> Option<&PacketRing> {
        match &self.state {
            Ok(Open {
                what: What::Ring(ring),
                ..
            }) => Some(ring),
            Ok(_) | Err(_) => None,
        }
    }

    pub(super) fn ring_mut(&mut self) -> Option<&mut PacketRing> {
        match &mut self.state {
            Ok(Open {
                what: What::Ring(ring),
                ..
            }) => Some(ring),
            Ok(_) | Err(_) => None,
        }
    }

    /// What sockets that are open have dropped.
    fn socket_drops(&self) -> u64 {
        match &self.state {
            Ok(Open {
                what: What::Sockets(sockets),
                ..
            }) => sockets.dropped(),
            Ok(_) | Err(_) => 0,
        }
    }

    fn ask_kernel(&mut self) {
        if let Some((packets, dropped)) = self.ring_mut().map(PacketRing::count) {
            self.kernel_packets += packets;
            self.kernel_dropped += dropped;
        }
    }

    /// When to look whether a ring is stopped.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.ring()?.next_look()
    }

    pub(super) fn is_stuck(&mut self, crew: &Crew, now: Instant) -> bool {
        self.ask_kernel();
        let positions = crew.read(self.row).map(|row| row[Position as usize]);
        self.ring_mut().is_some_and(|ring| ring.is_stuck(positions, now))
    }

    /// Tells a worker.
    pub(super) fn tell(&self, number: usize, taken: Ring, crew: &mut Crew) {
        let (table, row) = (self.table, self.row);
        let input = |id, kind| Message::Input(messages::Input { id, table, row, kind });
        match self.state.as_ref().map(|open| &open.what) {
            Ok(What::Ring(ring)) => {
                if let Some(socket) = ring.sockets.get(number) {
                    let kind = Kind::Ring {
                        size: ring.size,
                        used: taken == Ring::Used,
                    };
                    crew.tell(number, &input(ring.id, kind), Some(socket.as_fd()));
                }
            }
            Ok(What::Sockets(sockets)) if number == 0 => {
                for (id, at, socket) in sockets.iter() {
                    crew.tell(0, &input(id, Kind::Socket(at.port())), Some(socket.as_fd()));
                }
            }
            Ok(What::Sockets(_)) | Err(_) => {}
        }
    }

    /// What was counted.
    pub(super) fn stats(&mut self, door: &Door, crew: &Crew) -> InterfaceStats {
        self.ask_kernel();
        let mut stats = InterfaceStats {
            interface: door.interface.clone(),
            family: if door.v6 { "ipv6" } else { "ipv4" }.to_owned(),
            state: self.describe(),
            kernel_packets: self.kernel_packets,
            kernel_dropped: self.kernel_dropped + self.socket_drops(),
            reopened: self.reopened,
            ..InterfaceStats::default()
        };
        crew.read(self.row).for_each(|row| stats.add(&row));
        stats
    }
}

impl Open {
    fn describe(&self) -> String {
        match &self.what {
            What::Ring(ring) => ring.describe(),
            What::Sockets(_) => "UDP sockets".to_owned(),
        }
    }
}

/// A worker takes what is there by now, which has to have an end.
pub(super) fn receive_no_more(socket: &OwnedFd) {
    if let Err(error) = filter::refuse_all(socket) {
        tracing::debug!(%error, "cannot close a filter");
    }
}
