use pontoon_engine::config::Published;

use super::*;

fn published(port: u16) -> Published {
    Published::new(Protocol::Tcp, (Ipv4Addr::LOCALHOST, port).into(), port)
}

#[test]
fn full_list_of_refused_ports_stands_for_all_ports_of_the_look() {
    let added: BTreeSet<_> = (1..1_000).map(|port| published(port).key()).collect();
    let confirmation = |worker: u8, ports: std::ops::Range<u16>| Confirmation {
        round: 1,
        worker,
        port_errors: ports
            .map(|port| PortError {
                port: published(port),
                why: "no descriptor".to_owned(),
            })
            .collect(),
        ended: Vec::new(),
    };
    let most = u16::try_from(PortError::MOST).unwrap();
    let some = [confirmation(0, 5_000..5_001), confirmation(1, 1..most)];
    let expected: BTreeSet<_> = (1..most).map(|port| published(port).key()).collect();
    assert_eq!(refused(&some, &added), expected);
    let full = [confirmation(0, 0..0), confirmation(1, 5_000..5_000 + most)];
    assert_eq!(refused(&full, &added), added);
}
