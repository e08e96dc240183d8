use std::net::UdpSocket;
use std::time::{Duration, Instant};

use super::*;

/// Opens a ring on the loopback interface that receives only UDP datagrams to `port`; `None` without CAP_NET_RAW.
fn on_loopback(size: Size, port: u16) -> Option<OwnedFd> {
    let socket = match open(size) {
        Ok(socket) => socket,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            use std::io::Write;
            let _ = std::io::stderr().write_all(b"SKIPPED: a packet ring: needs CAP_NET_RAW\n");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let program = [
        (0x30, 0, 0, 14 + 9),
        (0x15, 0, 3, 17),
        (0x28, 0, 0, 14 + 20 + 2),
        (0x15, 0, 1, port.into()),
        (0x06, 0, 0, 0x40000),
        (0x06, 0, 0, 0),
    ];
    crate::filter::attach(&socket, program).unwrap();
    let index = std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap();
    bind(&socket, index.trim().parse().unwrap(), Family::V4).unwrap();
    group(std::slice::from_ref(&socket), Fanout::One, true).unwrap();
    Some(socket)
}

/// Returns a sending socket, a receiving socket, and a ring that receives the packets between them.
fn between(size: Size) -> Option<(UdpSocket, UdpSocket, OwnedFd)> {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = receiver.local_addr().unwrap();
    let ring = on_loopback(size, to.port())?;
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(to).unwrap();
    Some((sender, receiver, ring))
}

fn wait_for(ring: &Ring, ahead: u32) -> RingPacket<'_> {
    let begin = Instant::now();
    loop {
        if let Some(packet) = ring.packet(ahead) {
            return packet;
        }
        assert!(begin.elapsed() < Duration::from_secs(5), "no packet came");
        std::thread::yield_now();
    }
}

/// Returns the UDP payload of an IPv4 packet without IP options.
fn payload(packet: &RingPacket<'_>) -> Vec<u8> {
    packet.bytes[28..].to_vec()
}

#[test]
fn kernel_accepts_all_ring_sizes() {
    assert_eq!(Size::new(100, 1514).parts(), [128, 2048]);
    assert_eq!(Size::new(100, 9014).parts(), [100, 16384]);
    assert_eq!(Size::new(1, 65550).parts(), [4, 16384]);
    let size = Size::new(5000, 1514);
    assert_eq!(Size::from_parts(size.parts()), Some(size));
    for wrong in [[0, 2048], [100, 2048], [128, 2000], [128, 1 << 20]] {
        assert_eq!(Size::from_parts(wrong), None, "{wrong:?}");
    }
}

#[test]
fn packets_arrive_in_order_and_slots_are_reused() {
    let size = Size::new(32, 1514);
    let Some((sender, _receiver, socket)) = between(size) else {
        return;
    };
    let mut ring = Ring::map(&socket, size, 7).unwrap();
    assert!(ring.packet(0).is_none());
    // The position of the ring is slot 7, but the kernel puts the first packet into slot 0.
    sender.send(&[0; 3]).unwrap();
    ring.find();
    assert_eq!(ring.position(), 0);
    for number in 1..100_u8 {
        sender.send(&[number; 3]).unwrap();
        assert_eq!(payload(&wait_for(&ring, 0)), [number - 1; 3]);
        assert_eq!(payload(&wait_for(&ring, 1)), [number; 3]);
        assert_eq!(wait_for(&ring, 1).vnet.len(), VNET_HDR_LEN);
        assert!(ring.packet(2).is_none() && ring.packet(32).is_none());
        ring.release(1);
    }
    assert_eq!(statistics(&socket), Ok((100, 0)));
    assert_eq!(statistics(&socket), Ok((0, 0)));
}

#[test]
fn kernel_drops_and_counts_packets_while_the_ring_is_full() {
    let size = Size::new(32, 1514);
    let Some((sender, _receiver, socket)) = between(size) else {
        return;
    };
    for number in 0..40_u8 {
        sender.send(&[number]).unwrap();
    }
    let ring = Ring::map(&socket, size, 0).unwrap();
    assert_eq!(payload(&wait_for(&ring, 31)), [31]);
    assert_eq!(statistics(&socket), Ok((40, 8)));
}

#[test]
fn long_packet_is_received_whole_beside_the_ring() {
    let size = Size::new(32, 1514);
    let Some((sender, _receiver, socket)) = between(size) else {
        return;
    };
    let long: Vec<u8> = (0..30_000_u32).map(|index| index as u8).collect();
    sender.send(&[1]).unwrap();
    sender.send(&long).unwrap();
    let ring = Ring::map(&socket, size, 0).unwrap();
    let packet = wait_for(&ring, 1);
    assert!(packet.kept && packet.len == 30_028 && packet.bytes.len() < 2048);
    assert!(!wait_for(&ring, 0).kept);
    let mut buffer = vec![0; 1 << 16];
    // The `virtio_net_hdr`, then the headers of Ethernet, IPv4 and UDP.
    assert_eq!(receive_long(&socket, &mut buffer), Ok(10 + 14 + 28 + 30_000));
    assert_eq!(&buffer[10 + 14 + 28..][..30_000], long);
    assert_eq!(receive_long(&socket, &mut buffer), Err(Errno::AGAIN));
}
