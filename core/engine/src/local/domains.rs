//! Encodes DNS search domains for DHCP and router advertisements.

use arrayvec::ArrayVec;

/// Maximum length of an encoded search list in bytes: that of a DHCPv4 option.
pub(super) const LONGEST: usize = 255;

/// Encodes the first domains of `search` that fit into `room` bytes, at most [`LONGEST`], as labels without compression
/// (RFC 1035 section 3.1), as RFC 3397, RFC 3646 section 4 and RFC 8106 section 5.2 accept them. Text that is not a
/// valid domain name is omitted.
pub(super) fn encode(search: &[String], room: usize) -> ArrayVec<u8, LONGEST> {
    let mut list = ArrayVec::new();
    for domain in search.iter().filter(|domain| is_name(domain)) {
        // Each label needs a length byte, one more byte in total than the dots of the text; the root needs one more.
        let domain = domain.trim_end_matches('.');
        if list.len() + domain.len() + 2 > room.min(LONGEST) {
            break;
        }
        for label in domain.split('.') {
            list.push(u8::try_from(label.len()).expect("a valid label has at most 63 bytes"));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(search: &[&str], room: usize) -> Vec<u8> {
        let search: Vec<_> = search.iter().map(|&domain| domain.to_owned()).collect();
        encode(&search, room).to_vec()
    }

    #[test]
    fn names_are_encoded_as_labels_and_a_root() {
        assert_eq!(encoded(&["a.bc", "d."], LONGEST), b"\x01a\x02bc\0\x01d\0");
        assert_eq!(encoded(&[], LONGEST), b"");
    }

    #[test]
    fn invalid_names_are_omitted() {
        let label = "x".repeat(64);
        let long = ["x".repeat(63).as_str(); 4].join(".");
        assert_eq!(
            encoded(&["", ".", "a..b", &label, &long, "ok"], LONGEST),
            b"\x02ok\0"
        );
    }

    #[test]
    fn list_ends_at_the_first_name_that_does_not_fit() {
        assert_eq!(encoded(&["abc", "abcd", "a"], 10), b"\x03abc\0");
        assert_eq!(encoded(&["abc", "abcd", "a"], 11), b"\x03abc\0\x04abcd\0");
        let names = vec!["abcdefgh.example"; 100];
        assert_eq!(encoded(&names, 10_000).len(), 14 * 18);
        let longest = [&["x".repeat(63).as_str(); 3].join("."), "x".repeat(61).as_str()].join(".");
        assert_eq!(encoded(&[&longest], 10_000).len(), 255);
    }
}
