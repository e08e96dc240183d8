//! Rings and sockets that workers take from.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use pontoon_relay::counters::Interface::Position;
use pontoon_relay::counters::InterfaceStats;
use pontoon_relay::filter::{self as program, Instruction, NOTHING};
use pontoon_relay::rule::Input;
use pontoon_relay_worker::messages::{self, Kind, Message};
use pontoon_sys::packet::{self, Size, Spread};
use pontoon_sys::{Family, bind, filter, udp};
use rustix::net::{SocketFlags, SocketType, socket_with, sockopt};

use super::closing::Closing;
use super::crew::Crew;
use super::links::{Link, Links};
use super::stuck::Stuck;
use crate::error::reason;

/// What is received together: all that arrives on an interface for a family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Door {
    pub(super) interface: String,
    v6: bool,
}

/// How datagrams are received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// Packet rings.
    Ring,
    /// UDP sockets, which need no privilege.
    Socket,
}

/// Doors by what they are.
#[derive(Debug)]
pub(super) struct Inputs {
    engine: Engine,
    doors: BTreeMap<Door, Receiving>,
    closing: Closing,
    next_table: u32,
    next_id: u32,
}

#[derive(Debug)]
struct Receiving {
    table: u32,
    row: u32,
    state: Result<Open, String>,
    /// What is not received though it is open.
    lacking: Lacking,
    /// What the kernel has counted for rings as far as it was asked, and for sockets that are closed.
    kernel_packets: u64,
    kernel_dropped: u64,
    /// How often the kernel had stopped a ring.
    reopened: u64,
}

/// Why some of what rules want is not received, by where it is sent to; `None` is what a ring's filter leaves out.
type Lacking = BTreeMap<Option<SocketAddr>, String>;

#[derive(Debug)]
struct Open {
    born: Born,
    what: What,
}

/// What a ring depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Born {
    index: u32,
    mtu: u32,
    /// IPv4 fragments are put together. What comes for an interface on top comes by this one's ring, too, and both would
    /// put the same fragments into one place, where what is there twice is thrown away: so only the upper one does.
    whole: bool,
}

#[derive(Debug)]
enum What {
    Ring {
        id: u32,
        size: Size,
        /// One for each worker.
        sockets: Vec<OwnedFd>,
        wants: Wants,
        stuck: Stuck,
    },
    /// By where datagrams are sent to, all of them the first worker's: of a group each socket would get a copy. One for every
    /// address would take what is sent to other programs.
    Sockets(BTreeMap<SocketAddr, (u32, OwnedFd)>),
}

/// What a ring is told to receive.
#[derive(Debug)]
struct Wants {
    program: Vec<Instruction>,
    /// The device hands up every group.
    all_groups: bool,
}

/// Whether a worker has taken from a ring before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ring {
    New,
    Used,
}

/// Bytes of a ring: 8 ms of what 10 Gbit/s bring, and what slots waste of it.
const RING_BYTES: u32 = 16 << 20;

/// Bytes that may wait in a UDP socket.
const RECEIVE_BUFFER: usize = 8 << 20;

/// Bytes of Ethernet's header.
const ETHERNET: u32 = 14;

/// Where IP begins, whatever is in front of it (`SKF_NET_OFF`); slower than a number.
const NET_OFFSET: u32 = (-0x10_0000_i32).cast_unsigned();

impl Door {
    pub(super) fn of(input: &Input) -> Self {
        Self {
            interface: input.interface.clone(),
            v6: input.is_v6(),
        }
    }

    pub(super) fn is_of(&self, input: &Input) -> bool {
        self.v6 == input.is_v6() && self.interface == input.interface
    }

    fn family(&self) -> Family {
        if self.v6 { Family::V6 } else { Family::V4 }
    }
}

impl Inputs {
    pub(super) fn new(engine: Engine) -> Self {
        Self {
            engine,
            doors: BTreeMap::new(),
            closing: Closing::default(),
            next_table: 0,
            next_id: 0,
        }
    }

    /// How datagrams are received.
    pub(super) fn engine(&self) -> Engine {
        self.engine
    }

    /// Whether there is such a door.
    pub(super) fn has(&self, door: &Door) -> bool {
        self.doors.contains_key(door)
    }

    /// Makes a door that counts in a row.
    pub(super) fn add(&mut self, door: Door, row: u32) {
        self.next_table += 1;
        self.doors.insert(
            door,
            Receiving {
                table: self.next_table,
                row,
                state: Err("not open".to_owned()),
                lacking: Lacking::new(),
                kernel_packets: 0,
                kernel_dropped: 0,
                reopened: 0,
            },
        );
    }

    /// The table that what comes through a door is looked up in.
    pub(super) fn table(&self, door: &Door) -> Option<u32> {
        Some(self.doors.get(door)?.table)
    }

    /// Takes a door away; its row is free.
    pub(super) fn remove(&mut self, door: &Door, crew: &mut Crew) -> Option<u32> {
        let mut receiving = self.doors.remove(door)?;
        receiving.close(crew, &mut self.closing);
        Some(receiving.row)
    }

    /// Doors there are.
    pub(super) fn doors(&self) -> Vec<Door> {
        self.doors.keys().cloned().collect()
    }

    /// Why nothing can be received for a rule.
    pub(super) fn missing(&self, input: &Input) -> Option<&str> {
        let receiving = self.doors.get(&Door::of(input))?;
        let lacking = || {
            let places = [None, endpoint(input)];
            places.iter().find_map(|place| receiving.lacking.get(place))
        };
        let why = receiving.state.as_ref().err().or_else(lacking);
        why.map(String::as_str)
    }

    /// Whether some door is not open, or not for all of its rules.
    pub(super) fn incomplete(&self) -> bool {
        self.doors.values().any(Receiving::is_incomplete)
    }

    /// When a ring is to be looked at, or something to be closed for good.
    pub(super) fn next_turn(&self) -> Option<Instant> {
        let looks = self.doors.values().filter_map(Receiving::next_look);
        looks.chain(self.closing.next_turn()).min()
    }

    /// Something has come to a ring that nothing had come to for a while.
    pub(super) fn packets_come(&mut self) {
        let now = Instant::now();
        for receiving in self.doors.values_mut() {
            if let Ok(Open {
                what: What::Ring { sockets, stuck, .. },
                ..
            }) = &mut receiving.state
            {
                stuck.wake(sockets, now);
            }
        }
    }

    /// Closes the rings of doors that the kernel has stopped one of. They are to be opened again.
    pub(super) fn close_stuck(&mut self, crew: &mut Crew) -> Vec<Door> {
        let now = Instant::now();
        let mut closed = Vec::new();
        for (door, receiving) in &mut self.doors {
            if receiving.next_look().is_none_or(|due| now < due) || !receiving.is_stuck(crew, now) {
                continue;
            }
            let family = if door.v6 { "IPv6" } else { "IPv4" };
            if receiving.reopened == 0 {
                tracing::warn!(
                    "{}: {family}: the kernel has stopped the ring over a packet that it cannot describe; it is opened anew",
                    door.interface
                );
            }
            receiving.reopened += 1;
            receiving.close(crew, &mut self.closing);
            closed.push(door.clone());
        }
        closed
    }

    /// Closes it.
    pub(super) fn close_due(&mut self) {
        self.closing.close_due();
    }

    /// Doors that are open as they would not be opened again.
    pub(super) fn outdated(&self, links: &Links) -> Vec<Door> {
        let outdated = |(door, receiving): &(&Door, &Receiving)| {
            receiving.state.is_ok() && receiving.born() != self.born(door, links)
        };
        let doors = self.doors.iter().filter(outdated);
        doors.map(|(door, _)| door.clone()).collect()
    }

    /// What a ring would depend on that was opened now, where one can be.
    fn born(&self, door: &Door, links: &Links) -> Option<Born> {
        let link = links.get(&door.interface).filter(|link| link.up)?;
        let is_over = |other: &Door| other.v6 == door.v6 && links.is_over(&other.interface, link.index);
        Some(Born {
            index: link.index,
            mtu: link.mtu,
            whole: door.v6 || !self.doors.keys().any(is_over),
        })
    }

    /// Opens or closes a door as its interface is now, for the rules that it has now.
    pub(super) fn update<'a>(
        &mut self,
        door: &Door,
        rules: impl Iterator<Item = &'a Input> + Clone,
        links: &Links,
        crew: &mut Crew,
    ) {
        let born = self.born(door, links);
        let (engine, next_id) = (self.engine, &mut self.next_id);
        let Some(receiving) = self.doors.get_mut(door) else {
            return;
        };
        let link = links.get(&door.interface).filter(|link| link.up);
        if receiving.born() != born {
            receiving.close(crew, &mut self.closing);
        }
        let (Some(link), Some(born)) = (link, born) else {
            let why = match links.get(&door.interface) {
                None => "no such interface",
                Some(_) => "the interface is down",
            };
            receiving.set_state(door, Err(why.to_owned()));
            return;
        };
        if receiving.state.is_err() {
            let what = match engine {
                Engine::Ring => What::ring(door, born, next_id, crew.len()),
                Engine::Socket => Ok(What::Sockets(BTreeMap::new())),
            };
            let state = what.map(|what| Open { born, what });
            receiving.set_state(door, state.map_err(|error| reason(&error)));
            for number in 0..crew.len() {
                receiving.tell(number, Ring::New, crew);
            }
        }
        let (table, row) = (receiving.table, receiving.row);
        if let Ok(open) = &mut receiving.state {
            let lacking = match &mut open.what {
                What::Ring { sockets, wants, .. } => {
                    let adapted = adapt_ring(door, link, rules, sockets, wants);
                    let why = |error| format!("cannot adapt to the rules: {}", reason(&error));
                    adapted
                        .err()
                        .map(|error| (None, why(error)))
                        .into_iter()
                        .collect()
                }
                What::Sockets(sockets) => {
                    let dropped = &mut receiving.kernel_dropped;
                    adapt_sockets(door, link, rules, sockets, dropped, next_id, |id, at, socket| {
                        let kind = at.map(|at| Kind::Socket(at.port()));
                        let input = |kind| Message::Input(messages::Input { id, table, row, kind });
                        let message = kind.map_or(Message::NoInput(id), input);
                        crew.tell(0, &message, socket.map(AsFd::as_fd));
                    })
                }
            };
            receiving.set_lacking(door, lacking);
        }
    }

    /// Tells a worker that has just been born.
    pub(super) fn brief(&self, number: usize, crew: &mut Crew) {
        for receiving in self.doors.values() {
            receiving.tell(number, Ring::Used, crew);
        }
    }

    /// What was counted.
    pub(super) fn stats(&mut self, crew: &Crew) -> Vec<InterfaceStats> {
        self.doors
            .iter_mut()
            .map(|(door, receiving)| {
                receiving.ask_kernel();
                let mut stats = InterfaceStats {
                    interface: door.interface.clone(),
                    family: if door.v6 { "ipv6" } else { "ipv4" }.to_owned(),
                    state: receiving.describe(),
                    kernel_packets: receiving.kernel_packets,
                    kernel_dropped: receiving.kernel_dropped + receiving.socket_drops(),
                    reopened: receiving.reopened,
                    ..InterfaceStats::default()
                };
                crew.read(receiving.row).for_each(|row| stats.add(&row));
                stats
            })
            .collect()
    }
}

impl Receiving {
    fn set_state(&mut self, door: &Door, state: Result<Open, String>) {
        let family = if door.v6 { "IPv6" } else { "IPv4" };
        match (&self.state, &state) {
            (Err(old), Err(new)) if old == new => return,
            (_, Err(why)) => tracing::warn!("{}: {why}; its {family} rules wait", door.interface),
            (_, Ok(open)) => tracing::info!("{}: {family}: {}", door.interface, open.describe()),
        }
        self.state = state;
    }

    fn set_lacking(&mut self, door: &Door, lacking: Lacking) {
        let family = if door.v6 { "IPv6" } else { "IPv4" };
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

    fn born(&self) -> Option<Born> {
        self.state.as_ref().ok().map(|open| open.born)
    }

    fn is_incomplete(&self) -> bool {
        self.state.is_err() || !self.lacking.is_empty()
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

    /// Workers take what is left, and no more.
    fn close(&mut self, crew: &mut Crew, closing: &mut Closing) {
        if self.state.is_err() {
            return;
        }
        self.lacking.clear();
        self.ask_kernel();
        self.kernel_dropped += self.socket_drops();
        let open = std::mem::replace(&mut self.state, Err("closed".to_owned()));
        match open.map(|open| open.what) {
            Ok(What::Ring { id, sockets, .. }) => {
                sockets.iter().for_each(receive_no_more);
                crew.tell_all(&Message::NoInput(id));
                closing.extend(sockets);
            }
            Ok(What::Sockets(sockets)) => {
                for (id, socket) in sockets.values() {
                    receive_no_more(socket);
                    crew.tell(0, &Message::NoInput(*id), None);
                }
            }
            Err(_) => {}
        }
    }

    /// What sockets that are open have dropped.
    fn socket_drops(&self) -> u64 {
        match &self.state {
            Ok(Open {
                what: What::Sockets(sockets),
                ..
            }) => drops(sockets.values().map(|(_, socket)| socket)),
            Ok(_) | Err(_) => 0,
        }
    }

    /// Of what it was asked for, a ring's kernel begins anew.
    fn ask_kernel(&mut self) {
        if let Ok(Open {
            what: What::Ring { sockets, stuck, .. },
            ..
        }) = &mut self.state
        {
            for (number, socket) in sockets.iter().enumerate() {
                let Ok((packets, dropped)) = packet::statistics(socket) else {
                    continue;
                };
                self.kernel_packets += u64::from(packets);
                self.kernel_dropped += u64::from(dropped);
                stuck.count(number, packets, dropped);
            }
        }
    }

    /// When to look whether a ring is stopped.
    fn next_look(&self) -> Option<Instant> {
        match &self.state {
            Ok(Open {
                what: What::Ring { stuck, .. },
                ..
            }) => stuck.due(),
            Ok(_) | Err(_) => None,
        }
    }

    fn is_stuck(&mut self, crew: &Crew, now: Instant) -> bool {
        self.ask_kernel();
        let positions = crew.read(self.row).map(|row| row[Position as usize]);
        match &mut self.state {
            Ok(Open {
                what: What::Ring { sockets, stuck, .. },
                ..
            }) => stuck.look(sockets, positions, now),
            Ok(_) | Err(_) => false,
        }
    }

    fn tell(&self, number: usize, ring: Ring, crew: &mut Crew) {
        let (table, row) = (self.table, self.row);
        let input = |id, kind| Message::Input(messages::Input { id, table, row, kind });
        match self.state.as_ref().map(|open| &open.what) {
            Ok(What::Ring {
                id, size, sockets, ..
            }) => {
                if let Some(socket) = sockets.get(number) {
                    let kind = Kind::Ring {
                        size: *size,
                        used: ring == Ring::Used,
                    };
                    crew.tell(number, &input(*id, kind), Some(socket.as_fd()));
                }
            }
            Ok(What::Sockets(sockets)) if number == 0 => {
                for (at, (id, socket)) in sockets {
                    crew.tell(0, &input(*id, Kind::Socket(at.port())), Some(socket.as_fd()));
                }
            }
            Ok(What::Sockets(_)) | Err(_) => {}
        }
    }
}

impl Open {
    fn describe(&self) -> String {
        match &self.what {
            What::Ring { size, sockets, .. } => {
                let (slots, count) = (size.slots(), sockets.len());
                format!("packet ring, {count} x {slots} slots")
            }
            What::Sockets(_) => "UDP sockets".to_owned(),
        }
    }
}

impl Wants {
    fn nothing() -> Self {
        Self {
            program: NOTHING.to_vec(),
            all_groups: false,
        }
    }
}

impl What {
    fn ring(door: &Door, born: Born, next_id: &mut u32, workers: usize) -> io::Result<Self> {
        let bytes = born.mtu + ETHERNET;
        let slots = RING_BYTES / Size::new(1, bytes).slot_bytes();
        let size = Size::new(slots, bytes);
        let sockets = (0..workers)
            .map(|_| {
                let socket = packet::open(size)?;
                // Before they are a group, each would get everything.
                filter::attach(&socket, instructions(&NOTHING))?;
                packet::bind(&socket, born.index, door.family())?;
                Ok(socket)
            })
            .collect::<io::Result<Vec<_>>>()?;
        let spread = if workers == 1 { Spread::One } else { Spread::Flows };
        packet::group(&sockets, spread, born.whole)?;
        *next_id += 1;
        Ok(Self::Ring {
            id: *next_id,
            size,
            stuck: Stuck::new(&sockets, Instant::now()),
            sockets,
            wants: Wants::nothing(),
        })
    }
}

/// Lets a ring receive what the rules want. Of ranges of groups the device has to hand up every group.
fn adapt_ring<'a>(
    door: &Door,
    link: &Link,
    rules: impl Iterator<Item = &'a Input> + Clone,
    sockets: &[OwnedFd],
    has: &mut Wants,
) -> io::Result<()> {
    let base = if link.ethernet { ETHERNET } else { NET_OFFSET };
    let wanted = match door.family() {
        Family::V4 => program::v4(base, rules.clone()),
        Family::V6 => program::v6(base, rules.clone()),
    };
    let wanted = program::only_from(link.index, wanted);
    if wanted != has.program {
        for socket in sockets {
            filter::attach(socket, instructions(&wanted))?;
        }
        has.program = wanted;
    }
    let is_range = |input: &Input| input.is_multicast() && input.to.prefix_len() < input.to.max_prefix_len();
    let all_groups = rules.clone().any(is_range);
    if let Some(first) = sockets.first()
        && all_groups != has.all_groups
    {
        packet::all_groups(first, link.index, all_groups)?;
        has.all_groups = all_groups;
    }
    Ok(())
}

/// Opens sockets for what rules want, and closes those that none wants. `tell` gets number, address and socket of what
/// came, and the number of what went. Says which could not be opened: somebody else may have a port for now.
fn adapt_sockets<'a>(
    door: &Door,
    link: &Link,
    rules: impl Iterator<Item = &'a Input> + Clone,
    sockets: &mut BTreeMap<SocketAddr, (u32, OwnedFd)>,
    dropped: &mut u64,
    next_id: &mut u32,
    mut tell: impl FnMut(u32, Option<SocketAddr>, Option<&OwnedFd>),
) -> Lacking {
    let wanted: BTreeSet<SocketAddr> = rules.filter_map(endpoint).collect();
    let unwanted = sockets.extract_if(.., |at, _| !wanted.contains(at));
    for (_, (id, socket)) in unwanted {
        receive_no_more(&socket);
        tell(id, None, None);
        *dropped += drops([&socket]);
    }
    let mut lacking = Lacking::new();
    for at in wanted {
        if sockets.contains_key(&at) {
            continue;
        }
        match receiver(door.family(), link, at) {
            Ok(socket) => {
                *next_id += 1;
                tell(*next_id, Some(at), Some(&socket));
                sockets.insert(at, (*next_id, socket));
            }
            Err(error) => {
                lacking.insert(Some(at), format!("{at}: {}", reason(&error)));
            }
        }
    }
    lacking
}

/// Where what a rule takes is sent to, if that is one address and port.
fn endpoint(input: &Input) -> Option<SocketAddr> {
    let single = input.to.prefix_len() == input.to.max_prefix_len();
    let port = input.port.filter(|_| single)?;
    Some(SocketAddr::new(input.to.addr(), port.get()))
}

/// A worker takes what is there by now, which has to have an end.
fn receive_no_more(socket: &OwnedFd) {
    if let Err(error) = filter::refuse_all(socket) {
        tracing::debug!(%error, "cannot close a filter");
    }
}

fn drops<'a>(sockets: impl IntoIterator<Item = &'a OwnedFd>) -> u64 {
    let of_socket = |socket| u64::from(udp::dropped(socket).unwrap_or_default());
    sockets.into_iter().map(of_socket).sum()
}

fn receiver(family: Family, link: &Link, at: SocketAddr) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family.domain(), SocketType::DGRAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if family == Family::V6 {
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    bind::to_device(&socket, &link.name)?;
    sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER))?;
    udp::tell_all(&socket, family)?;
    udp::tell_destination(&socket, family)?;
    if let Err(error) = udp::coalesce(&socket) {
        tracing::debug!(%error, "no UDP_GRO");
    }
    let at = match at {
        SocketAddr::V6(v6) => SocketAddrV6::new(*v6.ip(), v6.port(), 0, link.index).into(),
        v4 => v4,
    };
    rustix::net::bind(&socket, &at)?;
    Ok(socket)
}

fn instructions(program: &[Instruction]) -> impl Iterator<Item = (u16, u8, u8, u32)> {
    program.iter().map(|one| (one.code, one.jt, one.jf, one.k))
}

#[cfg(test)]
mod tests;
