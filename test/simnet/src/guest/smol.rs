//! A guest with smoltcp's sockets, which are an implementation of TCP independent of the engine.
//!
//! smoltcp runs without Ethernet and so without neighbour discovery; this module adds and removes the Ethernet
//! headers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use pontoon_engine::Instant;
use pontoon_wire::frame::Flags;
use pontoon_wire::vnet::Offload;
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::wire::{HardwareAddress, IpCidr};

use super::{Addressing, Guest, GuestCall, GuestListener, GuestReport};
use crate::app::{AppAction, ConnectionEnd, Script, SimApp};
use crate::clock::earlier;
use crate::frames::{ETHERNET, Packet, Segment};
use crate::pattern;
use crate::rng::Rng;
use crate::streams;

/// A guest with smoltcp's TCP stack.
pub struct Smol {
    addressing: Addressing,
    interface: Interface,
    sockets: SocketSet<'static>,
    device: PacketQueue,
    conns: Vec<SmolConnection>,
    receive_buffer: usize,
    send_buffer: usize,
    rng: Rng,
    /// Observed segments of each connection, by guest port.
    exchange: BTreeMap<u16, ObservedConnection>,
    /// Guest ports of connections on which smoltcp has sent more than the engine's window: its fast retransmit
    /// ignores the window, and it never retransmits data that it has sent beyond a window that closed.
    overran: BTreeSet<u16>,
    wrong: Vec<String>,
}

/// Sequence numbers and windows observed on one connection, and the number of duplicates of the engine's last bare
/// acknowledgement.
#[derive(Default)]
struct ObservedConnection {
    /// The guest's most recent acknowledgement number.
    acknowledged: u32,
    /// Right edge of the guest's window, as a sequence number.
    allowed: u32,
    /// Window scale that the guest has offered.
    own_scale: u8,
    /// Acknowledgement number of the engine's last bare acknowledgement.
    ack: u32,
    window: u16,
    /// Number of duplicates of that acknowledgement.
    count: u32,
    /// Window scale that the engine has offered.
    scale: u8,
    /// Right edge of the engine's window, as a sequence number.
    edge: u32,
}

/// A connection or listener of the guest: smoltcp's socket, and the application on it.
struct SmolConnection {
    handle: SocketHandle,
    /// The connection to open; `None` for a listener.
    call: Option<GuestCall>,
    port: u16,
    script: Script,
    app: Option<SimApp>,
    called: bool,
    /// True if the other side's FIN was received.
    ended: bool,
    refused: bool,
    /// Number of bytes read from smoltcp's socket.
    arrived: u64,
    /// Number of these bytes that the application has not read yet.
    backlog: u64,
    send_stream: u64,
    receive_stream: u64,
}

/// The side of a connection that a smoltcp stack simulates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The guest's side of a connection, in front of the engine.
    Guest,
    /// The host, in tests of two smoltcp stacks without an engine.
    Host,
}

impl Smol {
    /// Returns a smoltcp guest without connections.
    #[must_use]
    pub fn new(
        addressing: Addressing,
        mtu: usize,
        receive_buffer: usize,
        send_buffer: usize,
        mut rng: Rng,
    ) -> Self {
        let mut device = PacketQueue {
            input: VecDeque::new(),
            output: Vec::new(),
            mtu,
        };
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = rng.number();
        let mut interface = Interface::new(config, &mut device, smoltcp::time::Instant::ZERO);
        interface.update_ip_addrs(|list| {
            for address in addressing.addresses {
                let prefix = if address.is_ipv4() { 24 } else { 64 };
                list.push(IpCidr::new(address.into(), prefix))
                    .expect("smoltcp holds two addresses");
            }
        });
        let routes = interface.routes_mut();
        for address in addressing.addresses {
            // Without a link layer the gateway's address is unused, but smoltcp requires the route.
            match address {
                core::net::IpAddr::V4(own) => routes.add_default_ipv4_route(own).map(drop),
                core::net::IpAddr::V6(own) => routes.add_default_ipv6_route(own).map(drop),
            }
            .expect("smoltcp holds two routes");
        }
        Self {
            addressing,
            interface,
            sockets: SocketSet::new(Vec::new()),
            device,
            conns: Vec::new(),
            receive_buffer,
            send_buffer,
            rng,
            exchange: BTreeMap::new(),
            overran: BTreeSet::new(),
            wrong: Vec::new(),
        }
    }

    /// Accepts a connection on the listener's port, with the stream contents of `side`.
    pub fn listen_as(&mut self, listener: GuestListener, side: Side) {
        let handle = self.socket();
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(handle);
        socket.listen(listener.port).expect("the port is not 0");
        self.conns.push(SmolConnection::new(
            handle,
            None,
            listener.port,
            listener.script,
            side,
        ));
    }

    fn socket(&mut self) -> SocketHandle {
        let receive = tcp::SocketBuffer::new(vec![0; self.receive_buffer]);
        let send = tcp::SocketBuffer::new(vec![0; self.send_buffer]);
        self.sockets.add(tcp::Socket::new(receive, send))
    }

    /// Records a frame that arrives at the guest, and detects those that make smoltcp 0.14 stall forever, which is
    /// not a defect of the engine.
    fn note_received(&mut self, frame: &[u8]) -> FrameEffect {
        let Ok((_, Packet::Tcp(segment))) = Packet::parse(Offload::NONE, frame) else {
            return FrameEffect::Harmless;
        };
        let seen = self.exchange.entry(segment.to.port()).or_default();
        if seen.is_old_zero_window(&segment) {
            return FrameEffect::Stall;
        }
        seen.count_repeat(&segment)
    }

    /// Records a frame that smoltcp sends: its acknowledgement number, and whether its data exceeds the engine's
    /// window.
    fn note_sent(&mut self, frame: &[u8]) {
        let Ok((_, Packet::Tcp(segment))) = Packet::parse(Offload::NONE, frame) else {
            return;
        };
        let port = segment.from.port();
        let exchange = self.exchange.entry(port).or_default();
        if segment.flags.has(Flags::SYN) {
            exchange.own_scale = segment.window_scale.unwrap_or(0);
        }
        if segment.flags.has(Flags::ACK) {
            exchange.acknowledged = segment.ack;
            exchange.allowed = edge(&segment, exchange.own_scale);
        }
        if segment.payload.len() > 1 && segment.end().wrapping_sub(exchange.edge) as i32 > 0 {
            self.overran.insert(port);
        }
    }

    fn run_apps(&mut self, now: Instant) -> AppProgress {
        let mut progress = AppProgress::None;
        for conn in &mut self.conns {
            let socket = self.sockets.get_mut::<tcp::Socket<'_>>(conn.handle);
            if let Some(call) = &conn.call
                && !conn.called
            {
                if call.at > now {
                    continue;
                }
                conn.called = true;
                let local = (self.addressing.own(call.to.ip()), call.from);
                socket
                    .connect(self.interface.context(), call.to, local)
                    .expect("addresses and ports are set");
                progress = AppProgress::Made;
            }
            let run = conn.run(socket, &mut self.rng, now, &mut self.wrong);
            progress = progress.max(run);
        }
        progress
    }
}

/// The effect of a frame on smoltcp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameEffect {
    /// smoltcp processes the frame correctly.
    Harmless,
    /// smoltcp would stall forever.
    Stall,
}

/// The result of running the applications of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum AppProgress {
    /// No application has called its socket.
    None,
    /// An application has called its socket, so smoltcp has to be polled again.
    Made,
}

impl ObservedConnection {
    /// Returns true for a segment with an old sequence number and a window of zero. smoltcp updates its send window
    /// even from older segments (which SND.WL1 of RFC 9293 section 3.10.7.4 prevents), and does not probe a closed
    /// window while data is in flight.
    fn is_old_zero_window(&self, segment: &Segment) -> bool {
        let behind = (segment.ack.wrapping_sub(self.edge) as i32) < 0;
        segment.window == 0 && behind && !segment.flags.has(Flags::SYN) && !segment.flags.has(Flags::RST)
    }

    /// Counts duplicates of an acknowledgement. smoltcp answers the third duplicate by a fast retransmit; if only a
    /// FIN is unacknowledged, it sends nothing and stops its timer, so that the FIN is lost forever. Duplicates that
    /// report a gap in the data have SACK blocks and are delivered.
    fn count_repeat(&mut self, segment: &Segment) -> FrameEffect {
        let begins = segment.flags.has(Flags::SYN);
        if begins {
            self.scale = segment.window_scale.unwrap_or(0);
        }
        let edge = edge(segment, self.scale);
        if begins || edge.wrapping_sub(self.edge) as i32 > 0 {
            self.edge = edge;
        }
        // A window probe has an older sequence number, and smoltcp must answer it.
        let bare = segment.flags == Flags::ACK && segment.span() == 0 && segment.sack.is_empty();
        if !bare || (segment.seq.wrapping_sub(self.acknowledged) as i32) < 0 {
            return FrameEffect::Harmless;
        }
        // smoltcp ignores segments beyond its window, so they are not duplicates for it.
        if (segment.seq.wrapping_sub(self.allowed) as i32) >= 0 {
            return FrameEffect::Harmless;
        }
        if (self.ack, self.window) != (segment.ack, segment.window) {
            (self.ack, self.window, self.count) = (segment.ack, segment.window, 0);
        }
        self.count += 1;
        match self.count {
            ..=2 => FrameEffect::Harmless,
            _ => FrameEffect::Stall,
        }
    }
}

/// Returns the right edge of a segment's window. The window of a SYN is not scaled (RFC 7323 section 2.2).
fn edge(segment: &Segment, scale: u8) -> u32 {
    let shift = if segment.flags.has(Flags::SYN) { 0 } else { scale };
    segment.ack.wrapping_add(u32::from(segment.window) << shift)
}

impl SmolConnection {
    fn new(handle: SocketHandle, call: Option<GuestCall>, port: u16, script: Script, side: Side) -> Self {
        let (send_stream, receive_stream) = match side {
            Side::Guest => (streams::up(port), streams::down(port)),
            Side::Host => (streams::down(port), streams::up(port)),
        };
        Self {
            handle,
            call,
            port,
            script,
            app: None,
            called: false,
            ended: false,
            refused: false,
            arrived: 0,
            backlog: 0,
            send_stream,
            receive_stream,
        }
    }

    fn run(
        &mut self,
        socket: &mut tcp::Socket<'_>,
        rng: &mut Rng,
        now: Instant,
        wrong: &mut Vec<String>,
    ) -> AppProgress {
        use tcp::State::{CloseWait, Closed, Closing, LastAck, Listen, SynReceived, SynSent, TimeWait};
        let state = socket.state();
        self.ended |= matches!(state, CloseWait | LastAck | Closing | TimeWait);
        if self.app.is_none() {
            if matches!(state, Listen | SynSent | SynReceived) {
                return AppProgress::None;
            }
            if state == Closed {
                self.refused = self.called;
                return AppProgress::None;
            }
            self.app = Some(SimApp::new(self.script.clone(), rng.fork(), now));
        }
        let Some(app) = &mut self.app else {
            return AppProgress::None;
        };
        let mut moved = false;
        if state == Closed && !(self.ended && app.closed()) {
            app.was_reset(ConnectionEnd::Reset);
            return AppProgress::None;
        }
        let read = app.read(self.backlog + socket.recv_queue() as u64, now);
        let from_backlog = read.min(self.backlog);
        self.backlog -= from_backlog;
        let mut pull = read - from_backlog;
        if state == TimeWait {
            // smoltcp discards unread data at the end of TIME-WAIT, so all data is read before.
            self.backlog += socket.recv_queue() as u64 - pull;
            pull = socket.recv_queue() as u64;
        }
        let mut buffer = vec![0; pull as usize];
        let mut done = 0;
        while done < buffer.len() {
            done += socket
                .recv_slice(&mut buffer[done..])
                .expect("the queue holds it");
        }
        if let Some(at) = pattern::mismatch(self.receive_stream, self.arrived, &buffer) {
            wrong.push(format!(
                "port {}: byte {at} towards the guest is wrong",
                self.port
            ));
        }
        self.arrived += pull;
        moved |= read > 0;
        if self.ended && self.backlog == 0 && socket.recv_queue() == 0 && !app.saw_end() {
            app.peer_ended(now);
            moved = true;
        }
        if socket.may_send() {
            let at = app.sent();
            let room = socket.send_capacity() - socket.send_queue();
            let len = app.write(room as u64, now);
            let bytes = pattern::bytes(self.send_stream, at, len as usize);
            let mut done = 0;
            while done < bytes.len() {
                done += socket.send_slice(&bytes[done..]).expect("it may send");
            }
            moved |= len > 0;
        }
        match app.act(now) {
            AppAction::None => {}
            AppAction::Close => {
                socket.close();
                moved = true;
            }
            AppAction::Reset => {
                socket.abort();
                moved = true;
            }
        }
        match moved {
            true => AppProgress::Made,
            false => AppProgress::None,
        }
    }

    fn local_port(&self) -> u16 {
        self.call.as_ref().map_or(self.port, |call| call.from)
    }

    fn outcome(&self) -> Option<ConnectionEnd> {
        if self.refused {
            return Some(ConnectionEnd::Refused);
        }
        self.app.as_ref().and_then(SimApp::outcome)
    }
}

impl Guest for Smol {
    fn call(&mut self, call: GuestCall) {
        let handle = self.socket();
        let (port, script) = (call.to.port(), call.script.clone());
        self.conns
            .push(SmolConnection::new(handle, Some(call), port, script, Side::Guest));
    }

    fn listen(&mut self, listener: GuestListener) {
        self.listen_as(listener, Side::Guest);
    }

    fn receive(&mut self, frame: &[u8], _now: Instant) {
        let is_ip = frame.len() > ETHERNET && matches!(frame[12..14], [0x08, 0x00] | [0x86, 0xdd]);
        if !is_ip {
            return;
        }
        let effect = self.note_received(frame);
        if effect == FrameEffect::Harmless {
            self.device.input.push_back(frame[ETHERNET..].to_vec());
        }
    }

    fn poll(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let time = smoltcp_time(now);
        for _ in 0..64 {
            let polled = self.interface.poll(time, &mut self.device, &mut self.sockets);
            let progress = self.run_apps(now);
            if progress == AppProgress::None && polled == PollResult::None {
                break;
            }
        }
        let ether = self.addressing.ether();
        let add_header = |packet: Vec<u8>| {
            let ethertype: [u8; 2] = if packet[0] >> 4 == 4 {
                [0x08, 0x00]
            } else {
                [0x86, 0xdd]
            };
            [&ether.destination.0[..], &ether.source.0, &ethertype, &packet].concat()
        };
        let frames: Vec<_> = self.device.output.drain(..).map(add_header).collect();
        for frame in &frames {
            self.note_sent(frame);
        }
        frames
    }

    fn next(&mut self, now: Instant) -> Option<Instant> {
        let mut next = self
            .interface
            .poll_at(smoltcp_time(now), &self.sockets)
            .map(|at| Instant(at.total_micros() as u64 * 1000));
        for conn in &self.conns {
            let socket = self.sockets.get::<tcp::Socket<'_>>(conn.handle);
            let room = if socket.may_send() {
                socket.send_capacity() - socket.send_queue()
            } else {
                0
            };
            let app = conn
                .app
                .as_ref()
                .and_then(|app| app.next(conn.backlog + socket.recv_queue() as u64, room as u64));
            let call = conn.call.as_ref().filter(|_| !conn.called).map(|call| call.at);
            next = earlier(next, earlier(app, call));
        }
        next.map(|at| at.max(now + core::time::Duration::from_micros(1)))
    }

    fn reports(&self) -> Vec<GuestReport> {
        self.conns
            .iter()
            .filter(|conn| conn.call.is_some() || conn.app.is_some())
            .map(|conn| GuestReport {
                port: conn.port,
                app: conn.app.clone(),
                outcome: conn.outcome(),
                broken: self.overran.contains(&conn.local_port()),
            })
            .collect()
    }

    fn wrong(&self) -> &[String] {
        &self.wrong
    }
}

fn smoltcp_time(now: Instant) -> smoltcp::time::Instant {
    smoltcp::time::Instant::from_micros((now.0 / 1000) as i64)
}

/// A network device for smoltcp with queues of packets. smoltcp computes and verifies all checksums.
struct PacketQueue {
    input: VecDeque<Vec<u8>>,
    output: Vec<Vec<u8>>,
    mtu: usize,
}

impl Device for PacketQueue {
    type RxToken<'a> = ReceivedPacket;
    type TxToken<'a> = OutgoingPackets<'a>;

    fn receive(&mut self, _time: smoltcp::time::Instant) -> Option<(ReceivedPacket, OutgoingPackets<'_>)> {
        let packet = self.input.pop_front()?;
        Some((ReceivedPacket(packet), OutgoingPackets(&mut self.output)))
    }

    fn transmit(&mut self, _time: smoltcp::time::Instant) -> Option<OutgoingPackets<'_>> {
        Some(OutgoingPackets(&mut self.output))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = self.mtu;
        capabilities
    }
}

/// A received packet, for smoltcp's trait `RxToken`.
struct ReceivedPacket(Vec<u8>);

impl RxToken for ReceivedPacket {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(&self.0)
    }
}

/// The queue of packets to send, for smoltcp's trait `TxToken`.
struct OutgoingPackets<'a>(&'a mut Vec<Vec<u8>>);

impl TxToken for OutgoingPackets<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let mut packet = vec![0; len];
        let result = f(&mut packet);
        self.0.push(packet);
        result
    }
}
