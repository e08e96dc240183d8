//! Sockets that workers send through.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU16;
use std::os::fd::OwnedFd;

use pontoon_relay::rule::{Input, Output};
use pontoon_relay_worker::messages::{self, Message};
use pontoon_sys::{Family, bind, filter, multicast, udp};
use rustix::net::{SocketFlags, SocketType, connect, socket_with, sockopt};

use super::crew::Crew;
use super::links::{Link, Links, Own};
use crate::error::reason;

/// What has a socket of its own: rules that send alike share it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Way {
    interface: String,
    v6: bool,
    /// `None`: different ones.
    to: Option<IpAddr>,
    port: Option<NonZeroU16>,
}

/// Ways by what they are.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    ways: BTreeMap<Way, Sending>,
    /// Numbers that were given back.
    free: Vec<u32>,
}

#[derive(Debug)]
struct Sending {
    id: u32,
    /// Outputs of rules that send this way.
    users: usize,
    state: Result<Open, Down>,
}

/// One socket for each worker, and what the interface was like when they were opened.
#[derive(Debug)]
struct Open {
    sockets: Vec<OwnedFd>,
    from: Origin,
}

/// What a socket depends on: its source address was chosen when it was connected, and what is too long by the MTU.
#[derive(Debug, PartialEq, Eq)]
struct Origin {
    index: u32,
    mtu: u32,
    addresses: Vec<Own>,
}

/// Why nothing can be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Down {
    NoInterface,
    NotUp,
    NoCarrier,
    NoAddress,
    Kernel(String),
}

/// Bytes that may wait in the kernel for a device.
const SEND_BUFFER: usize = 4 << 20;

impl Way {
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

    /// Only groups can be kept.
    fn is_multicast(&self) -> bool {
        self.to.is_none_or(|to| to.is_multicast())
    }

    fn open(&self, links: &Links, count: usize) -> Result<Open, Down> {
        let link = links.get(&self.interface).ok_or(Down::NoInterface)?;
        if !link.up {
            return Err(Down::NotUp);
        }
        if !link.carrier {
            return Err(Down::NoCarrier);
        }
        let from = Origin::of(link, self.family());
        if from.addresses.is_empty() {
            return Err(Down::NoAddress);
        }
        let sockets = (0..count).map(|_| self.socket(link)).collect::<io::Result<_>>();
        let sockets = sockets.map_err(|error| Down::Kernel(reason(&error)))?;
        Ok(Open { sockets, from })
    }

    fn socket(&self, link: &Link) -> io::Result<OwnedFd> {
        let family = self.family();
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family.domain(), SocketType::DGRAM, flags, None)?;
        bind::to_device(&socket, &link.name)?;
        multicast::send_from(&socket, link.index, family)?;
        if !self.v6 {
            // An address that is everybody's on a link looks like any other.
            sockopt::set_socket_broadcast(&socket, true)?;
        }
        udp::set_dont_fragment(&socket, family, false)?;
        // Nobody reads what is sent back.
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

impl Origin {
    fn of(link: &Link, family: Family) -> Self {
        Self {
            index: link.index,
            mtu: link.mtu,
            addresses: link.addresses(family).collect(),
        }
    }
}

impl Outputs {
    /// The number of a way, for one more output of a rule.
    pub(super) fn acquire(&mut self, way: &Way, links: &Links, crew: &mut Crew) -> u32 {
        if let Some(sending) = self.ways.get_mut(way) {
            sending.users += 1;
            return sending.id;
        }
        let id = self
            .free
            .pop()
            .unwrap_or_else(|| u32::try_from(self.ways.len()).unwrap_or(u32::MAX));
        let sending = Sending {
            id,
            users: 1,
            state: way.open(links, crew.len()),
        };
        sending.tell(way, crew);
        if let Err(down) = &sending.state {
            tracing::warn!("{}: {down}; what is for it waits", way.interface);
        }
        self.ways.insert(way.clone(), sending);
        id
    }

    /// One output less.
    pub(super) fn release(&mut self, way: &Way, crew: &mut Crew) {
        let Some(sending) = self.ways.get_mut(way) else {
            return;
        };
        sending.users -= 1;
        if sending.users == 0 {
            crew.tell_all(&Message::NoOutput(sending.id));
            self.free.push(sending.id);
            self.ways.remove(way);
        }
    }

    /// Opens and closes as the interfaces are now.
    pub(super) fn update(&mut self, links: &Links, crew: &mut Crew) {
        for (way, sending) in &mut self.ways {
            if sending.is_as_it_was(way, links) {
                continue;
            }
            let state = way.open(links, crew.len());
            match (&sending.state, &state) {
                (Err(old), Err(new)) if old == new => continue,
                (Err(_), Ok(_)) => tracing::info!("{}: up", way.interface),
                (Ok(_), Ok(_)) => tracing::debug!("{}: has changed", way.interface),
                (_, Err(down)) => tracing::warn!("{}: {down}", way.interface),
            }
            sending.state = state;
            sending.tell(way, crew);
        }
    }

    /// Whether some way is down.
    pub(super) fn incomplete(&self) -> bool {
        self.ways.values().any(|sending| sending.state.is_err())
    }

    /// Tells a worker that has just been born.
    pub(super) fn brief(&self, number: usize, crew: &mut Crew) {
        use std::os::fd::AsFd;
        for (way, sending) in &self.ways {
            if let Ok(open) = &sending.state
                && let Some(socket) = open.sockets.get(number)
            {
                crew.tell(number, &sending.message(way), Some(socket.as_fd()));
            }
        }
    }

    /// Why nothing can be sent.
    pub(super) fn missing(&self, way: &Way) -> Option<&Down> {
        self.ways.get(way)?.state.as_ref().err()
    }
}

impl Sending {
    /// Whether what is open would be opened like that again.
    fn is_as_it_was(&self, way: &Way, links: &Links) -> bool {
        let (Ok(open), Some(link)) = (&self.state, links.get(&way.interface)) else {
            return false;
        };
        link.up && link.carrier && open.from == Origin::of(link, way.family())
    }

    fn message(&self, way: &Way) -> Message {
        Message::Output(messages::Output {
            id: self.id,
            v6: way.v6,
            multicast: way.is_multicast(),
        })
    }

    fn tell(&self, way: &Way, crew: &mut Crew) {
        match &self.state {
            Ok(open) => crew.tell_each(&self.message(way), &open.sockets),
            Err(_) => crew.tell_all(&Message::NoOutput(self.id)),
        }
    }
}

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoInterface => f.write_str("no such interface"),
            Self::NotUp => f.write_str("the interface is down"),
            Self::NoCarrier => f.write_str("the interface has no carrier"),
            Self::NoAddress => f.write_str("the interface has no address of this family"),
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
    fn an_address_that_is_everybodys_is_one_to_send_to() {
        let rule: Rule = "a 239.1.1.1:5001 -> lo 127.255.255.255:5001".parse().unwrap();
        let way = Way::of(&rule.outputs[0], &rule.input);
        let (_, links) = LinkWatch::start().unwrap();
        let open = way.open(&links, 1);
        assert!(open.is_ok(), "{:?}", open.err());
    }
}
