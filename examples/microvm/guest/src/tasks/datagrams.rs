//! The tasks of sending and of receiving UDP datagrams.

use smoltcp::iface::{SocketHandle, SocketSet, SocketStorage};
use smoltcp::socket::udp::{PacketBuffer, PacketMetadata, Socket};
use smoltcp::wire::Ipv4Address;

use super::{Net, NetworkStack, TaskFailure};

/// Length of the socket's queues in datagrams.
const QUEUE: usize = 192;

/// Length in bytes of each datagram. The server's last datagram has another length.
const LEN: usize = 64;

/// UDP port of the guest.
const PORT: u16 = 5000;

/// Sends datagrams to the server, and returns their number.
pub(super) fn send<N: Net>(
    world: &mut NetworkStack<N>,
    server: (Ipv4Address, u16),
    count: u32,
) -> Result<u32, TaskFailure> {
    let mut sent = 0;
    exchange(world, |world, sockets, handle| {
        world.until(sockets, |sockets| {
            let socket = sockets.get_mut::<Socket<'_>>(handle);
            while sent < count && socket.send_slice(&[0x55; LEN], server).is_ok() {
                sent += 1;
            }
            (socket.send_queue() == 0).then_some(())
        })
    })?;
    Ok(sent)
}

/// Requests datagrams from the server, and returns the number of those that have arrived.
pub(super) fn receive<N: Net>(
    world: &mut NetworkStack<N>,
    server: (Ipv4Address, u16),
    count: u32,
) -> Result<u32, TaskFailure> {
    let mut received = 0;
    exchange(world, |world, sockets, handle| {
        sockets
            .get_mut::<Socket<'_>>(handle)
            .send_slice(&count.to_le_bytes(), server)
            .map_err(|_| TaskFailure::Text("cannot request datagrams"))?;
        world.until(sockets, |sockets| {
            let socket = sockets.get_mut::<Socket<'_>>(handle);
            while let Ok((datagram, _)) = socket.recv() {
                if datagram.len() != LEN {
                    return Some(());
                }
                received += 1;
            }
            None
        })
    })?;
    Ok(received)
}

/// Calls `work` with a bound UDP socket.
fn exchange<N: Net>(
    world: &mut NetworkStack<N>,
    work: impl FnOnce(&mut NetworkStack<N>, &mut SocketSet<'_>, SocketHandle) -> Result<(), TaskFailure>,
) -> Result<(), TaskFailure> {
    let (mut sent, mut received) = ([PacketMetadata::EMPTY; QUEUE], [PacketMetadata::EMPTY; QUEUE]);
    let (mut out, mut back) = ([0; QUEUE * LEN], [0; QUEUE * LEN]);
    let mut storage = [SocketStorage::EMPTY];
    let mut sockets = SocketSet::new(&mut storage[..]);
    let mut socket = Socket::new(
        PacketBuffer::new(&mut received[..], &mut back[..]),
        PacketBuffer::new(&mut sent[..], &mut out[..]),
    );
    socket
        .bind(PORT)
        .map_err(|_| TaskFailure::Text("cannot bind to a port"))?;
    let handle = sockets.add(socket);
    work(world, &mut sockets, handle)
}
