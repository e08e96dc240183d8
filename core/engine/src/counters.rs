//! Event counters: the tests' oracle and the source of every statistic.

/// Declares a structure of counters or gauges, and the list of their names and meanings, which is its documentation.
///
/// Every statistic is derived from the list: the words in shared memory, the metrics, the replies of the control socket.
#[macro_export]
macro_rules! counters {
    ($(#[$meta:meta])* pub struct $Type:ident { $($(#[doc = $doc:literal])* $name:ident,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $Type {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        impl $Type {
            /// The number of values.
            pub const COUNT: usize = [$(stringify!($name)),*].len();

            /// Adds another worker's values.
            pub fn add(&mut self, other: &Self) {
                $(self.$name = self.$name.saturating_add(other.$name);)*
            }

            /// Names and what they count, in the order of declaration.
            pub fn describe() -> impl Iterator<Item = (&'static str, &'static str)> {
                [$((stringify!($name), concat!($($doc),*)),)*].into_iter()
            }

            /// Values, in the order of declaration.
            #[must_use]
            pub const fn values(&self) -> [u64; Self::COUNT] {
                [$(self.$name),*]
            }

            /// The opposite of [`Self::values`].
            #[must_use]
            pub const fn from_values(values: [u64; Self::COUNT]) -> Self {
                let [$($name),*] = values;
                Self { $($name),* }
            }

            /// Names and values, in the order of declaration.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// One worker's counts since it started.
    pub struct Counters {
        /// Frames received from the guest.
        frames_up,
        /// Frames handed to the worker that owns their flow.
        handed_over,
        /// Frames dropped on the way to the worker that owns their flow: its inbox was full, or the flow had moved.
        hand_overs_lost,
        /// Frames sent to the guest.
        frames_down,
        /// Frames that the link refused.
        link_refused,
        /// Frames whose headers contradict themselves or are cut short, and reassembled datagrams with a wrong checksum.
        malformed,
        /// Frames of a protocol that is not carried.
        unknown_protocol,
        /// Packets from an address that is no valid source.
        bad_source,
        /// Packets to a destination that policy refuses.
        policy_refused,
        /// Flows refused because `--max-flows` or `--max-flow-rate` is reached.
        flows_refused,
        /// Times that data for the guest was delayed by `--max-bandwidth`.
        held_back,
        /// Flows refused or dropped because the host was out of descriptors or memory.
        host_exhausted,
        /// TCP connections opened by the guest.
        tcp_opened,
        /// TCP connections accepted on published ports.
        tcp_accepted,
        /// Clients of a published TCP port reset because the port's clients have three fourths of `--max-flows`.
        tcp_share_refused,
        /// Connects that the host refused or that timed out.
        tcp_connect_failed,
        /// TCP segments of no known connection, answered by a reset.
        tcp_unknown,
        /// Flows ended by the guest's reset.
        tcp_reset_by_guest,
        /// Flows ended by an error of the host connection.
        tcp_reset_by_host,
        /// Keepalive probes sent to the guest on idle connections.
        tcp_keepalives,
        /// Connections reset because the guest answered no keepalive probe.
        tcp_guest_silent,
        /// Half-closed connections reset to make room for a new flow.
        tcp_half_closed_evicted,
        /// Connections reset because the guest did not read its data and stalled connections held too much host memory.
        tcp_stalled_evicted,
        /// Segments retransmitted to the guest.
        tcp_retransmits,
        /// Retransmission timeouts.
        tcp_timeouts,
        /// Times that a router behind the guest asked for smaller segments.
        tcp_too_big,
        /// Segments outside the window or not acceptable, answered by an acknowledgement (RFC 5961).
        tcp_challenges,
        /// Challenge acknowledgements not sent, as the connection had sent one shortly before (RFC 5961 section 7).
        tcp_challenges_withheld,
        /// Segments kept out of order.
        tcp_out_of_order,
        /// Segments dropped because the buffer pool was full.
        tcp_pool_empty,
        /// Bytes from the guest that the host socket had no room for, kept in the buffer pool.
        tcp_spilled_bytes,
        /// UDP datagrams from the guest sent by the host.
        udp_up,
        /// UDP datagrams sent to the guest.
        udp_down,
        /// Sends of several datagrams at once.
        udp_batches_up,
        /// UDP datagrams that the host refused to send.
        udp_send_failed,
        /// Datagrams to a guest endpoint from a sender that it had not addressed.
        udp_unsolicited,
        /// UDP endpoints evicted for a newer flow, as `--max-flows` or `--max-udp-ports` was reached.
        udp_evicted,
        /// ICMP errors sent to the guest.
        icmp_errors_down,
        /// Echo requests sent by the host.
        ping_up,
        /// Echo replies sent to the guest.
        ping_down,
        /// Echo requests for which the host gave no socket: neither a ping socket nor a raw one.
        ping_prohibited,
        /// Echo ids evicted for a newer flow, as `--max-flows` or the number of ids was reached.
        ping_evicted,
        /// Echo requests that the host did not send.
        ping_failed,
        /// Fragments received from the guest.
        fragments_up,
        /// Datagrams reassembled from fragments.
        reassembled,
        /// Fragments dropped: overlap, timeout, or no room.
        fragments_dropped,
        /// DNS queries accepted by the forwarder.
        dns_queries,
        /// DNS messages of an operation other than QUERY: over UDP answered NOTIMP, over TCP the connection is reset.
        dns_unsupported,
        /// DNS queries that no resolver answered in time.
        dns_failed,
        /// DNS queries sent to another resolver after one was silent or declined.
        dns_failovers,
        /// DNS queries dropped because too many are waiting.
        dns_dropped,
        /// Datagrams to the forwarder that match no pending query.
        dns_mismatched,
        /// Frames and events whose handling panicked; the flow that they concerned was reset.
        panics,
    }
}
