use core::net::Ipv4Addr;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

#[test]
fn example_of_rfc_1071_has_the_expected_sum() {
    let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
    assert_eq!(Sum::new().add(&bytes).partial(), 0xddf2);
    assert_eq!(Sum::new().add(&bytes).finish(), 0x220d);
    assert_eq!(Sum::new().finish(), 0xffff);
}

#[test]
fn sum_of_all_ones_carries() {
    let bytes = vec![0xff; 65_535];
    assert_eq!(Sum::new().add(&bytes[..65_534]).partial(), 0xffff);
    assert_eq!(Sum::new().add(&bytes).partial(), 0xff00);
}

#[test]
fn completed_checksum_is_never_zero() {
    // The sum of the other bytes is 0xffff, so that the checksum would be 0.
    let mut head = [9, 9, 0xff, 0xff, 0, 0];
    let checksum = Checksum::Partial { start: 2, offset: 2 };
    assert_eq!(complete(&mut head, checksum, []), Ok(()));
    assert_eq!(head, [9, 9, 0xff, 0xff, 0xff, 0xff]);
}

#[test]
fn checksum_field_outside_the_head_is_refused() {
    let mut head = [1; 10];
    for (start, offset) in [(9, 0), (0, 9), (11, 0), (u16::MAX, u16::MAX)] {
        let checksum = Checksum::Partial { start, offset };
        let misplaced = MisplacedChecksumField {
            start,
            offset,
            len: 10,
        };
        assert_eq!(complete(&mut head, checksum, []), Err(misplaced));
        assert_eq!(head, [1; 10]);
    }
    assert_eq!(complete(&mut head, Checksum::Complete, []), Ok(()));
    assert_eq!(head, [1; 10]);
    let last = Checksum::Partial { start: 8, offset: 0 };
    assert_eq!(complete(&mut head, last, []), Ok(()));
}

proptest! {
    #[test]
    fn sum_is_independent_of_the_split(bytes in vec(any::<u8>(), 0..3_000), cuts in vec(0..300_usize, 0..20)) {
        let mut rest = &bytes[..];
        let mut sum = Sum::new();
        for cut in cuts {
            let (part, after) = rest.split_at(cut.min(rest.len()));
            sum = sum.add(part);
            rest = after;
        }
        prop_assert_eq!(sum.add(rest).partial(), naive(&bytes));
    }

    #[test]
    fn pseudo_header_sum_equals_sum_of_its_bytes(
        v4: ([u8; 4], [u8; 4]),
        v6: ([u8; 16], [u8; 16]),
        protocol: u8,
        len in 0..=65_535_u16,
    ) {
        let layout = [&v4.0[..], &v4.1, &[0, protocol], &len.to_be_bytes()].concat();
        let sum = Sum::pseudo(v4.0.into(), v4.1.into(), protocol, len.into());
        prop_assert_eq!(sum.partial(), naive(&layout));

        let layout = [&v6.0[..], &v6.1, &u32::from(len).to_be_bytes(), &[0, 0, 0, protocol]].concat();
        let sum = Sum::pseudo(v6.0.into(), v6.1.into(), protocol, len.into());
        prop_assert_eq!(sum.partial(), naive(&layout));
    }

    #[test]
    fn completed_checksum_verifies(
        head in vec(any::<u8>(), 30..200),
        parts in vec(vec(any::<u8>(), 0..70), 0..5),
    ) {
        let (start, offset) = (14_u16, 6_u16);
        let pseudo = Sum::pseudo(Ipv4Addr::LOCALHOST.into(), Ipv4Addr::BROADCAST.into(), 17, 999);
        let mut head = head;
        head[20..22].copy_from_slice(&pseudo.partial().to_be_bytes());
        let checksum = Checksum::Partial { start, offset };
        prop_assert_eq!(complete(&mut head, checksum, parts.iter().map(|part| &part[..])), Ok(()));
        let all = [&head[14..], &parts.concat()].concat();
        prop_assert_eq!(pseudo.add(&all).finish(), 0);
    }
}

fn naive(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for word in bytes.chunks(2) {
        sum += u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low));
        if sum > 0xffff {
            sum -= 0xffff;
        }
    }
    u16::try_from(sum).unwrap()
}
