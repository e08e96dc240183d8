use std::net::{Ipv4Addr, UdpSocket};

use pontoon_relay::Rule;
use pontoon_relay_worker::messages::Settings;
use pontoon_sys::disabled::Disabled;

use super::super::crew::Birth;
use super::super::links::LinkWatch;
use super::*;

/// Doors of that engine, of nobody's who would be told.
fn inputs(engine: Engine) -> (Inputs, Links, Crew) {
    let birth = Birth {
        settings: Settings {
            max_delay: std::time::Duration::ZERO,
            segment: false,
        },
        require_sandbox: false,
        disabled: Disabled::default(),
    };
    let (_, links) = LinkWatch::start().unwrap();
    (Inputs::new(engine), links, Crew::new(0, birth).unwrap())
}

fn input(port: u16) -> Input {
    let rule: Rule = format!("lo 239.1.1.1:{port} -> a *:*").parse().unwrap();
    rule.input
}

/// A port that nobody else can have.
fn held() -> (UdpSocket, u16) {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

#[test]
fn a_port_that_somebody_holds_is_opened_when_it_is_free() {
    let (mut inputs, links, mut crew) = inputs(Engine::Socket);
    let mut holders = [held(), held()];
    holders.sort_unstable_by_key(|(_, port)| *port);
    let [(holder, port), (other, free)] = holders;
    drop(other);
    let wanted = [input(port), input(free)];
    let door = Door::of(&wanted[0]);
    inputs.add(door.clone(), 0);

    inputs.update(&door, wanted.iter(), &links, &mut crew);
    let why = format!("port {port}: address already in use");
    assert_eq!(inputs.missing(&wanted[0]), Some(&*why));
    assert_eq!(inputs.missing(&wanted[1]), None, "the one behind it is open");
    assert!(inputs.incomplete());
    assert_eq!(inputs.stats(&crew)[0].state, format!("UDP sockets; {why}"));

    drop(holder);
    inputs.update(&door, wanted.iter(), &links, &mut crew);
    assert_eq!(inputs.missing(&wanted[0]), None);
    assert!(!inputs.incomplete());
    assert_eq!(inputs.stats(&crew)[0].state, "UDP sockets");
}

/// No ring is at hand without privilege: to take a filter, any socket does, and what is no socket refuses it.
#[test]
fn a_ring_whose_filter_was_refused_is_given_it_again() {
    let (mut inputs, links, mut crew) = inputs(Engine::Ring);
    let wanted = [input(5000)];
    let door = Door::of(&wanted[0]);
    inputs.add(door.clone(), 0);
    let ring = |socket: OwnedFd| Open {
        link: links.get("lo").map(|link| (link.index, link.mtu)).unwrap(),
        what: What::Ring {
            id: 1,
            size: Size::new(1, 1500),
            sockets: vec![socket],
            program: NOTHING.to_vec(),
            stuck: Stuck::default(),
        },
    };
    let no_socket = std::fs::File::open("/dev/null").unwrap();
    inputs.doors.get_mut(&door).unwrap().state = Ok(ring(no_socket.into()));
    inputs.update(&door, wanted.iter(), &links, &mut crew);
    let why = inputs.missing(&wanted[0]).unwrap();
    assert!(why.starts_with("cannot adapt to the rules: "), "{why}");
    assert!(inputs.incomplete());

    inputs.doors.get_mut(&door).unwrap().state = Ok(ring(held().0.into()));
    inputs.update(&door, wanted.iter(), &links, &mut crew);
    assert_eq!(inputs.missing(&wanted[0]), None);
    assert!(!inputs.incomplete());
}
