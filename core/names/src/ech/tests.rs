use proptest::prelude::*;

use super::*;

/// A record of a test's message.
struct Record {
    kind: u16,
    data: Vec<u8>,
}

/// Returns the response to a query for the HTTPS record of a.example, with the flag AD.
fn response(records: &[Record]) -> Vec<u8> {
    let mut message = vec![0x12, 0x34, 0x81, 0xa0, 0, 1, 0, 0, 0, 0, 0, 0];
    message[7] = records.len() as u8;
    message.extend(b"\x01a\x07example\0\0\x41\0\x01");
    for record in records {
        // The owner is a pointer to the question's name.
        message.extend([0xc0, 12]);
        message.extend(record.kind.to_be_bytes());
        message.extend([0, 1, 0, 0, 0, 60]);
        message.extend((record.data.len() as u16).to_be_bytes());
        message.extend(&record.data);
    }
    message
}

/// Returns an HTTPS record with these parameters, whose target is its owner.
fn https(params: &[(u16, &[u8])]) -> Record {
    let mut data = vec![0, 1, 0];
    for (key, value) in params {
        data.extend(key.to_be_bytes());
        data.extend((value.len() as u16).to_be_bytes());
        data.extend(*value);
    }
    Record { kind: 65, data }
}

const ALPN: (u16, &[u8]) = (1, b"\x02h2");
const HINT4: (u16, &[u8]) = (4, &[192, 0, 2, 1]);
const ECH: (u16, &[u8]) = (5, b"the key");
const HINT6: (u16, &[u8]) = (6, &[0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

fn filler(length: usize) -> Vec<u8> {
    vec![0; length]
}

#[test]
fn ech_is_replaced_by_a_private_parameter_of_the_same_length() {
    let address = || Record {
        kind: 1,
        data: vec![192, 0, 2, 1],
    };
    let before = [
        address(),
        https(&[ALPN, HINT4, ECH, HINT6]),
        address(),
        https(&[ECH]),
    ];
    let mut message = response(&before);
    assert_eq!(remove(&mut message), Ok(Removal::Removed));
    let after = [
        address(),
        https(&[ALPN, HINT4, HINT6, (65_534, &filler(7))]),
        address(),
        https(&[(65_534, &filler(7))]),
    ];
    let mut expected = response(&after);
    expected[3] = 0x80;
    assert_eq!(
        message, expected,
        "the flag AD is cleared, and everything else is kept"
    );
    assert_eq!(remove(&mut message), Ok(Removal::Unchanged));
}

#[test]
fn ech_is_removed_from_the_list_of_mandatory_keys() {
    for (before, after, rest) in [
        (&[0, 1, 0, 5][..], &[0, 1][..], 9),
        (&[0, 5, 0, 6], &[0, 6], 9),
        (&[0, 4, 0, 6], &[0, 4, 0, 6], 7),
    ] {
        let mut message = response(&[https(&[(0, before), ALPN, HINT4, ECH, HINT6])]);
        assert_eq!(remove(&mut message), Ok(Removal::Removed));
        let mut expected = response(&[https(&[(0, after), ALPN, HINT4, HINT6, (65_534, &filler(rest))])]);
        expected[3] = 0x80;
        assert_eq!(message, expected);
    }
    let mut message = response(&[https(&[(0, &[0, 5]), ECH])]);
    assert_eq!(remove(&mut message), Ok(Removal::Removed));
    assert_eq!(message[3], 0x80);
    assert!(message.ends_with(&response(&[https(&[(65_534, &filler(13))])])[27..]));
}

#[test]
fn svcb_records_and_aliases_are_handled_too() {
    for priority in [0, 1] {
        let mut record = https(&[ECH]);
        record.kind = 64;
        record.data[1] = priority;
        // The target is another name.
        record.data.splice(2..3, *b"\x01b\0");
        let mut message = response(&[record]);
        assert_eq!(remove(&mut message), Ok(Removal::Removed));
        assert!(!message.windows(7).any(|part| part == b"the key"));
    }
}

#[test]
fn records_of_all_sections_are_handled() {
    for section in [9, 11] {
        let mut message = response(&[https(&[ECH])]);
        message[7] = 0;
        message[section] = 1;
        assert_eq!(remove(&mut message), Ok(Removal::Removed), "count at {section}");
    }
}

#[test]
fn message_without_ech_is_unchanged() {
    let messages = [
        response(&[]),
        response(&[https(&[ALPN, HINT4, HINT6])]),
        // The data of another type looks like a service.
        response(&[Record {
            kind: 16,
            data: https(&[ECH]).data,
        }]),
    ];
    for mut message in messages {
        let before = message.clone();
        assert_eq!(remove(&mut message), Ok(Removal::Unchanged));
        assert_eq!(message, before);
    }
}

#[test]
fn malformed_message_is_an_error_and_unchanged() {
    let sound = response(&[https(&[ALPN, ECH])]);
    let cut = |length: usize| sound[..length].to_vec();
    let mut missing = sound.clone();
    missing[7] = 2;
    let mut long = sound.clone();
    let length = long.len() - 8;
    long[length] += 1;
    let messages = [
        cut(11),
        cut(20),
        cut(sound.len() - 1),
        missing,
        long,
        // The keys are not in ascending order.
        response(&[https(&[ECH, ALPN])]),
        response(&[https(&[ECH, ECH])]),
        // The key of the filler is in use.
        response(&[https(&[ECH, (65_534, b"")])]),
        response(&[Record {
            kind: 65,
            data: vec![0, 1],
        }]),
        // The first record is sound.
        response(&[
            https(&[ECH]),
            Record {
                kind: 65,
                data: vec![0],
            },
        ]),
    ];
    for mut message in messages {
        let before = message.clone();
        assert_eq!(remove(&mut message), Err(Malformed), "{message:?}");
        assert_eq!(message, before);
    }
}

#[test]
fn message_whose_names_refer_to_removed_octets_is_malformed() {
    let mut message = response(&[https(&[(5, b"")]), https(&[ALPN])]);
    // The owner of the second record is at the key of the first one's parameter: the root before the change, and a pointer
    // behind the end of the message after it.
    let key = message.windows(4).position(|part| part == [0, 5, 0, 0]).unwrap();
    let owner = message.windows(2).rposition(|part| part == [0xc0, 12]).unwrap();
    message[owner + 1] = u8::try_from(key).unwrap();
    let before = message.clone();
    assert_eq!(remove(&mut message), Err(Malformed));
    assert_eq!(message, before);
}

proptest! {
    #[test]
    fn no_ech_is_left_in_any_mutated_message(
        flips in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..6),
    ) {
        let mut message = response(&[https(&[(0, &[0, 5]), ALPN, ECH]), https(&[ECH, HINT6])]);
        for (place, value) in flips {
            let place = place % message.len();
            message[place] = value;
        }
        let length = message.len();
        if remove(&mut message).is_ok() {
            prop_assert_eq!(remove(&mut message), Ok(Removal::Unchanged));
        }
        prop_assert_eq!(message.len(), length);
    }
}
