//! Ends connections after a fault of the engine: a panic of a handler, or the exit of an engine process.

use pontoon_wire::frame::Flags;

use super::connection::ConnectionKey;
use super::{Tcp, stray};
use crate::ctx::Ctx;
use crate::flow_events::CloseReason;
use crate::ledger::Ends;
use crate::{FlowId, Host, Transmit};

impl<S> Tcp<S> {
    /// Resets a connection on both sides at once, for example after its handler has panicked.
    pub fn close<H: Host<Socket = S>, T: Transmit>(&mut self, flow: FlowId, ctx: &mut Ctx<'_, H, T>) {
        if let Some(connection) = self.connections.get_mut(flow.index, flow.generation) {
            connection.ends_by(CloseReason::Internal);
            if let Some(socket) = connection.socket.take() {
                ctx.host.abort(socket);
            }
            self.reset(flow.index, ctx);
        }
    }

    /// Probes the guest for the sequence number of a connection of an earlier engine process, to reset that connection.
    ///
    /// Any segment outside the receive window is answered by an acknowledgement (RFC 9293 section 3.10.7.4). Of two
    /// segments whose sequence numbers are half the sequence space apart, at least one is outside.
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
