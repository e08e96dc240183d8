use super::envelope;
use super::{MOST_BYTES, Reader, Record, STATE_VERSION, StateError, Writer, record, record_enum};
use crate::Instant;
use crate::pool::Pool;

/// A record as version 1 has it.
#[derive(Debug, PartialEq, Eq)]
struct First {
    port: u16,
    used: Instant,
}

record! { First { port, used } }

/// The same record with fields that version 2 has added, in front of and behind others.
#[derive(Debug, PartialEq, Eq)]
struct Second {
    shade: Shade,
    port: u16,
    used: Instant,
    names: Vec<u8>,
    cache: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum Shade {
    Plain,
    Known { at: Instant },
    Of(u32),
}

record_enum! { Shade { 0 = Plain, 1 = Known { at }, 2 = Of(value) } }
record! { Second {
    shade since 2 = Shade::Plain,
    port,
    used,
    names since 2 = vec![7],
} elsewhere { cache = 9 } }

fn saved(value: &impl Record) -> Vec<u8> {
    let pool = Pool::empty();
    let mut to = Writer::new(&pool);
    to.put(value);
    to.into_bytes()
}

fn loaded<T: Record>(bytes: &[u8], version: u32, shift: i64) -> Result<T, StateError> {
    let mut pool = Pool::empty();
    let mut from = Reader::new(bytes, version, shift, &mut pool);
    let value = from.get()?;
    from.finish().map(|()| value)
}

const USED: Instant = Instant(500);

#[test]
fn field_of_a_later_version_has_its_default_in_an_earlier_state() {
    let first = saved(&First { port: 80, used: USED });
    let expected = Second {
        shade: Shade::Plain,
        port: 80,
        used: USED,
        names: vec![7],
        cache: 9,
    };
    assert_eq!(loaded(&first, 1, 0), Ok(expected));
    // With the fields of version 2, the state is too short.
    assert_eq!(loaded::<Second>(&first, 2, 0), Err(StateError::Malformed));
}

#[test]
fn record_is_read_as_it_was_written() {
    for shade in [Shade::Plain, Shade::Known { at: Instant(3) }, Shade::Of(u32::MAX)] {
        let second = Second {
            shade,
            port: 443,
            used: USED,
            names: vec![1, 2, 3],
            cache: 9,
        };
        let bytes = saved(&second);
        assert_eq!(loaded(&bytes, 2, 0), Ok(second));
        for len in 0..bytes.len() {
            assert!(loaded::<Second>(&bytes[..len], 2, 0).is_err(), "{len}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(loaded::<Second>(&longer, 2, 0), Err(StateError::Malformed));
    }
}

#[test]
fn unknown_codes_and_counts_beyond_the_state_are_refused() {
    assert_eq!(loaded::<Shade>(&[3], 1, 0), Err(StateError::Malformed));
    assert_eq!(loaded::<bool>(&[2], 1, 0), Err(StateError::Malformed));
    assert_eq!(
        loaded::<core::net::IpAddr>(&[5, 0, 0, 0, 0], 1, 0),
        Err(StateError::Malformed)
    );
    assert_eq!(loaded::<Vec<u64>>(&[0xff; 7], 1, 0), Err(StateError::Truncated));
    assert_eq!(
        loaded::<arrayvec::ArrayVec<u8, 2>>(&[3, 0, 0, 0, 1, 1, 1], 1, 0),
        Err(StateError::Limit)
    );
}

#[test]
fn times_are_moved_by_the_difference_of_the_clocks() {
    let moved = |at: u64, shift| loaded::<Instant>(&saved(&Instant(at)), 1, shift).unwrap().0;
    assert_eq!(moved(1_000, 50), 1_050);
    assert_eq!(moved(1_000, -2_000), 0);
    assert_eq!([moved(0, 50), moved(u64::MAX, -50)], [0, u64::MAX]);
}

#[test]
fn envelope_of_another_kind_version_or_length_is_refused() {
    let state = envelope::seal(b"records", Instant(5));
    let opened = envelope::open(&state).unwrap();
    assert_eq!(
        (opened.records, opened.at, opened.version),
        (&b"records"[..], Instant(5), STATE_VERSION)
    );
    for len in 0..state.len() {
        assert!(envelope::open(&state[..len]).is_err(), "{len}");
    }
    let longer = [&state[..], b"x"].concat();
    assert_eq!(envelope::open(&longer).unwrap_err(), StateError::Malformed);
    let other = |place: usize, octet: u8| {
        let mut state = state.clone();
        state[place] = octet;
        envelope::open(&state).unwrap_err()
    };
    assert_eq!(other(0, b'P'), StateError::Magic);
    let next = u8::try_from(STATE_VERSION + 1).unwrap();
    assert_eq!(other(8, next), StateError::Version(STATE_VERSION + 1));
    assert_eq!(other(8, 0), StateError::Version(0));
    assert_eq!(
        envelope::open(&vec![0; MOST_BYTES + 1]).unwrap_err(),
        StateError::Limit
    );
}
