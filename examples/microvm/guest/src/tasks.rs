//! Tasks of the guest: configuration by DHCP, then the task in the boot parameters.

use core::fmt;
use core::time::Duration;

use smoltcp::iface::{Config, Interface, PollIngressSingleResult, PollResult, SocketSet, SocketStorage};
use smoltcp::phy::Device;
use smoltcp::socket::dhcpv4;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, IpCidr, Ipv4Address};

use crate::report;
use pontoon_microvm_abi::{BootParameters, Stage, Task, TaskReport};

mod crr;
mod datagrams;
mod ping;

/// The guest's Ethernet address.
const MAC: EthernetAddress = EthernetAddress([2, 0, 0, 0, 0, 1]);

/// Time limit of each step of a task.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A network interface of the guest, as smoltcp's device.
pub(crate) trait Net: Device {
    /// Returns the time since a fixed moment.
    fn now(&mut self) -> Duration;

    /// Sends the queued frames.
    fn flush(&mut self) -> Result<(), pontoon_guest::Error>;

    /// Sends the queued frames, and waits for a frame until the time `until`.
    fn wait(&mut self, until: Option<Duration>) -> Result<(), pontoon_guest::Error>;

    /// Returns the counters of the interface.
    fn traffic(&mut self) -> TrafficCounters;
}

/// Counters of the guest's network interface.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TrafficCounters {
    pub(crate) sent: u32,
    pub(crate) received: u32,
    pub(crate) doorbells: u32,
    pub(crate) sleeps: u32,
}

/// Reason why a task of the guest has failed.
#[derive(Debug)]
pub(crate) enum TaskFailure {
    Net(pontoon_guest::Error),
    Text(&'static str),
}

/// A smoltcp stack and its network interface.
struct NetworkStack<N> {
    net: N,
    stack: Interface,
}

/// Configures the guest by DHCP, then runs the task.
pub(crate) fn run<N: Net>(mut net: N, parameters: &BootParameters) -> Result<TaskReport, TaskFailure> {
    let stack = Interface::new(Config::new(MAC.into()), &mut net, Instant::ZERO);
    let mut world = NetworkStack { net, stack };
    let (address, gateway) = world.configure()?;
    let server = (gateway, parameters.port as u16);

    let task = parameters.task;
    let mut report = TaskReport::EMPTY;
    report.address = address.octets();
    // The first ping resolves the gateway's Ethernet address.
    ping::ping(&mut world, gateway, 1)?;
    let before = world.net.traffic();
    report::stage(Stage::Begin);
    report.done = match task {
        _ if task == Task::Ping as u32 => ping::ping(&mut world, gateway, parameters.count)?,
        _ if task == Task::Crr as u32 => crr::crr(&mut world, server, parameters.count)?,
        _ if task == Task::Send as u32 => datagrams::send(&mut world, server, parameters.count)?,
        _ => datagrams::receive(&mut world, server, parameters.count)?,
    };
    let after = world.net.traffic();
    report.sent = after.sent - before.sent;
    report.received = after.received - before.received;
    report.doorbells = after.doorbells - before.doorbells;
    report.sleeps = after.sleeps - before.sleeps;
    Ok(report)
}

impl<N: Net> NetworkStack<N> {
    /// Obtains the addresses of the guest and of the gateway by DHCP.
    fn configure(&mut self) -> Result<(Ipv4Address, Ipv4Address), TaskFailure> {
        let mut storage = [SocketStorage::EMPTY];
        let mut sockets = SocketSet::new(&mut storage[..]);
        let client = sockets.add(dhcpv4::Socket::new());
        let (address, gateway) = self.until(&mut sockets, |sockets| {
            match sockets.get_mut::<dhcpv4::Socket<'_>>(client).poll()? {
                dhcpv4::Event::Configured(config) => Some((config.address, config.router?)),
                dhcpv4::Event::Deconfigured => None,
            }
        })?;
        self.stack.update_ip_addrs(|addresses| {
            // The list has room for at least one address.
            let _ = addresses.push(IpCidr::Ipv4(address));
        });
        Ok((address.address(), gateway))
    }

    /// Polls the stack until `done` returns a value, or the time limit has expired.
    fn until<'s, R>(
        &mut self,
        sockets: &mut SocketSet<'s>,
        mut done: impl FnMut(&mut SocketSet<'s>) -> Option<R>,
    ) -> Result<R, TaskFailure> {
        let end = self.net.now() + TIMEOUT;
        loop {
            let now = self.net.now();
            let moment = Instant::from_micros(now.as_micros() as i64);
            self.stack.poll_maintenance(moment);
            // Frames are processed one at a time, because the stack's receive buffers are too small for a burst.
            let taken = self.stack.poll_ingress_single(moment, &mut self.net, sockets);
            while self.stack.poll_egress(moment, &mut self.net, sockets) == PollResult::SocketStateChanged {}
            if let Some(result) = done(sockets) {
                self.net.flush()?;
                return Ok(result);
            }
            if now >= end {
                return Err(TaskFailure::Text("no reply within one minute"));
            }
            if taken != PollIngressSingleResult::None {
                continue;
            }
            let delay = self.stack.poll_delay(moment, sockets);
            let due = delay.map_or(end, |delay| {
                end.min(now + Duration::from_micros(delay.total_micros()))
            });
            self.net.wait(Some(due))?;
        }
    }
}

impl From<pontoon_guest::Error> for TaskFailure {
    fn from(error: pontoon_guest::Error) -> Self {
        Self::Net(error)
    }
}

impl fmt::Display for TaskFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(error) => error.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}
