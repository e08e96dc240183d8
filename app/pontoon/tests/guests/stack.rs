//! The guest: smoltcp on a link.

use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::{tcp, udp};
use smoltcp::wire::{EthernetAddress, IpCidr};

use crate::links::Link;
use crate::{PATIENCE, server};

/// MTU of the guest, and the longest frame.
const MTU: usize = 1_500;
const FRAME: usize = MTU + 14;

/// A guest with IPv4.
pub(crate) struct Stack<L> {
    device: LinkDevice<L>,
    interface: Interface,
    sockets: SocketSet<'static>,
    begin: Instant,
}

struct LinkDevice<L>(L);
struct ReceivedFrame(Vec<u8>);
struct Sender<'a, L>(&'a mut L);

impl<L: Link> Device for LinkDevice<L> {
    type RxToken<'a>
        = ReceivedFrame
    where
        L: 'a;
    type TxToken<'a>
        = Sender<'a, L>
    where
        L: 'a;

    fn receive(&mut self, _: smoltcp::time::Instant) -> Option<(ReceivedFrame, Sender<'_, L>)> {
        let frame = self.0.receive()?;
        Some((ReceivedFrame(frame), Sender(&mut self.0)))
    }

    fn transmit(&mut self, _: smoltcp::time::Instant) -> Option<Sender<'_, L>> {
        Some(Sender(&mut self.0))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME;
        if self.0.completes_checksums() {
            capabilities.checksum.tcp = Checksum::Rx;
            capabilities.checksum.udp = Checksum::Rx;
        }
        capabilities
    }
}

impl RxToken for ReceivedFrame {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

impl<L: Link> TxToken for Sender<'_, L> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let mut frame = vec![0; len];
        let result = fill(&mut frame);
        self.0.send(&frame);
        result
    }
}

impl<L: Link> Stack<L> {
    pub(crate) fn new(link: L, address: Ipv4Addr, gateway: Ipv4Addr) -> Self {
        let mut device = LinkDevice(link);
        let mac = EthernetAddress([2, 0, 0, 0, 0, 1]);
        let now = smoltcp::time::Instant::ZERO;
        let mut interface = Interface::new(Config::new(mac.into()), &mut device, now);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(address.into(), 24)).unwrap();
        });
        interface.routes_mut().add_default_ipv4_route(gateway).unwrap();
        Self {
            device,
            interface,
            sockets: SocketSet::new(Vec::new()),
            begin: Instant::now(),
        }
    }

    /// Receives and sends what is pending.
    pub(crate) fn poll(&mut self) {
        let now = i64::try_from(self.begin.elapsed().as_micros()).unwrap();
        let now = smoltcp::time::Instant::from_micros(now);
        self.interface.poll(now, &mut self.device, &mut self.sockets);
    }

    /// Runs the guest, and `turn` for the network, until `done` returns a value.
    fn run<T>(&mut self, turn: &mut impl FnMut(), mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.poll();
            turn();
            if let Some(result) = done(self) {
                return result;
            }
            assert!(Instant::now() < deadline, "the guest waits for too long");
            thread::sleep(Duration::from_micros(50));
        }
    }

    /// Resolves a name by the server at `server`.
    pub(crate) fn resolve(&mut self, server: SocketAddr, turn: &mut impl FnMut()) -> Ipv4Addr {
        let buffer = || udp::PacketBuffer::new(vec![udp::PacketMetadata::EMPTY; 4], vec![0; 4096]);
        let mut socket = udp::Socket::new(buffer(), buffer());
        socket.bind(40_000).unwrap();
        socket
            .send_slice(&server::query(), smoltcp::wire::IpEndpoint::from(server))
            .unwrap();
        let handle = self.sockets.add(socket);
        let reply = self.run(turn, |stack| {
            let socket = stack.sockets.get_mut::<udp::Socket<'_>>(handle);
            socket.recv().ok().map(|(reply, _)| reply.to_vec())
        });
        self.sockets.remove(handle);
        server::address(&reply)
    }

    fn connection(&mut self) -> SocketHandle {
        let buffer = || tcp::SocketBuffer::new(vec![0; 64 << 10]);
        self.sockets.add(tcp::Socket::new(buffer(), buffer()))
    }

    fn tcp(&mut self, handle: SocketHandle) -> &mut tcp::Socket<'static> {
        self.sockets.get_mut(handle)
    }

    /// Requests a page of the web server at `server`, and returns the response.
    pub(crate) fn get(&mut self, server: SocketAddr, turn: &mut impl FnMut()) -> Vec<u8> {
        let handle = self.connection();
        let socket = self.sockets.get_mut::<tcp::Socket<'_>>(handle);
        let endpoint = smoltcp::wire::IpEndpoint::from(server);
        socket
            .connect(self.interface.context(), endpoint, 40_001)
            .unwrap();
        self.run(turn, |stack| stack.tcp(handle).may_send().then_some(()));
        self.tcp(handle).send_slice(b"GET / HTTP/1.0\r\n\r\n").unwrap();
        let mut response = Vec::new();
        self.run(turn, |stack| {
            let socket = stack.tcp(handle);
            while socket.can_recv() {
                socket
                    .recv(|bytes| {
                        response.extend_from_slice(bytes);
                        (bytes.len(), ())
                    })
                    .unwrap();
            }
            (!socket.may_recv()).then_some(())
        });
        self.tcp(handle).close();
        response
    }

    /// Accepts one client at `port`, which sends `expected`, and sends it `reply`.
    pub(crate) fn serve(&mut self, port: u16, expected: &[u8], reply: &[u8], turn: &mut impl FnMut()) {
        let handle = self.connection();
        self.tcp(handle).listen(port).unwrap();
        let mut received = Vec::new();
        self.run(turn, |stack| {
            let socket = stack.tcp(handle);
            if socket.can_recv() {
                socket
                    .recv(|bytes| {
                        received.extend_from_slice(bytes);
                        (bytes.len(), ())
                    })
                    .unwrap();
            }
            (received.len() >= expected.len()).then_some(())
        });
        assert_eq!(received, expected);
        self.tcp(handle).send_slice(reply).unwrap();
        self.tcp(handle).close();
        self.run(turn, |stack| (stack.tcp(handle).send_queue() == 0).then_some(()));
    }
}
