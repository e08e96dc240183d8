//! Sockets of IGMP/MLD queriers (`pontoon relay --proxy`), which receive reports of hosts and send queries.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use pontoon_relay::membership::message::{self, Query};
use pontoon_relay::membership::{LimitCounts, Querier, SourceFilter};
use pontoon_sys::packet;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tracing::debug;

use crate::messages::{Member, RelayReport, WorkerChannel};

/// Packet socket of a querier on one interface for one family, with the querier's state.
#[derive(Debug)]
pub(crate) struct QuerierSocket {
    interface: u32,
    /// Source address of queries. Without one, reports are received and no query is sent.
    address: Option<IpAddr>,
    socket: OwnedFd,
    querier: Querier,
    /// Time of the next timer of the querier. It is stored because computing it visits all memberships.
    due: Duration,
}

/// Limit on the length of a received message in bytes.
const MAX_MESSAGE: usize = 9000;

/// Limit on the messages that are received before other sockets are served.
const MAX_BATCH: usize = 64;

/// Limit on the memberships that are reported before those of other queriers.
const MAX_REPORTS: usize = 16;

impl QuerierSocket {
    pub(crate) fn new(interface: u32, address: IpAddr, socket: OwnedFd, now: Duration) -> Self {
        Self {
            interface,
            address: Some(address),
            socket,
            querier: Querier::new(address, now),
            due: now,
        }
    }

    /// Changes the source address of queries. Memberships are kept.
    pub(crate) fn set_address(&mut self, address: Option<IpAddr>, now: Duration) {
        if let Some(address) = address {
            self.querier.set_address(address, now);
            self.due = now;
        }
        self.querier.set_can_send(address.is_some());
        self.address = address;
    }

    /// Restores a membership that a predecessor of this process has reported. It expires at `until` unless a host reports
    /// it.
    pub(crate) fn restore(&mut self, group: IpAddr, filter: SourceFilter, until: Duration) {
        self.querier.restore(group, filter, until);
    }

    pub(crate) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.socket, PollFlags::IN)
    }

    /// Returns the time at which [`QuerierSocket::run`] has to be called even if no message is received.
    pub(crate) fn due(&self) -> Duration {
        self.due
    }

    /// Receives messages, removes expired memberships and sends the queries that are due.
    pub(crate) fn run(&mut self, now: Duration) {
        let received = self.receive(now);
        if received == ReceivedBatch::Empty && now < self.due {
            return;
        }
        for query in self.querier.tick(now) {
            if let Err(error) = self.send(&query) {
                debug!(%error, "cannot send a query");
            }
        }
        self.due = self.querier.next_tick();
    }

    /// Returns the numbers of memberships that the limit on memberships has concerned since the previous call.
    pub(crate) fn take_limit_counts(&mut self) -> LimitCounts {
        self.querier.take_limit_counts()
    }

    /// Reports some changed memberships of the querier `id` to the supervisor.
    fn report(&mut self, id: u32, control: &WorkerChannel) -> io::Result<Reporting> {
        for _ in 0..MAX_REPORTS {
            let Some((group, filter)) = self.querier.next_change() else {
                return Ok(Reporting::Complete);
            };
            let report = RelayReport::Member(Member {
                querier: id,
                group,
                filter,
            });
            match control.try_send(&report) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.querier.retry_change(group);
                    return Ok(Reporting::ChannelFull);
                }
                // The next receive detects that the supervisor has exited.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Reporting::Complete),
                Err(error) => return Err(error),
            }
        }
        Ok(Reporting::Incomplete)
    }

    /// Receives at most one batch of messages.
    fn receive(&mut self, now: Duration) -> ReceivedBatch {
        let mut buffer = [0; MAX_MESSAGE];
        for count in 0..MAX_BATCH {
            match recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Ok((len, _)) => {
                    if let Some(message) = buffer.get(..len).and_then(message::parse) {
                        self.querier.handle(message, now);
                    }
                }
                Err(error) => {
                    // An error means, for example, that the interface is down; the supervisor removes this querier then.
                    if error != Errno::AGAIN {
                        debug!(%error, "cannot receive reports");
                    }
                    return match count {
                        0 => ReceivedBatch::Empty,
                        _ => ReceivedBatch::Messages,
                    };
                }
            }
        }
        ReceivedBatch::Messages
    }

    fn send(&self, query: &Query) -> io::Result<()> {
        let packet = self.address.and_then(|address| query.packet(address));
        match packet {
            Some((bytes, to)) => packet::send_to_group(&self.socket, self.interface, to, &bytes),
            None => Ok(()),
        }
    }
}

/// Result of reporting changed memberships.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reporting {
    /// All changed memberships were sent.
    Complete,
    /// Some changed memberships were not sent, because other queriers are next.
    Incomplete,
    /// Some changed memberships were not sent, because the supervisor's channel is full.
    ChannelFull,
}

/// Queriers by their numbers.
pub(crate) type Queriers = BTreeMap<u32, QuerierSocket>;

/// Reports changed memberships of all queriers to the supervisor, in turns: otherwise, hosts of one interface that change
/// memberships continuously would fill the channel, and those of other interfaces would not be reported. `first` is the number of
/// the querier whose turn it is when the channel has room again.
///
/// # Errors
/// The send fails for a reason other than a full or closed channel.
pub(crate) fn report_in_turns(
    queriers: &mut Queriers,
    first: &mut u32,
    control: &WorkerChannel,
) -> io::Result<Reporting> {
    let order = queriers.range(*first..).chain(queriers.range(..*first));
    let order: Vec<u32> = order.map(|(id, _)| *id).collect();
    loop {
        let mut is_complete = true;
        for id in &order {
            let reporting = match queriers.get_mut(id) {
                Some(querier) => querier.report(*id, control)?,
                None => Reporting::Complete,
            };
            match reporting {
                Reporting::Complete => {}
                Reporting::Incomplete => is_complete = false,
                Reporting::ChannelFull => {
                    *first = *id;
                    return Ok(Reporting::ChannelFull);
                }
            }
        }
        if is_complete {
            return Ok(Reporting::Complete);
        }
    }
}

/// Result of receiving a batch of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceivedBatch {
    /// At least one message was received.
    Messages,
    /// No message was received.
    Empty,
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use pontoon_sys::seqpacket;

    use super::*;
    use crate::messages::ControlChannel;

    /// Returns an IGMPv2 membership report (RFC 2236 section 2) for 239.1.1.`last`, from 10.0.0.7.
    fn report(last: u8) -> Vec<u8> {
        let mut message = [0x16, 0, 0, 0, 239, 1, 1, last];
        let sum = pontoon_wire::checksum::Sum::new().add(&message).finish();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut packet = vec![0x45, 0xc0, 0, 28, 0, 0, 0, 0, 1, 2, 0, 0];
        packet.extend([10, 0, 0, 7, 239, 1, 1, last]);
        let sum = pontoon_wire::checksum::Sum::new().add(&packet).finish();
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend(message);
        packet
    }

    fn channel() -> (WorkerChannel, ControlChannel) {
        let (ours, theirs) = seqpacket::pair().unwrap();
        (
            WorkerChannel::new(ours, 0).unwrap(),
            ControlChannel::new(theirs, 0).unwrap(),
        )
    }

    fn received(control: &mut ControlChannel) -> Option<RelayReport> {
        control.receive().ok().flatten()
    }

    fn member(last: u8, filter: SourceFilter) -> RelayReport {
        RelayReport::Member(Member {
            querier: 7,
            group: [239, 1, 1, last].into(),
            filter,
        })
    }

    #[test]
    fn reports_new_and_expired_memberships_once() {
        let (host, socket) = UnixDatagram::pair().unwrap();
        let (ours, mut theirs) = channel();
        let own = [10, 0, 0, 1].into();
        let mut querier = QuerierSocket::new(1, own, socket.into(), Duration::ZERO);
        querier.restore([239, 1, 1, 9].into(), SourceFilter::Any, Duration::from_secs(260));
        for _ in 0..2 {
            host.send(&report(1)).unwrap();
            querier.run(Duration::from_secs(1));
        }
        assert_eq!(querier.report(7, &ours).unwrap(), Reporting::Complete);
        assert_eq!(received(&mut theirs), Some(member(1, SourceFilter::Any)));
        assert_eq!(received(&mut theirs), None);
        // No more messages are received, so both memberships expire.
        querier.run(Duration::from_secs(300));
        assert_eq!(querier.report(7, &ours).unwrap(), Reporting::Complete);
        for last in [1, 9] {
            let gone = SourceFilter::Sources(Vec::new());
            assert_eq!(received(&mut theirs), Some(member(last, gone)));
        }
    }

    #[test]
    fn querier_with_many_changes_does_not_delay_the_reports_of_another() {
        let (ours, mut theirs) = channel();
        let mut queriers = Queriers::new();
        let mut hosts = Vec::new();
        for id in [7, 8] {
            let (host, socket) = UnixDatagram::pair().unwrap();
            let own = [10, 0, 0, 1].into();
            queriers.insert(id, QuerierSocket::new(1, own, socket.into(), Duration::ZERO));
            hosts.push(host);
        }
        // The memberships of the first interface expire, and a host of the second one joins a group.
        for number in 0..4000_u16 {
            let [high, low] = number.to_be_bytes();
            let group = [239, 2, high, low].into();
            let querier = &mut queriers.get_mut(&7).unwrap().querier;
            querier.restore(group, SourceFilter::Any, Duration::from_secs(200));
        }
        hosts[1].send(&report(1)).unwrap();
        for querier in queriers.values_mut() {
            querier.run(Duration::from_secs(300));
        }
        let mut first = 0;
        let mut reports = Vec::new();
        while report_in_turns(&mut queriers, &mut first, &ours).unwrap() == Reporting::ChannelFull {
            reports.extend(received(&mut theirs));
        }
        reports.extend(std::iter::from_fn(|| received(&mut theirs)));
        let is_other =
            |report: &RelayReport| matches!(report, RelayReport::Member(member) if member.querier == 8);
        assert_eq!(reports.len(), 4001);
        assert_eq!(reports.iter().position(is_other), Some(MAX_REPORTS));
    }

    #[test]
    fn messages_of_the_other_family_change_no_membership() {
        let (host, socket) = UnixDatagram::pair().unwrap();
        let (ours, mut theirs) = channel();
        let own = "fe80::1".parse().unwrap();
        let mut querier = QuerierSocket::new(1, own, socket.into(), Duration::ZERO);
        host.send(&report(1)).unwrap();
        querier.run(Duration::from_secs(1));
        assert_eq!(querier.report(7, &ours).unwrap(), Reporting::Complete);
        assert_eq!(received(&mut theirs), None);
    }

    #[test]
    fn reports_that_do_not_fit_the_control_socket_are_sent_later() {
        let (host, socket) = UnixDatagram::pair().unwrap();
        let (ours, mut theirs) = channel();
        while ours.try_send(&RelayReport::Ready).is_ok() {}
        let own = [10, 0, 0, 1].into();
        let mut querier = QuerierSocket::new(1, own, socket.into(), Duration::ZERO);
        host.send(&report(1)).unwrap();
        querier.run(Duration::ZERO);
        assert_eq!(querier.report(7, &ours).unwrap(), Reporting::ChannelFull);
        while received(&mut theirs).is_some() {}
        assert_eq!(querier.report(7, &ours).unwrap(), Reporting::Complete);
        assert_eq!(received(&mut theirs), Some(member(1, SourceFilter::Any)));
    }
}
