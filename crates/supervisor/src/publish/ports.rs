//! The ports that are published now, and changes to them while the guest runs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pontoon_engine::config::{Protocol, Published};
use pontoon_runtime::messages::Door;

use super::{Families, Publish, open_socket, refused};
use crate::error::Error;

/// Published ports, each with its host socket: listening (TCP) or bound (UDP), non-blocking.
#[derive(Debug)]
pub(crate) struct Ports {
    families: Families,
    ports: BTreeMap<Key, Port>,
}

/// No two ports have the same.
type Key = (Protocol, SocketAddr);

#[derive(Clone, Debug)]
struct Port {
    guest: u16,
    socket: Arc<OwnedFd>,
}

/// What became of a change.
#[derive(Debug)]
pub(crate) struct Changed {
    /// Ports that were not published, or led elsewhere.
    pub(crate) added: Vec<Publish>,
    /// Ports that are published no more.
    pub(crate) removed: Vec<Publish>,
    /// What the engine is to be told.
    pub(crate) doors: Vec<Door>,
}

/// Why nothing was changed.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It makes no sense.
    Wrong(Error),
    /// The host has the port for something else, or does not let us have it.
    Conflict(Error),
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Wrong(error) | Refusal::Conflict(error) => error,
        }
    }
}

impl Ports {
    /// None.
    pub(crate) fn new(families: Families) -> Self {
        Self {
            families,
            ports: BTreeMap::new(),
        }
    }

    /// Closes `remove` and opens `add`: all of it, or nothing. No other socket is touched, nor is one that is in both, be it
    /// with another port of the guest's. What is published already may be added once more; what is not may be removed.
    ///
    /// # Errors
    /// Nothing was changed, and why.
    pub(crate) fn change(&mut self, remove: &[Publish], add: &[Publish]) -> Result<Changed, Refusal> {
        let mut gone: BTreeSet<Key> = BTreeSet::new();
        for wish in remove {
            for (host, guest) in wish.doors(self.families) {
                let key = (wish.protocol, host);
                if self.ports.get(&key).is_some_and(|port| port.guest == guest) {
                    gone.insert(key);
                }
            }
        }
        let mut new = BTreeMap::new();
        for wish in add {
            if self.families == Families::V4 && wish.address.is_some_and(|address| address.is_ipv6()) {
                let wrong = Error::new(format!("cannot publish {wish}: the guest has no IPv6"));
                return Err(Refusal::Wrong(wrong.advise("an IPv4 address")));
            }
            for (host, guest) in wish.doors(self.families) {
                self.add(wish, host, guest, &gone, &mut new)?;
            }
        }
        Ok(self.apply(gone, new))
    }

    fn add(
        &self,
        wish: &Publish,
        host: SocketAddr,
        guest: u16,
        gone: &BTreeSet<Key>,
        new: &mut BTreeMap<Key, Port>,
    ) -> Result<(), Refusal> {
        let key = (wish.protocol, host);
        let here = self.ports.get(&key);
        match new.get(&key).or(here.filter(|_| !gone.contains(&key))) {
            Some(port) if port.guest == guest => return Ok(()),
            Some(port) => {
                return Err(Refusal::Conflict(Error::new(format!(
                    "cannot publish {wish}: {host}/{} leads to port {} already",
                    wish.protocol, port.guest
                ))));
            }
            None => {}
        }
        let socket = match here {
            Some(port) => Arc::clone(&port.socket),
            None => match open_socket(wish.protocol, host) {
                Ok(socket) => Arc::new(socket),
                // Nobody asked for IPv6 by name, and this host has none.
                Err(error)
                    if wish.address.is_none()
                        && host.is_ipv6()
                        && error.raw_os_error() == Some(libc::EAFNOSUPPORT) =>
                {
                    return Ok(());
                }
                Err(error) => return Err(Refusal::Conflict(refused(host, wish.protocol, &error))),
            },
        };
        new.insert(key, Port { guest, socket });
        Ok(())
    }

    fn apply(&mut self, gone: BTreeSet<Key>, new: BTreeMap<Key, Port>) -> Changed {
        let mut changed = Changed {
            added: Vec::new(),
            removed: Vec::new(),
            doors: Vec::new(),
        };
        for key in gone.into_iter().filter(|key| !new.contains_key(key)) {
            if let Some(port) = self.ports.remove(&key) {
                changed.removed.push(shown(key, port.guest));
                changed.doors.push(Door::Close(published(key, port.guest)));
            }
        }
        for (key, port) in new {
            let published = published(key, port.guest);
            let door = match self.ports.get(&key) {
                Some(old) if old.guest == port.guest => continue,
                Some(_) => Door::Lead(published),
                None => Door::Open(published, port.socket.clone().into()),
            };
            changed.doors.push(door);
            changed.added.push(shown(key, port.guest));
            self.ports.insert(key, port);
        }
        changed
    }

    /// Each port.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Publish> {
        self.ports.iter().map(|(key, port)| shown(*key, port.guest))
    }

    /// Each port, as the engine has it.
    pub(crate) fn published(&self) -> Vec<Published> {
        let published = self.ports.iter().map(|(key, port)| published(*key, port.guest));
        published.collect()
    }

    /// Their sockets, in the same order, as descriptors of the caller's own.
    ///
    /// # Errors
    /// Out of descriptors.
    pub(crate) fn sockets(&self) -> io::Result<Vec<OwnedFd>> {
        self.ports.values().map(|port| port.socket.try_clone()).collect()
    }
}

fn shown((protocol, host): Key, guest: u16) -> Publish {
    Publish {
        protocol,
        address: Some(host.ip()),
        host: host.port(),
        guest,
        count: 1,
    }
}

fn published((protocol, host): Key, guest_port: u16) -> Published {
    Published {
        protocol,
        host,
        guest_port,
    }
}
