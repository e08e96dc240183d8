//! Connections that broke for a reason of ours: a handler that panicked, an engine that died.

use pontoon_wire::frame::Flags;

use super::connection::ConnectionKey;
use super::{Tcp, open};
use crate::ctx::Ctx;
use crate::ledger::Ends;
use crate::{FlowId, Host, Transmit};

impl<S> Tcp<S> {
    /// Ends a connection at once on both sides, such as one whose handling panicked.
    pub fn close<H: Host<Socket = S>, T: Transmit>(&mut self, flow: FlowId, ctx: &mut Ctx<'_, H, T>) {
        if let Some(connection) = self.connections.get_mut(flow.index, flow.generation) {
            if let Some(socket) = connection.socket.take() {
                ctx.host.abort(socket);
            }
            self.reset(flow.index, ctx);
        }
    }

    /// Asks the guest where a connection stands that an engine before this one had.
    ///
    /// Whatever a segment says, one that is not in the window is answered by an acknowledgement (RFC 9293 section
    /// 3.10.7.4), and of two that are half the sequence space apart no window holds both.
    pub fn handle_orphan<H, T: Transmit>(&mut self, ends: Ends, ctx: &mut Ctx<'_, H, T>) {
        let key = ConnectionKey {
            guest: ends.guest,
            remote: ends.remote,
        };
        for seq in [0, 1 << 31] {
            open::send_stray(&key, seq, 0, Flags::ACK, ctx);
        }
    }
}
