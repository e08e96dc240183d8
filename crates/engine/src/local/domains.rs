//! Search domains as they travel in DHCP and router advertisements.

use arrayvec::ArrayVec;

/// Longest list: what one DHCPv4 option holds.
pub(super) const LONGEST: usize = 255;

/// The first domains of `search` that fit `room` bytes (at most [`LONGEST`]), as labels without compression (RFC 1035
/// section 3.1; RFC 3397, RFC 3646 section 4 and RFC 8106 section 5.2 all take it). A name that is none is left out.
pub(super) fn encode(search: &[String], room: usize) -> ArrayVec<u8, LONGEST> {
    let mut list = ArrayVec::new();
    for domain in search.iter().filter(|domain| is_name(domain)) {
        // A length byte before each label takes the dots' places, and one more; then the root.
        let domain = domain.trim_end_matches('.');
        if list.len() + domain.len() + 2 > room.min(LONGEST) {
            break;
        }
        for label in domain.split('.') {
            list.push(u8::try_from(label.len()).expect("checked to be at most 63"));
            list.extend(label.bytes());
        }
        list.push(0);
    }
    list
}

fn is_name(domain: &str) -> bool {
    let domain = domain.trim_end_matches('.');
    domain.len() <= 253 && domain.split('.').all(|label| (1..=63).contains(&label.len()))
}
