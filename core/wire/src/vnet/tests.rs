use proptest::prelude::*;

use super::*;

#[test]
fn header_of_a_tso_frame_is_parsed() {
    let offload = Offload {
        checksum: Checksum::Partial {
            start: 34,
            offset: 16,
        },
        segmentation: Segmentation::Tcp4 { mss: 1460 },
    };
    // Flags, type, header length, segment size, checksum start and offset, number of buffers.
    let bytes = [1, 1, 54, 0, 0xb4, 0x05, 34, 0, 16, 0, 0, 0];
    assert_eq!(emit(offload, 54), bytes);
    assert_eq!(
        parse(&[&bytes[..], b"frame"].concat()),
        Ok((offload, &b"frame"[..]))
    );
}

#[test]
fn header_without_segmentation_is_parsed() {
    assert_eq!(emit(Offload::NONE, 54), [0; 12]);
    // VIRTIO_NET_HDR_F_DATA_VALID: the sender has verified the checksum.
    assert_eq!(
        parse(&[2, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9]),
        Ok((Offload::NONE, &[][..]))
    );
}

#[test]
fn malformed_virtio_net_headers_are_refused() {
    let typed = |kind, size| {
        let bytes = [1, kind, 0, 0, size, 0, 34, 0, 16, 0, 0, 0];
        parse(&bytes).map(|(offload, _)| offload.segmentation)
    };
    assert_eq!(typed(1, 9), Ok(Segmentation::Tcp4 { mss: 9 }));
    assert_eq!(typed(4, 9), Ok(Segmentation::Tcp6 { mss: 9 }));
    assert_eq!(typed(5, 9), Ok(Segmentation::Udp { len: 9 }));
    for kind in [1, 4, 5] {
        assert_eq!(typed(kind, 0), Err(VnetHeaderError::ZeroSegment(kind)));
        assert_eq!(
            typed(kind | 0x80, 9),
            Err(VnetHeaderError::UnknownGso(kind | 0x80)),
            "ECN"
        );
    }
    for kind in [2, 3, 6, 0x80, 0xff] {
        assert_eq!(typed(kind, 9), Err(VnetHeaderError::UnknownGso(kind)));
    }
    assert_eq!(parse(&[0; 11]), Err(VnetHeaderError::NoHeader(11)));
}

#[test]
fn number_of_buffers_is_read_from_num_buffers() {
    let bytes = [1, 1, 54, 0, 0xb4, 0x05, 34, 0, 16, 0, 3, 1];
    assert_eq!(buffers(&bytes), Some(259));
    assert_eq!(buffers(&bytes[..11]), None);
}

proptest! {
    #[test]
    fn emitted_header_parses_back(kind in 0..4, size in 1..=u16::MAX, partial: Option<(u16, u16)>) {
        let segmentation = match kind {
            0 => Segmentation::Whole,
            1 => Segmentation::Tcp4 { mss: size },
            2 => Segmentation::Tcp6 { mss: size },
            _ => Segmentation::Udp { len: size },
        };
        let checksum = match partial {
            Some((start, offset)) => Checksum::Partial { start, offset },
            None if kind == 0 => Checksum::Complete,
            None => Checksum::Partial { start: 34, offset: 16 },
        };
        let offload = Offload { checksum, segmentation };
        let bytes = emit(offload, 66);
        prop_assert_eq!(parse(&bytes), Ok((offload, &[][..])));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes: [u8; 12]) {
        let _ = parse(&bytes);
    }
}
