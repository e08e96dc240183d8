//! A host whose UDP sockets say what the test wants.

use core::net::{IpAddr, SocketAddr};
use std::collections::{BTreeMap, VecDeque};

use vm_memory::VolatileSlice;

use crate::host::{Accepted, Connect, DatagramMeta, PingReply, Problem, Received};
use crate::{Failure, FlowId, Host};

/// What a socket has to receive.
#[derive(Clone, Debug)]
pub(super) enum Said {
    Datagram(SocketAddr, Vec<u8>),
    Failed(Failure),
}

#[derive(Debug)]
struct Socket {
    flow: FlowId,
    peer: Option<SocketAddr>,
    said: VecDeque<Said>,
    reported: bool,
}

#[derive(Debug, Default)]
pub(super) struct FakeHost {
    sockets: BTreeMap<u32, Socket>,
    opened: u32,
    sent: Vec<(u32, SocketAddr, Vec<u8>)>,
    pub(super) unreachable: Vec<SocketAddr>,
    pub(super) exhausted: bool,
}

impl FakeHost {
    /// Socket, peer and bytes of what was sent since the last call.
    pub(super) fn take_sent(&mut self) -> Vec<(u32, SocketAddr, Vec<u8>)> {
        core::mem::take(&mut self.sent)
    }

    pub(super) fn open(&self) -> usize {
        self.sockets.len()
    }

    pub(super) fn flow(&self, socket: u32) -> FlowId {
        self.sockets[&socket].flow
    }

    pub(super) fn say(&mut self, socket: u32, said: Vec<Said>) {
        self.sockets.get_mut(&socket).unwrap().said.extend(said);
    }

    /// The socket's error queue has an entry.
    pub(super) fn report(&mut self, socket: u32) {
        self.sockets.get_mut(&socket).unwrap().reported = true;
    }
}

impl Host for FakeHost {
    type Socket = u32;

    fn udp_open(&mut self, flow: FlowId, _: IpAddr) -> Result<u32, Failure> {
        if self.exhausted {
            return Err(Failure::Exhausted);
        }
        let socket = self.opened;
        self.opened += 1;
        self.sockets.insert(
            socket,
            Socket {
                flow,
                peer: None,
                said: VecDeque::new(),
                reported: false,
            },
        );
        Ok(socket)
    }

    fn udp_connect(&mut self, socket: &mut u32, to: Option<SocketAddr>) -> Result<(), Failure> {
        if to.is_some_and(|to| self.unreachable.contains(&to)) {
            return Err(Failure::NetUnreachable);
        }
        self.sockets.get_mut(socket).unwrap().peer = to;
        Ok(())
    }

    fn udp_send(
        &mut self,
        socket: &mut u32,
        to: Option<SocketAddr>,
        from: Option<IpAddr>,
        _: DatagramMeta,
        segment: Option<u16>,
        parts: &[VolatileSlice<'_>],
    ) -> Result<(), Failure> {
        assert_eq!((to, from, segment), (None, None, None));
        let mut bytes = vec![];
        for part in parts {
            let mut copy = vec![0; part.len()];
            part.copy_to(&mut copy[..]);
            bytes.extend(copy);
        }
        let peer = self.sockets[socket].peer.unwrap();
        self.sent.push((*socket, peer, bytes));
        Ok(())
    }

    fn udp_receive(&mut self, socket: &mut u32, into: &[VolatileSlice<'_>]) -> Result<Received, Failure> {
        match self.sockets.get_mut(socket).unwrap().said.pop_front() {
            None => Err(Failure::WouldBlock),
            Some(Said::Failed(failure)) => Err(failure),
            Some(Said::Datagram(from, bytes)) => {
                into[0].copy_from(&bytes[..]);
                Ok(Received {
                    len: bytes.len(),
                    stride: bytes.len(),
                    from,
                    to: None,
                    meta: DatagramMeta {
                        hop_limit: 64,
                        traffic_class: 0,
                        dont_fragment: false,
                    },
                })
            }
        }
    }

    fn problem(&mut self, socket: &mut u32, _: &mut [u8]) -> Option<Problem> {
        let socket = self.sockets.get_mut(socket).unwrap();
        let destination = socket.peer?;
        core::mem::take(&mut socket.reported).then_some(Problem {
            destination,
            offender: None,
            kind: 3,
            code: 3,
            mtu: None,
            payload_len: 0,
        })
    }

    fn close(&mut self, socket: u32) {
        self.sockets.remove(&socket).unwrap();
    }

    fn abort(&mut self, _: u32) {
        unimplemented!()
    }

    fn tcp_connect(&mut self, _: FlowId, _: SocketAddr) -> Result<(u32, Connect), Failure> {
        unimplemented!()
    }

    fn tcp_connected(&mut self, _: &mut u32) -> Result<(), Failure> {
        unimplemented!()
    }

    fn tcp_accept(&mut self, _: u32, _: FlowId) -> Result<Accepted<u32>, Failure> {
        unimplemented!()
    }

    fn peeks_at_offset(&self, _: IpAddr) -> bool {
        unimplemented!()
    }

    fn tcp_peek(&mut self, _: &mut u32, _: u32, _: &[VolatileSlice<'_>]) -> Result<usize, Failure> {
        unimplemented!()
    }

    fn tcp_discard(&mut self, _: &mut u32, _: u32) -> Result<(), Failure> {
        unimplemented!()
    }

    fn tcp_send(&mut self, _: &mut u32, _: &[VolatileSlice<'_>]) -> Result<usize, Failure> {
        unimplemented!()
    }

    fn tcp_send_room(&mut self, _: &mut u32) -> u32 {
        unimplemented!()
    }

    fn tcp_watch_room(&mut self, _: FlowId, _: &mut u32) {
        unreachable!()
    }

    fn tcp_shutdown(&mut self, _: &mut u32) -> Result<(), Failure> {
        unimplemented!()
    }

    fn tcp_error(&mut self, _: &mut u32) -> Option<Failure> {
        unimplemented!()
    }

    fn tcp_keepalive(&mut self, _: &mut u32) {
        unimplemented!()
    }

    fn udp_published(&mut self, _: u32, _: FlowId) -> Result<u32, Failure> {
        unimplemented!()
    }

    fn ping_open(&mut self, _: FlowId, _: IpAddr) -> Result<u32, Failure> {
        unimplemented!()
    }

    fn ping_send(
        &mut self,
        _: &mut u32,
        _: IpAddr,
        _: DatagramMeta,
        _: u16,
        _: &[u8],
    ) -> Result<(), Failure> {
        unimplemented!()
    }

    fn ping_receive(&mut self, _: &mut u32, _: &mut [u8]) -> Result<PingReply, Failure> {
        unimplemented!()
    }
}
