use pontoon_wire::Mac;

use super::*;
use crate::pattern;

const ETHER: EtherAddresses = EtherAddresses {
    source: Mac([2, 0, 0, 0, 0, 1]),
    destination: Mac([2, 0, 0, 0, 0, 2]),
};

fn segments(family: &str, lens: &[usize]) -> Vec<Segment> {
    let mut seq = 0xffff_f000_u32;
    lens.iter()
        .map(|&len| {
            let segment = Segment {
                from: format!("{family}:1000").parse().unwrap(),
                to: format!("{family}:2000").parse().unwrap(),
                seq,
                ack: 77,
                payload: pattern::bytes(1, u64::from(seq.wrapping_add(0x1000)), len),
                ..Segment::EMPTY
            };
            seq = segment.end();
            segment
        })
        .collect()
}

fn stream(frames: &[Vec<u8>]) -> (usize, Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let mut fin = false;
    for frame in frames {
        let Ok((_, Packet::Tcp(segment))) = Packet::parse(Offload::NONE, frame) else {
            panic!("not a segment");
        };
        assert_eq!(segment.seq, 0xffff_f000_u32.wrapping_add(bytes.len() as u32));
        assert!(!fin, "data after FIN");
        bytes.extend(&segment.payload);
        fin = segment.flags.has(Flags::FIN);
    }
    (frames.len(), bytes, fin)
}

#[test]
fn split_after_merge_is_identity() {
    for family in ["10.0.2.15", "[fd70::15]"] {
        let mut input = segments(family, &[1448, 1448, 1448, 1000, 1448, 3]);
        input[5].flags = Flags::ACK.and(Flags::FIN);
        let input: Vec<_> = input
            .into_iter()
            .map(|segment| Packet::Tcp(segment).emit(ETHER))
            .collect();
        let mut fewest = input.len();
        for seed in 0..50 {
            let rng = &mut Rng::new(seed);
            let merged = merge(
                rng,
                Merging {
                    most: 60_000,
                    partial: 500,
                },
                input.clone(),
            );
            fewest = fewest.min(merged.len());
            let mut output = Vec::new();
            for (offload, frame) in &merged {
                output.extend(split(rng, false, *offload, frame).unwrap());
            }
            assert_eq!(output, input);
        }
        // [1448, 1448, 1448, 1000] and [1448, 3]: a short segment ends a frame.
        assert_eq!(fewest, 2);
    }
}

#[test]
fn random_split_keeps_the_stream() {
    let mut whole = segments("10.0.2.15", &[50_000]).remove(0);
    whole.flags = Flags::ACK.and(Flags::FIN).and(Flags::PSH);
    let (offload, frame) = Packet::Tcp(whole.clone()).emit_partial(ETHER, Segmentation::Tcp4 { mss: 1448 });
    let mut counts = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let (count, bytes, fin) = stream(&split(&mut Rng::new(seed), true, offload, &frame).unwrap());
        assert_eq!((bytes, fin), (whole.payload.clone(), true));
        counts.insert(count);
    }
    assert!(counts.len() > 3, "sizes do not vary: {counts:?}");
}

#[test]
fn metadata_that_contradicts_the_frame_is_an_error() {
    let segment = segments("10.0.2.15", &[3000]).remove(0);
    let (offload, frame) = Packet::Tcp(segment).emit_partial(ETHER, Segmentation::Tcp6 { mss: 1448 });
    let rng = &mut Rng::new(1);
    assert!(split(rng, false, offload, &frame).is_err());
    assert!(
        split(rng, false, Offload::NONE, &frame).is_err(),
        "an incomplete checksum"
    );
}
