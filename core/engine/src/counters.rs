//! Event counters of the engine. Tests compare them exactly, and all statistics are computed from them.

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

            /// Returns the name and the description of each counter, in the order of declaration.
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

            /// Returns the name and the value of each counter, in the order of declaration.
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
    /// Frames handed over to the worker that owns their flow.
        handed_over,
    /// Frames lost in the hand-over to the owner of their flow: its inbox was full, or it no longer owned the flow.
        hand_overs_lost,
    /// Frames sent to the guest.
        frames_down,
    /// Frames to the guest that the link did not accept.
        link_refused,
    /// Packets with inconsistent or truncated headers, malformed messages, and reassembled datagrams with a wrong
    /// checksum.
        malformed,
    /// Frames of a protocol that the engine does not forward.
        unknown_protocol,
    /// Packets from the guest whose source address is unspecified, loopback or multicast.
        bad_source,
    /// Packets to a destination that the egress policy refuses.
        policy_refused,
    /// Requests to the decider about new flows.
        decisions_asked,
    /// Flows that the decider has denied.
        decisions_denied,
    /// Flows denied because no verdict arrived before the deadline.
        decisions_expired,
    /// Flows denied because the decider was not connected, or too many decisions were pending.
        decisions_unavailable,
    /// Frames from the guest, and datagrams of clients, dropped because the decision about their flow was pending.
        decisions_repeated,
    /// Flows refused because `--max-flows` or `--max-flow-rate` is reached.
        flows_refused,
    /// Times that data for the guest had to wait because of `--max-bandwidth`.
        held_back,
    /// Router advertisements, DHCP replies, ICMP errors, echo replies and DNS errors of the engine itself dropped because
    /// of `--max-bandwidth`.
        answers_dropped,
    /// Flows refused or dropped because the host had no free descriptor or memory.
        host_exhausted,
    /// TCP connections opened by the guest.
        tcp_opened,
    /// TCP connections accepted on published ports.
        tcp_accepted,
    /// TCP connections of clients of published ports on this host, and of the guest to its own loopback addresses, that do not use
    /// the link.
        tcp_joined,
    /// Clients of a published TCP port reset because clients of published ports used up their share of `--max-flows`.
        tcp_share_refused,
    /// TCP connects of the guest that the remote host refused or that timed out.
        tcp_connect_failed,
    /// TCP connections of the guest established through the upstream proxy.
        proxy_opened,
    /// TCP connections of the guest that the upstream proxy refused, or answered with a message that is not one of its
    /// protocol.
        proxy_refused,
    /// TCP connections of the guest for which the upstream proxy was not reachable, was reset, or did not answer in time.
        proxy_failed,
    /// UDP datagrams and echo requests refused because their destination is reached through the upstream proxy.
        proxy_unsupported,
    /// TCP segments from the guest that belong to no connection, answered by a reset.
        tcp_unknown,
    /// TCP connections ended by a reset from the guest.
        tcp_reset_by_guest,
    /// TCP connections ended by an error of the host socket.
        tcp_reset_by_host,
    /// Keepalive probes sent to the guest on idle TCP connections.
        tcp_keepalives,
    /// TCP connections reset because the guest answered no keepalive probe.
        tcp_guest_silent,
    /// Half-closed TCP connections reset to make room for a new flow.
        tcp_half_closed_evicted,
    /// TCP connections reset because the guest did not read its data and stalled connections used too much host memory.
        tcp_stalled_evicted,
    /// TCP segments retransmitted to the guest.
        tcp_retransmits,
    /// Retransmission timeouts of TCP connections with the guest.
        tcp_timeouts,
    /// ICMP errors of routers behind the guest that reported a TCP segment as too large.
        tcp_too_big,
    /// Challenge acknowledgements sent for TCP segments that are outside the window or not acceptable (RFC 5961).
        tcp_challenges,
    /// Challenge acknowledgements not sent because the connection had sent one shortly before (RFC 5961 section 7).
        tcp_challenges_withheld,
    /// TCP segments from the guest kept because they arrived out of order.
        tcp_out_of_order,
    /// TCP segments from the guest dropped because the buffer pool was full.
        tcp_pool_empty,
    /// Bytes of TCP data from the guest kept in the buffer pool because the host socket did not accept them.
        tcp_spilled_bytes,
    /// UDP datagrams from the guest that the host sent.
        udp_up,
    /// UDP datagrams sent to the guest.
        udp_down,
    /// Sends of several UDP datagrams from the guest by one system call.
        udp_batches_up,
    /// UDP datagrams that the host refused to send.
        udp_send_failed,
    /// UDP datagrams to a guest endpoint dropped because the endpoint had not sent to their sender.
        udp_unsolicited,
    /// UDP endpoints closed for a newer flow because `--max-flows` or `--max-udp-ports` was reached.
        udp_evicted,
    /// ICMP errors sent to the guest.
        icmp_errors_down,
    /// Echo requests from the guest that the host sent.
        ping_up,
    /// Echo replies sent to the guest.
        ping_down,
    /// Echo requests dropped because the host permits neither a ping socket nor a raw socket.
        ping_prohibited,
    /// Echo ids closed for a newer flow because `--max-flows` or the limit on ids was reached.
        ping_evicted,
    /// Echo requests that the host failed to send.
        ping_failed,
    /// IP fragments received from the guest.
        fragments_up,
    /// Datagrams from the guest reassembled from IP fragments.
        reassembled,
    /// IP fragments dropped because of inconsistent ranges, a timeout or a limit.
        fragments_dropped,
    /// DNS queries that the DNS forwarder accepted.
        dns_queries,
    /// DNS queries answered with an address that stands for a name, which the upstream proxy resolves.
        dns_proxied,
    /// DNS messages to the forwarder with an opcode other than QUERY: answered by NOTIMP over UDP, by a reset over TCP.
        dns_unsupported,
    /// DNS responses that were replaced by SERVFAIL because they have an address that stands for a name which the upstream proxy
    /// resolves.
        dns_reserved,
    /// DNS queries that no resolver answered in time, answered by SERVFAIL.
        dns_failed,
    /// DNS queries sent to another resolver because one did not respond or responded with an error.
    dns_failovers,
    /// DNS queries dropped because too many queries were pending, or dropped responses to many clients of one query
    /// because of `--max-bandwidth`.
    dns_dropped,
    /// DNS connections over TCP that were reset after 10 s without a message, or as the longest idle of more than 64.
    dns_streams_closed,
    /// Datagrams to the DNS forwarder's sockets that are not a response to the pending query.
        dns_mismatched,
    /// DNS responses from which keys of Encrypted Client Hello were removed because of a rule with `/tls-strict`.
        dns_ech_removed,
    /// DNS responses that were replaced by SERVFAIL because such keys could not be removed from them.
        dns_ech_malformed,
    /// TCP connections that have proved the domain of a rule with `/tls` or `/tls-strict`.
        tls_proven,
    /// TCP connections accepted before the host connection is opened, because the name decides whether they use the upstream
    /// proxy.
        tls_accepted_early,
    /// TCP connections reset because they do not begin with a TLS handshake, and only such rules permit them.
        tls_refused_not_tls,
    /// TCP connections reset because their ClientHello is malformed or ambiguous, and only such rules permit them.
        tls_refused_malformed,
    /// TCP connections reset because their ClientHello has more than 16 KiB, and only such rules permit them.
        tls_refused_too_long,
    /// TCP connections reset because their ClientHello names no server, and only such rules permit them.
        tls_refused_no_name,
    /// TCP connections reset because their ClientHello names a server that no rule permits there.
        tls_refused_other_name,
    /// TCP connections reset because their ClientHello has the extension encrypted_client_hello, against `/tls-strict`.
        tls_refused_ech,
    /// TCP connections reset because their ClientHello was not complete in time, and only such rules permit them.
        tls_refused_timeout,
    /// TCP connections reset because the guest has closed them before the end of the ClientHello that a rule requires.
        tls_refused_ended,
    /// TCP connections reset because too many others were waiting for a ClientHello that a rule requires.
        tls_refused_limit,
    /// UDP datagrams refused because only TCP connections that prove their name are permitted to the same address and port.
        tls_udp_refused,
    /// Panics while a frame or event was handled; the flow concerned was reset.
        panics,
    /// Flow events that were lost because the memory for events was full.
        events_dropped,
    /// Flow events that were omitted because there were too many of their kind in a second; records have their number.
        events_omitted,
    }
}
