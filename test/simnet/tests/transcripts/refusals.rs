//! Tests of connections that fail, by a rule or because of the host, and of the packets that report this to the
//! guest.

use super::*;

#[test]
fn refused_connect_is_a_reset() {
    let mut given = Given::new(config(1500), PLAIN, HostPlan::default());
    given.up(syn());
    given.down(down(RST.and(ACK), 0, 1001));
    given.quiet();
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn unreachable_destination_is_icmp_then_a_reset() {
    let mut given = Given::new(config(1500), PLAIN, HostPlan::default());
    given
        .host
        .serve(PORT, ConnectResult::Fail(Failure::HostUnreachable), Script::SINK);
    given.up(syn());
    let out = given.take();
    let [Packet::Icmp(icmp), Packet::Tcp(reset)] = &out[..] else {
        panic!("{out:?}");
    };
    assert_eq!((icmp.kind, icmp.code), (3, 1), "host unreachable");
    assert_eq!((reset.flags, reset.seq, reset.ack), (RST.and(ACK), 0, 1001));
    assert_eq!(given.engine.flows(), 0);
}

#[test]
fn each_failure_of_a_connect_has_its_icmp_error() {
    let cases = [
        (Failure::NetUnreachable, Some(((3, 0), (1, 0)))),
        (Failure::HostUnreachable, Some(((3, 1), (1, 3)))),
        (Failure::TimedOut, Some(((3, 1), (1, 3)))),
        (Failure::Prohibited, Some(((3, 13), (1, 1)))),
        (Failure::Refused, None),
        (Failure::Reset, None),
        (Failure::TooBig, None),
        (Failure::InUse, None),
        (Failure::Invalid, None),
        (Failure::Other(99), None),
    ];
    for (failure, icmp) in cases {
        for v6 in [false, true] {
            for answer in [
                ConnectResult::Fail(failure),
                ConnectResult::FailAfter(millis(5), failure),
            ] {
                let mut given = Given::new(config(1500), PLAIN, HostPlan::default());
                given.host.serve(80, answer, Script::SINK);
                let syn = match v6 {
                    true => syn_between((GUEST_V6, 1).into(), (SERVER_V6, 80).into()),
                    false => dial(1, 80),
                };
                given.up(syn.clone());
                given.pass(millis(6));
                let mut out = given.take();
                assert_eq!(out.pop(), Some(Packet::Tcp(refusal(&syn))), "{failure}");
                let expected = icmp.map(|(v4_code, v6_code)| if v6 { v6_code } else { v4_code });
                let error = out.pop().map(|packet| match packet {
                    Packet::Icmp(icmp) => (icmp.kind, icmp.code),
                    other => panic!("{other:?}"),
                });
                assert_eq!((error, out.len()), (expected, 0), "{failure}");
                given.counted(|counters| {
                    counters.frames_up += 1;
                    counters.frames_down += 1 + u64::from(icmp.is_some());
                    counters.tcp_opened += 1;
                    counters.tcp_connect_failed += 1;
                    counters.icmp_errors_down += u64::from(icmp.is_some());
                });
                assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
            }
        }
    }
}

/// Tests a failed connect over IPv6 without a gateway address, which an ICMP error would need as its source.
#[test]
fn failure_without_a_gateway_address_is_only_a_reset() {
    let mut no_v6 = config(1500);
    no_v6.plan.v6 = None;
    let mut given = Given::new(no_v6, PLAIN, HostPlan::default());
    given
        .host
        .serve(80, ConnectResult::Fail(Failure::HostUnreachable), Script::SINK);
    is_refused(
        &mut given,
        &syn_between((GUEST_V6, 1).into(), (SERVER_V6, 80).into()),
    );
}

#[test]
fn connect_without_a_timeout_lasts_as_long_as_the_hosts() {
    let patient = Config {
        connect_timeout: None,
        ..config(1500)
    };
    let mut given = Given::new(patient, PLAIN, HostPlan::default());
    given.host.serve(80, ConnectResult::Never, Script::SINK);
    given.up(dial(1, 80));
    given.pass(Duration::from_secs(126));
    given.quiet();
    given.pass(Duration::from_secs(2));
    assert_eq!(given.take().len(), 2, "ICMP and a reset");
    assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
}

#[test]
fn policy_refuses_before_a_socket_opens() {
    let mut given = given(config(1500), HostPlan::default());
    let gateway = config(1500).plan.v4.unwrap().gateway;
    for to in [gateway, Ipv4Addr::LOCALHOST, Ipv4Addr::new(10, 0, 2, 99)] {
        is_refused(&mut given, &syn_between((GUEST_V4, 1).into(), (to, 80).into()));
        given.counted(|counters| {
            one_each(counters);
            counters.policy_refused += 1;
        });
    }
    assert_eq!(given.host.calls(), 0);
}

#[test]
fn dns_over_tcp_is_forwarded_to_the_resolver() {
    for dns in [
        IpAddr::from(config(1500).plan.v4.unwrap().dns.unwrap()),
        config(1500).plan.v6.unwrap().dns.unwrap().into(),
    ] {
        let own: IpAddr = if dns.is_ipv4() {
            GUEST_V4.into()
        } else {
            GUEST_V6.into()
        };
        let query = syn_between((own, 1).into(), (dns, 53).into());
        let resolved = Config {
            resolvers: vec![(SERVER_V4, 53).into()],
            ..config(1500)
        };
        let mut with = given(resolved.clone(), HostPlan::default());
        with.host.serve(53, ConnectResult::Now, Script::SINK);
        is_answered(&mut with, &query);

        let mut without = given(config(1500), HostPlan::default());
        is_refused(&mut without, &query);
        without.counted(one_each);

        let mut elsewhere = given(resolved, HostPlan::default());
        is_refused(&mut elsewhere, &syn_between((own, 1).into(), (dns, 80).into()));
        elsewhere.counted(|counters| {
            one_each(counters);
            counters.policy_refused += 1;
        });
    }
}

#[test]
fn dns_over_tcp_accepts_only_queries() {
    let dns = config(1500).plan.v4.unwrap().dns.unwrap();
    let resolved = Config {
        resolvers: vec![(SERVER_V4, 53).into()],
        ..config(1500)
    };
    let between = |segment: Segment| Segment {
        to: (dns, 53).into(),
        ..segment
    };
    let message = |flags: u8| [&[0, 12, 1, 2, flags][..], &[0; 9]].concat();
    // Refused messages: UPDATE, NOTIFY, a response, one shorter than a header, and an UPDATE after a query.
    for wrong in [
        message(0x28),
        message(0x20),
        message(0x80),
        vec![0, 11],
        [message(1), message(0x28)].concat(),
    ] {
        let mut given = given(resolved.clone(), HostPlan::default());
        given.host.serve(53, ConnectResult::Now, Script::SINK);
        given.up(between(syn()));
        given.down(Segment {
            from: (dns, 53).into(),
            ..syn_ack()
        });
        given.up(between(up(ACK, 1001, 1)));
        given.forget_counters();
        given.up(between(up(ACK, 1001, 1)).carrying(wrong.clone()));
        let reset = given.take_one();
        assert!(reset.flags.has(RST), "{wrong:?}: {reset:?}");
        given.counted(|counters| {
            one_each(counters);
            counters.dns_unsupported += 1;
            counters.tcp_reset_by_host += 1;
        });
        assert_eq!((given.engine.flows(), given.host.open()), (0, 0));
        let received = given
            .host
            .reports()
            .filter_map(|report| report.app)
            .map(|app| app.received());
        assert_eq!(received.sum::<u64>(), 0, "{wrong:?}");
    }
}

#[test]
fn segment_without_a_connection_is_reset() {
    let mut given = Given::server();
    given.up(up(ACK, 5, 77).carrying(vec![1]));
    given.down(down(RST, 77, 0));
    given.up(up(RST, 5, 77));
    given.quiet();
    given.counted(|counters| {
        counters.frames_up += 2;
        counters.frames_down += 1;
        counters.tcp_unknown += 1;
    });
}
