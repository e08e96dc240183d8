//! The interface as a device (`phy`) of smoltcp.

use pontoon_ring::memory::Memory;
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;

use crate::{Interface, Platform};

/// An interface that implements smoltcp's trait `Device`, for frames of up to `F` bytes.
///
/// smoltcp's `poll` receives the frames that have arrived and queues those to be sent; then [`Interface::poll`] flushes
/// them with one notification, and waits. smoltcp does not receive errors: a device that violates the protocol appears
/// to send nothing, and the next [`Interface::poll`] returns the error.
///
/// ```no_run
/// # use pontoon_guest::{Interface, Phy, Platform};
/// # use pontoon_ring::memory::Memory;
/// use core::time::Duration;
/// use smoltcp::iface::SocketSet;
/// use smoltcp::time::Instant;
///
/// fn run<M: Memory, P: Platform>(
///     stack: &mut smoltcp::iface::Interface,
///     sockets: &mut SocketSet<'_>,
///     phy: &mut Phy<M, P, 256>,
/// ) -> Result<(), pontoon_guest::Error> {
///     loop {
///         let now = phy.interface().platform().now();
///         let moment = Instant::from_micros(now.as_micros() as i64);
///         stack.poll(moment, phy, sockets);
///         // Here the sockets have their turn.
///         let delay = stack.poll_delay(moment, sockets);
///         let deadline = delay.map(|delay| now + Duration::from_micros(delay.total_micros()));
///         phy.interface().poll(deadline)?;
///     }
/// }
/// ```
#[derive(Debug)]
pub struct Phy<M, P, const N: usize, const F: usize = 1514> {
    interface: Interface<M, P, N>,
    received: [u8; F],
    sent: [u8; F],
}

/// A received frame, as smoltcp's `RxToken`.
#[derive(Debug)]
pub struct Received<'p>(&'p [u8]);

/// Room for a frame to be sent, as smoltcp's `TxToken`.
#[derive(Debug)]
pub struct Sending<'p, M, P, const N: usize> {
    interface: &'p mut Interface<M, P, N>,
    frame: &'p mut [u8],
}

impl<M, P, const N: usize, const F: usize> Phy<M, P, N, F> {
    /// Creates a smoltcp device of `interface`, which must have been started.
    pub const fn new(interface: Interface<M, P, N>) -> Self {
        Self {
            interface,
            received: [0; F],
            sent: [0; F],
        }
    }

    /// Returns the interface, by which the program waits.
    pub fn interface(&mut self) -> &mut Interface<M, P, N> {
        &mut self.interface
    }

    fn sending(&mut self) -> (Sending<'_, M, P, N>, &[u8; F]) {
        let sending = Sending {
            interface: &mut self.interface,
            frame: &mut self.sent,
        };
        (sending, &self.received)
    }
}

impl<M: Memory, P: Platform, const N: usize, const F: usize> Device for Phy<M, P, N, F> {
    type RxToken<'p>
        = Received<'p>
    where
        Self: 'p;
    type TxToken<'p>
        = Sending<'p, M, P, N>
    where
        Self: 'p;

    fn receive(&mut self, _: Instant) -> Option<(Received<'_>, Sending<'_, M, P, N>)> {
        // smoltcp requires room for a reply together with each received frame.
        if !self.interface.poll_room().ok()? {
            return None;
        }
        let len = self.interface.read(&mut self.received).ok()??;
        let (sending, received) = self.sending();
        // A frame longer than `F` is dropped.
        Some((Received(received.get(..len)?), sending))
    }

    fn transmit(&mut self, _: Instant) -> Option<Sending<'_, M, P, N>> {
        if self.interface.poll_room().ok()? {
            Some(self.sending().0)
        } else {
            None
        }
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = self.interface.frame().min(F);
        capabilities.max_burst_size = Some(N);
        capabilities
    }
}

impl RxToken for Received<'_> {
    fn consume<R, C: FnOnce(&[u8]) -> R>(self, consumer: C) -> R {
        consumer(self.0)
    }
}

impl<M: Memory, P: Platform, const N: usize> TxToken for Sending<'_, M, P, N> {
    fn consume<R, C: FnOnce(&mut [u8]) -> R>(self, len: usize, producer: C) -> R {
        let frame = &mut self.frame[..len];
        let result = producer(frame);
        // There is room. Other errors are returned by the next poll of the interface.
        let _ = self.interface.queue(frame);
        result
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use smoltcp::iface::{Config, SocketSet, SocketStorage};
    use smoltcp::wire::{EthernetAddress, IpCidr, Ipv4Address};

    use super::*;
    use crate::Pacing;
    use crate::interface::tests::peer::{MAP, SharedMemory, open};

    const GUEST_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

    /// Returns a frame with an ARP message (RFC 826).
    fn arp(
        operation: u8,
        [from, to]: [[u8; 6]; 2],
        target: [u8; 6],
        [sender, wanted]: [u8; 2],
    ) -> std::vec::Vec<u8> {
        let mut frame = [to, from].concat();
        frame.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
        frame.extend(from);
        frame.extend([10, 0, 0, sender]);
        frame.extend(target);
        frame.extend([10, 0, 0, wanted]);
        frame
    }

    #[test]
    fn smoltcp_replies_to_arp() {
        let shared = SharedMemory::new();
        let (net, peer) = open(&shared, Pacing::Event, true);
        let mut phy = Phy::<_, _, 16>::new(net);
        let config = Config::new(EthernetAddress(GUEST_MAC).into());
        let mut stack = smoltcp::iface::Interface::new(config, &mut phy, Instant::ZERO);
        stack.update_ip_addrs(|addresses| {
            let address = IpCidr::new(Ipv4Address::new(10, 0, 0, 1).into(), 24);
            addresses.push(address).unwrap();
        });
        let mut sockets = SocketSet::new(&mut [] as &mut [SocketStorage<'_>]);
        for _ in 0..3 {
            peer.borrow_mut()
                .send(&arp(1, [PEER_MAC, [0xff; 6]], [0; 6], [2, 1]));
        }
        stack.poll(Instant::ZERO, &mut phy, &mut sockets);
        assert_eq!(peer.borrow_mut().rearm(), 0, "nothing was flushed");
        phy.interface().poll(Some(Duration::ZERO)).unwrap();
        let reply = arp(2, [GUEST_MAC, PEER_MAC], PEER_MAC, [1, 2]);
        assert_eq!(
            peer.borrow_mut().take_notifications(),
            [crate::Ring::Transmit],
            "one for all"
        );
        assert_eq!(peer.borrow_mut().take(), std::vec![reply; 3]);
    }

    #[test]
    fn frame_waits_for_room_for_a_reply() {
        let shared = SharedMemory::new();
        let (net, peer) = open(&shared, Pacing::Event, true);
        let mut phy = Phy::<_, _, 16>::new(net);
        peer.borrow_mut().send(b"question");
        for _ in 0..MAP.transmit().size {
            phy.interface().write(b"frame").unwrap();
        }
        assert!(phy.receive(Instant::ZERO).is_none());
        assert!(phy.transmit(Instant::ZERO).is_none());
        peer.borrow_mut().take();
        let (received, _) = phy.receive(Instant::ZERO).unwrap();
        received.consume(|frame| assert_eq!(frame, b"question"));
        let sending = phy.transmit(Instant::ZERO).unwrap();
        sending.consume(6, |frame| frame.copy_from_slice(b"second"));
        phy.interface().flush().unwrap();
        assert_eq!(peer.borrow_mut().take(), [b"second"]);
    }

    #[test]
    fn capabilities_match_the_map() {
        let shared = SharedMemory::new();
        let (net, _peer) = open(&shared, Pacing::Event, true);
        let capabilities = Phy::<_, _, 16, 600>::new(net).capabilities();
        assert_eq!(capabilities.max_transmission_unit, 600);
        assert_eq!(capabilities.max_burst_size, Some(16));
    }
}
