//! Passes each frame from the guest to the handler of its protocol.

use pontoon_wire::frame::{self, Body, FrameError, Transport};
use pontoon_wire::{Mac, emit};

use super::{GatheredPayload, ProtocolHandlers};
use crate::config::LinkService;
use crate::ctx::{Ctx, Net, Routed};
use crate::fragment::Reassembly;
use crate::local::{self, Handled};
use crate::siblings::{self, Handed, Origin};
use crate::tcp::path_mtu::TooBig;
use crate::{Frame, Host, Transmit, policy};

/// Parses and handles a frame that the link has received from the guest.
pub(super) fn take_frame<'a, H: Host, T: Transmit>(
    reassembly: &mut Reassembly,
    protocols: &mut ProtocolHandlers<H::Socket>,
    frame: &Frame<'a>,
    gathered: &mut GatheredPayload<'a>,
    ctx: &mut Ctx<'_, H, T>,
) {
    ctx.net.counters.frames_up += 1;
    match frame::parse(frame.head, frame.len) {
        Ok(parsed) => {
            if is_unicast(parsed.source) {
                ctx.net.learn_guest_mac(parsed.source);
            }
            if let Body::Ip(ip, Transport::Fragment) = &parsed.body {
                take_fragment(reassembly, protocols, &parsed, ip, frame, gathered, ctx);
            } else {
                protocols.take(&parsed, frame, gathered, ctx);
            }
        }
        Err(FrameError::EtherType(_)) => ctx.net.counters.unknown_protocol += 1,
        Err(_) => ctx.net.counters.malformed += 1,
    }
}

/// Handles a frame that another worker has parsed, counted and handed over.
pub(super) fn take_handed<'a, H: Host, T: Transmit>(
    reassembly: &mut Reassembly,
    protocols: &mut ProtocolHandlers<H::Socket>,
    Handed { frame, reassembled }: &Handed<'a>,
    gathered: &mut GatheredPayload<'a>,
    ctx: &mut Ctx<'_, H, T>,
) {
    let Ok(mut parsed) = frame::parse(frame.head, frame.len) else {
        return;
    };
    match &mut parsed.body {
        Body::Ip(ip, Transport::Fragment) => {
            let ip = *ip;
            return take_fragment(reassembly, protocols, &parsed, &ip, frame, gathered, ctx);
        }
        Body::Ip(ip, _) if *reassembled => ip.dont_fragment = false,
        Body::Ip(..) | Body::Arp => {}
    }
    protocols.take(&parsed, frame, gathered, ctx);
}

impl<S> ProtocolHandlers<S> {
    /// Passes a parsed packet to the local services or to the handler of its protocol.
    fn take<'a, H: Host<Socket = S>, T: Transmit>(
        &mut self,
        parsed: &frame::ParsedFrame,
        frame: &Frame<'a>,
        gathered: &mut GatheredPayload<'a>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        if local::handle(frame, parsed, ctx.net, ctx.link) == Handled::Yes {
            return;
        }
        let Body::Ip(ip, transport) = &parsed.body else {
            return;
        };
        if !policy::may_send(ip.source) {
            ctx.net.counters.bad_source += 1;
            return;
        }
        let service = match transport {
            Transport::Tcp(_) => Some(LinkService::Tcp),
            Transport::Udp(_) => Some(LinkService::Udp),
            Transport::Icmp(_) => Some(LinkService::Icmp),
            Transport::Fragment | Transport::Other => None,
        };
        if service.is_some_and(|service| ctx.net.config.disabled.contains(service)) {
            ctx.net.counters.policy_refused += 1;
            return;
        }
        match transport {
            Transport::Tcp(segment) => {
                if is_dns(ctx.net, ip, segment.destination_port) {
                    // The forwarder of the first worker knows which resolvers do not respond; other workers do not.
                    let routed = ctx.net.hand_over(siblings::FIRST, frame);
                    if routed == Routed::HandedOver {
                        return;
                    }
                }
                let dns = self.dns.current_resolver(ctx.now);
                self.tcp
                    .handle_segment(frame, ip, segment, dns, &mut gathered.tcp, ctx);
            }
            // Linux segments no datagram into more (UDP_MAX_SEGMENTS), and virtio_net_hdr_to_skb() refuses a frame that
            // asks for it. A segment of one byte would make one frame into 65,000 datagrams.
            Transport::Udp(udp) if frame.udp_segments(udp.payload_len) > MAX_UDP_SEGMENTS => {
                ctx.net.counters.malformed += 1;
            }
            Transport::Udp(udp) if is_dns(ctx.net, ip, udp.destination_port) => {
                let routed = ctx.net.hand_over(siblings::FIRST, frame);
                if routed == Routed::Here {
                    self.dns.handle_query(frame, ip, udp, ctx);
                }
            }
            Transport::Udp(udp) => self.udp.handle_datagram(frame, ip, udp, &mut gathered.udp, ctx),
            Transport::Icmp(icmp) => match TooBig::read(frame, ip, icmp) {
                Some(too_big) => self.tcp.handle_too_big(&too_big, frame, ctx),
                None => {
                    let routed = ctx.net.hand_over(siblings::FIRST, frame);
                    if routed == Routed::Here {
                        self.icmp.handle_message(frame, ip, icmp, ctx);
                    }
                }
            },
            Transport::Fragment | Transport::Other => ctx.net.counters.unknown_protocol += 1,
        }
    }

    /// Handles a reassembled packet like [`Self::take`], in a burst of its own, because its memory does not outlive
    /// this call.
    pub(super) fn take_alone<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        parsed: &frame::ParsedFrame,
        frame: &Frame<'_>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let mut gathered = GatheredPayload::default();
        self.take(parsed, frame, &mut gathered, ctx);
        self.finish(&mut gathered, ctx);
    }

    /// Handles the kept frame of a flow after the verdict about it, like a frame that another worker has handed over.
    pub(super) fn take_kept<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        frame: &Frame<'_>,
        dont_fragment: bool,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        let Ok(mut parsed) = frame::parse(frame.head, frame.len) else {
            return;
        };
        if let Body::Ip(ip, _) = &mut parsed.body {
            ip.dont_fragment = dont_fragment;
        }
        self.take_alone(&parsed, frame, ctx);
    }

    /// Ends a burst: sends the gathered datagrams and TCP data to host sockets, and acknowledges TCP data.
    pub(super) fn finish<H: Host<Socket = S>, T: Transmit>(
        &mut self,
        gathered: &mut GatheredPayload<'_>,
        ctx: &mut Ctx<'_, H, T>,
    ) {
        self.udp.flush(&mut gathered.udp, ctx);
        self.tcp.handle_burst(&mut gathered.tcp, ctx);
    }
}

/// Handles an IP fragment, and the datagram that it completes, unless another worker reassembles that datagram.
fn take_fragment<H: Host, T: Transmit>(
    reassembly: &mut Reassembly,
    protocols: &mut ProtocolHandlers<H::Socket>,
    parsed: &frame::ParsedFrame,
    ip: &frame::Ip,
    frame: &Frame<'_>,
    gathered: &mut GatheredPayload<'_>,
    ctx: &mut Ctx<'_, H, T>,
) {
    if let (Some(siblings), Some(fragment)) = (&ctx.net.siblings, ip.fragment) {
        let reassembler = siblings.reassembler(ip.source, ip.destination, fragment.id);
        let routed = ctx.net.hand_over(reassembler, frame);
        if routed == Routed::HandedOver {
            return;
        }
    }
    let ether = emit::Ether {
        source: parsed.source,
        destination: parsed.destination,
    };
    let Some(mut whole) = reassembly.add(ether, ip, frame, &mut ctx.net.counters, ctx.now) else {
        return;
    };
    // The datagram is handled as a burst of its own, so data that was gathered before is sent first.
    protocols.finish(gathered, ctx);
    let origin = core::mem::replace(&mut ctx.net.origin, Origin::Fragments);
    let taken = whole.open(|parsed, frame| protocols.take_alone(&parsed, frame, ctx));
    ctx.net.origin = origin;
    ctx.net.counters.malformed += u64::from(taken.is_err());
}

/// The largest number of datagrams in one frame (Linux 6.8, UDP_MAX_SEGMENTS; 64 before).
const MAX_UDP_SEGMENTS: usize = 128;

/// Returns true if a packet is addressed to the DNS forwarder.
fn is_dns(net: &Net, ip: &frame::Ip, port: u16) -> bool {
    port == 53 && net.config.plan.is_dns(ip.destination)
}

fn is_unicast(mac: Mac) -> bool {
    mac.0[0] & 1 == 0
}

#[cfg(test)]
mod tests {
    use pontoon_wire::vnet::Segmentation;

    use crate::test_world::{FakeHost, FakeLink, GUEST, Sent, net, with_frame};
    use crate::{Engine, Instant, WorkerId};

    #[test]
    fn frame_of_more_than_128_datagrams_is_malformed() {
        let now = Instant(1_000_000_000_000);
        let mut engine = Engine::new(net().config, WorkerId(0), [7; 32], now);
        let (mut host, mut link) = (FakeHost::default(), FakeLink::new());
        for to in ["192.0.2.1:7", "10.0.2.3:53"] {
            for (len, malformed) in [(128, 0), (129, 1)] {
                let before = *engine.counters();
                let bytes = Sent::new(GUEST, to, &vec![0; len]).udp();
                with_frame(&bytes, Segmentation::Udp { len: 1 }, |frame, _| {
                    engine.handle_frames(std::slice::from_ref(frame), &mut link, &mut host, now);
                });
                let counted = engine.counters().malformed - before.malformed;
                // The forwarder counts each of the 128 queries, which are too short.
                let expected = if to.ends_with(":53") && malformed == 0 {
                    128
                } else {
                    malformed
                };
                assert_eq!(counted, expected, "{len} to {to}");
            }
        }
    }
}
