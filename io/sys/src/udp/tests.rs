use std::net::UdpSocket;

use vm_memory::VolatileSlice;

use super::*;
use crate::message::{self, RecvMode};

/// Returns two sockets on the loopback address, the second connected to the first. Without a loopback address of the
/// family it prints a line and returns `None`.
fn pair(family: Family) -> Option<(UdpSocket, UdpSocket)> {
    let Ok(server) = UdpSocket::bind((family.loopback(), 0)) else {
        crate::skipped("udp", family);
        return None;
    };
    let client = UdpSocket::bind((family.loopback(), 0)).unwrap();
    client.connect(server.local_addr().unwrap()).unwrap();
    Some((server, client))
}

fn receive(socket: &UdpSocket) -> (usize, Ancillary) {
    let mut bytes = vec![0; 65536];
    let mut control = [0; CONTROL];
    let into = [VolatileSlice::from(&mut bytes[..])];
    let got = message::receive(socket, &into, &mut control, RecvMode::Next).unwrap();
    (got.len, Ancillary::decode(&control[..got.control_len]))
}

#[test]
fn ancillary_data_has_the_properties_of_the_datagram() {
    for family in [Family::V4, Family::V6] {
        let Some((server, client)) = pair(family) else {
            continue;
        };
        enable_recv_info(&server, family).unwrap();
        enable_pktinfo(&server, family).unwrap();
        set_hop_limit(&client, family, 7).unwrap();
        set_traffic_class(&client, family, 0xb8).unwrap();
        client.send(b"x").unwrap();
        let expected = Ancillary {
            stride: None,
            hop_limit: Some(7),
            traffic_class: Some(0xb8),
            to: Some(family.loopback()),
            destination: Some(family.loopback()),
            at: None,
        };
        assert_eq!(receive(&server), (1, expected));
    }
}

#[test]
fn group_is_not_a_local_address() {
    let group: IpAddr = "ff02::1".parse().unwrap();
    let mut control = SendControl::new();
    push_source(&mut control, group);
    let beside = Ancillary::decode(control.bytes());
    assert_eq!((beside.to, beside.destination), (None, Some(group)));
}

#[test]
fn segments_are_received_coalesced() {
    assert_eq!(
        offloads(),
        Ok((true, true)),
        "UDP_SEGMENT is from Linux 4.18, UDP_GRO from 5.0"
    );
    for family in [Family::V4, Family::V6] {
        let Some((server, client)) = pair(family) else {
            continue;
        };
        coalesce(&server).unwrap();
        let mut control = SendControl::new();
        push_segment(&mut control, 1000);
        let mut bytes = [9; 3500];
        let parts = [VolatileSlice::from(&mut bytes[..])];
        assert_eq!(message::send(&client, &parts, None, control.bytes()), Ok(3500));
        let (len, beside) = receive(&server);
        assert_eq!((len, beside.stride), (3500, Some(1000)));
    }
}

#[test]
fn segments_are_received_one_by_one_without_udp_gro() {
    let (server, client) = pair(Family::V4).unwrap();
    let mut control = SendControl::new();
    push_segment(&mut control, 1000);
    let mut bytes = [9; 2500];
    message::send(
        &client,
        &[VolatileSlice::from(&mut bytes[..])],
        None,
        control.bytes(),
    )
    .unwrap();
    let sizes = [receive(&server).0, receive(&server).0, receive(&server).0];
    assert_eq!(sizes, [1000, 1000, 500]);
}

#[test]
fn source_address_is_set_by_ancillary_data() {
    let server = UdpSocket::bind("0.0.0.0:0").unwrap();
    let port = server.local_addr().unwrap().port();
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(("127.0.0.9", port)).unwrap();
    let mut control = SendControl::new();
    push_segment(&mut control, 1);
    push_source(&mut control, "127.0.0.9".parse().unwrap());
    let mut bytes = [1];
    let parts = [VolatileSlice::from(&mut bytes[..])];
    message::send(&server, &parts, client.local_addr().ok(), control.bytes()).unwrap();
    assert_eq!(client.recv(&mut [0; 2]).unwrap(), 1);
}
