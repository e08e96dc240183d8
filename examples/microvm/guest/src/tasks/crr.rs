//! The task of connecting, exchanging a byte and closing (connect, request, response).

use smoltcp::iface::{SocketHandle, SocketSet, SocketStorage};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::wire::Ipv4Address;

use super::{Net, NetworkStack, TaskFailure};

/// First ephemeral port (RFC 6335, section 6).
const FIRST_PORT: u16 = 49_152;

/// Makes `count` connections one after another, and returns their number.
pub(super) fn crr<N: Net>(
    world: &mut NetworkStack<N>,
    server: (Ipv4Address, u16),
    count: u32,
) -> Result<u32, TaskFailure> {
    let (mut out, mut back) = ([0; 64], [0; 64]);
    let mut storage = [SocketStorage::EMPTY];
    let mut sockets = SocketSet::new(&mut storage[..]);
    let socket = Socket::new(SocketBuffer::new(&mut back[..]), SocketBuffer::new(&mut out[..]));
    let handle = sockets.add(socket);
    for number in 0..count {
        let port = FIRST_PORT + (number % 16_384) as u16;
        sockets
            .get_mut::<Socket<'_>>(handle)
            .connect(world.stack.context(), server, port)
            .map_err(|_| TaskFailure::Text("cannot connect"))?;
        exchange_byte(world, &mut sockets, handle, number as u8)?;
    }
    Ok(count)
}

/// Sends a byte on an open connection and receives the reply.
fn exchange_byte<N: Net>(
    world: &mut NetworkStack<N>,
    sockets: &mut SocketSet<'_>,
    handle: SocketHandle,
    request: u8,
) -> Result<(), TaskFailure> {
    world
        .until(sockets, |sockets| {
            let socket = sockets.get_mut::<Socket<'_>>(handle);
            socket.may_send().then(|| socket.send_slice(&[request]))
        })?
        .map_err(|_| TaskFailure::Text("the server has refused the connection"))?;
    let mut reply = [0];
    world
        .until(sockets, |sockets| {
            let socket = sockets.get_mut::<Socket<'_>>(handle);
            let result = socket.can_recv().then(|| socket.recv_slice(&mut reply));
            if result.is_some() {
                socket.close();
            }
            result
        })?
        .map_err(|_| TaskFailure::Text("the server has closed the connection"))?;
    if reply != [request] {
        return Err(TaskFailure::Text("the server sent another byte"));
    }
    world.until(sockets, |sockets| {
        let state = sockets.get::<Socket<'_>>(handle).state();
        matches!(state, State::TimeWait | State::Closed).then_some(())
    })
}
