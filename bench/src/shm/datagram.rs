//! Ethernet frames that the guest of `pontoon bench shm` builds and changes, as it has no network stack.

use super::engine::PORT;

/// Ethernet address of the guest.
const OURS: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Offset of the IPv4 header's field protocol in an Ethernet frame.
const PROTOCOL: usize = 14 + 9;
/// Offset of the UDP destination port in an Ethernet frame whose IPv4 header has no options.
const DESTINATION: usize = 14 + 20 + 2;

const UDP: u8 = 17;

/// Returns an ARP request of 10.0.2.15 for the Ethernet address of 10.0.2.2 (RFC 826).
pub(super) fn arp_request() -> [u8; 42] {
    let mut frame = [0; 42];
    frame[..6].fill(0xff);
    frame[6..12].copy_from_slice(&OURS);
    frame[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame[22..28].copy_from_slice(&OURS);
    frame[28..32].copy_from_slice(&[10, 0, 2, 15]);
    frame[38..42].copy_from_slice(&[10, 0, 2, 2]);
    frame
}

/// Returns true if the frame is an ARP reply.
pub(super) fn is_arp_reply(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&[8, 6]) && frame.get(20..22) == Some(&[0, 2])
}

/// Returns true if the frame is a UDP datagram to the published port, in an IPv4 header without options.
pub(super) fn is_for_guest(frame: &[u8]) -> bool {
    frame.get(12..15) == Some(&[8, 0, 0x45])
        && frame.get(PROTOCOL) == Some(&UDP)
        && frame.get(DESTINATION..DESTINATION + 2) == Some(&PORT.to_be_bytes())
}

/// Swaps source and destination of Ethernet, IPv4 and UDP. The checksums stay valid, as they are sums.
pub(super) fn swap_endpoints(frame: &mut [u8]) {
    swap::<6>(frame, 0);
    swap::<4>(frame, 26);
    swap::<2>(frame, 34);
}

/// Swaps two adjacent fields of `N` bytes, of which the first is at offset `at`.
fn swap<const N: usize>(frame: &mut [u8], at: usize) {
    let (left, right) = frame[at..at + 2 * N].split_at_mut(N);
    left.swap_with_slice(right);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_of_datagram_for_guest_are_swapped() {
        let mut frame = vec![0; 14 + 20 + 8 + 2];
        frame[..12].copy_from_slice(&[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[PROTOCOL] = UDP;
        frame[26..34].copy_from_slice(&[10, 0, 2, 2, 10, 0, 2, 15]);
        frame[34..38].copy_from_slice(&[0xab, 0xcd, 0x13, 0x88]);
        frame[42..].copy_from_slice(b"hi");
        assert!(is_for_guest(&frame));
        swap_endpoints(&mut frame);
        assert_eq!(frame[..12], [2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1]);
        assert_eq!(frame[26..34], [10, 0, 2, 15, 10, 0, 2, 2]);
        assert_eq!(frame[34..38], [0x13, 0x88, 0xab, 0xcd]);
        assert_eq!(frame[42..], *b"hi");
        assert!(!is_for_guest(&frame), "to another port");
        assert!(!is_for_guest(&arp_request()) && !is_arp_reply(&arp_request()) && !is_for_guest(b""));
    }
}
