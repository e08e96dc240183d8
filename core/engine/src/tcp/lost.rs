//! Connections that ended by a fault of the engine: a panic of a handler, or the exit of an engine.

use pontoon_wire::frame::Flags;

use super::connection::ConnectionKey;
use super::{Tcp, stray};
use crate::ctx::Ctx;
use crate::ledger::Ends;
use crate::{FlowId, Host, Transmit};

impl<S> Tcp<S> {
    /// Ends a connection at once on both sides, such as one whose handler panicked.
    pub fn close<H: Host<Socket = S>, T: Transmit>(&mut self, flow: FlowId, ctx: &mut Ctx<'_, H, T>) {
        if let Some(connection) = self.connections.get_mut(flow.index, flow.generation) {
            if let Some(socket) = connection.socket.take() {
                ctx.host.abort(socket);
            }
            self.reset(flow.index, ctx);
        }
    }

    /// Probes the guest for the sequence number of a connection of an earlier engine.
    ///
    /// Any segment outside the window is answered by an acknowledgement (RFC 9293 section 3.10.7.4), and of two segments that
    /// are half the sequence space apart at least one is outside.
    pub fn handle_orphan<H, T: Transmit>(&mut self, ends: Ends, ctx: &mut Ctx<'_, H, T>) {
        let key = ConnectionKey {
            guest: ends.guest,
            remote: ends.remote,
        };
        for seq in [0, 1 << 31] {
            stray::send_stray(&key, seq, 0, Flags::ACK, ctx);
        }
    }
}
