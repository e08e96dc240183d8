//! The task of sending ICMP echo requests and receiving the replies.

use smoltcp::iface::{SocketSet, SocketStorage};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::socket::icmp::{Endpoint, PacketBuffer, PacketMetadata, Socket};
use smoltcp::wire::{Icmpv4Packet, Icmpv4Repr, Ipv4Address};

use super::{Net, NetworkStack, TaskFailure};

const IDENT: u16 = 0x706f;
const DATA: &[u8] = b"across a floating bridge";

/// Sends `count` echo requests to `target`, and returns the number of replies.
pub(super) fn ping<N: Net>(
    world: &mut NetworkStack<N>,
    target: Ipv4Address,
    count: u32,
) -> Result<u32, TaskFailure> {
    let (mut requests, mut replies) = ([PacketMetadata::EMPTY], [PacketMetadata::EMPTY]);
    let (mut out, mut back) = ([0; 64], [0; 64]);
    let mut storage = [SocketStorage::EMPTY];
    let mut sockets = SocketSet::new(&mut storage[..]);
    let mut socket = Socket::new(
        PacketBuffer::new(&mut replies[..], &mut back[..]),
        PacketBuffer::new(&mut requests[..], &mut out[..]),
    );
    socket
        .bind(Endpoint::Ident(IDENT))
        .map_err(|_| TaskFailure::Text("cannot bind to an echo id"))?;
    let handle = sockets.add(socket);

    let checksums = ChecksumCapabilities::default();
    for number in 0..count {
        let request = Icmpv4Repr::EchoRequest {
            ident: IDENT,
            seq_no: number as u16,
            data: DATA,
        };
        let room = sockets
            .get_mut::<Socket<'_>>(handle)
            .send(request.buffer_len(), target.into())
            .map_err(|_| TaskFailure::Text("cannot send an echo request"))?;
        request.emit(&mut Icmpv4Packet::new_unchecked(room), &checksums);
        let expected = Icmpv4Repr::EchoReply {
            ident: IDENT,
            seq_no: number as u16,
            data: DATA,
        };
        world.until(&mut sockets, |sockets| {
            let (bytes, from) = sockets.get_mut::<Socket<'_>>(handle).recv().ok()?;
            let packet = Icmpv4Packet::new_checked(bytes).ok()?;
            let reply = Icmpv4Repr::parse(&packet, &checksums).ok()?;
            (reply == expected && from == target.into()).then_some(())
        })?;
    }
    Ok(count)
}
