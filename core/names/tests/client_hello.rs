//! Tests of the ClientHello reader with recorded and composed hellos.

use pontoon_names::client_hello::{ClientHello, ClientHelloReader, Failure, LIMIT, Progress};
use pontoon_names::{HostName, HostNameError};
use pontoon_test_support::client_hello::{Hello, read, records, run, server_name};
use proptest::prelude::*;

fn name(name: &str, ech: bool) -> Progress {
    let name: HostName = name.parse().expect("a host name");
    Progress::Name(ClientHello { name, ech })
}

/// Returns the result for a hello in one record.
fn of(hello: &Hello) -> Progress {
    read(&records(&hello.message(), &[LIMIT]), &[usize::MAX])
}

/// The hellos that clients have sent, with the expected results (`tests/client_hello/README.md`).
fn recorded() -> Vec<(&'static str, &'static [u8], Progress)> {
    macro_rules! hello {
        ($file:literal, $result:expr) => {
            (
                $file,
                include_bytes!(concat!("client_hello/", $file, ".bin")).as_slice(),
                $result,
            )
        };
    }
    let www = || name("www.example.org", false);
    vec![
        hello!("curl", www()),
        hello!("curl-a-label", name("xn--mnchen-3ya.example", false)),
        hello!("curl-cffi-chrome131", name("www.example.org", true)),
        hello!("curl-cffi-firefox135", name("www.example.org", true)),
        hello!("curl-cffi-safari180", www()),
        hello!("curl-tls12", www()),
        hello!("git", www()),
        hello!("go", www()),
        hello!("go-ech", name("public.example", true)),
        hello!("node", www()),
        hello!(
            "openssl-address",
            Progress::Failed(Failure::Name(HostNameError::Address))
        ),
        hello!("openssl-no-name", Progress::Failed(Failure::NoName)),
        hello!("openssl-small-records", www()),
        hello!("openssl-tls10", www()),
        hello!("openssl-tls11", www()),
        hello!("openssl-tls12", www()),
        hello!("openssl-tls13", www()),
        hello!("openssl-trailing-dot", www()),
        hello!(
            "openssl-u-label",
            Progress::Failed(Failure::Name(HostNameError::NotAscii))
        ),
        hello!("openssl-upper-case", www()),
        hello!("python", www()),
        hello!("wget", name("localhost", false)),
    ]
}

#[test]
fn recorded_hellos_of_clients_are_read() {
    for (file, bytes, result) in recorded() {
        assert_eq!(read(bytes, &[usize::MAX]), result, "{file}");
    }
}

#[test]
fn recorded_hellos_are_read_at_every_split_and_octet_by_octet() {
    for (file, bytes, result) in recorded() {
        for split in 0..bytes.len() {
            assert_eq!(read(bytes, &[split, usize::MAX]), result, "{file} at {split}");
        }
        assert_eq!(read(bytes, &[1]), result, "{file}");
    }
}

#[test]
fn prefix_of_a_hello_needs_more() {
    for (file, bytes, result) in recorded() {
        let mut reader = ClientHelloReader::new();
        for (at, octet) in bytes.iter().enumerate() {
            let progress = reader.push(&[*octet]);
            let expected = if at + 1 == bytes.len() {
                &result
            } else {
                &Progress::NeedMore
            };
            assert_eq!(&progress, expected, "{file} at {at}");
        }
    }
    assert_eq!(ClientHelloReader::new().push(&[]), Progress::NeedMore);
}

#[test]
fn octets_behind_the_hello_do_not_change_the_result() {
    for (file, bytes, result) in recorded() {
        let mut reader = ClientHelloReader::new();
        assert_eq!(reader.push(bytes), result, "{file}");
        assert_eq!(reader.push(b"GET / HTTP/1.1\r\n\r\n"), result, "{file}");
    }
    // Another handshake message in the same record.
    let mut messages = Hello::new("a.example").message();
    messages.extend(Hello::new("b.example").message());
    assert_eq!(
        read(&records(&messages, &[LIMIT]), &[7]),
        name("a.example", false)
    );
}

#[test]
fn hello_in_records_of_one_octet_is_read() {
    let message = Hello::new("a.example").message();
    for segments in [&[usize::MAX][..], &[1], &[5], &[7, 2]] {
        assert_eq!(read(&records(&message, &[1]), segments), name("a.example", false));
    }
}

#[test]
fn versions_from_tls_1_0_to_1_3_are_read_with_any_record_version() {
    for version in 0..=u16::MAX {
        let hello = Hello {
            version,
            ..Hello::new("a.example")
        };
        let expected = match version {
            0x0301..=0x0304 => name("a.example", false),
            _ => Progress::Failed(Failure::Version(version)),
        };
        assert_eq!(of(&hello), expected, "{version:#x}");
    }
    for minor in 0..=255 {
        let mut bytes = records(&Hello::new("a.example").message(), &[LIMIT]);
        bytes[2] = minor;
        assert_eq!(read(&bytes, &[usize::MAX]), name("a.example", false), "{minor}");
    }
}

#[test]
fn hello_without_extensions_or_without_name_has_no_name() {
    let hello = Hello {
        extensions: None,
        ..Hello::new("")
    };
    assert_eq!(of(&hello), Progress::Failed(Failure::NoName));
    let hello = Hello {
        extensions: Some(vec![(23, vec![])]),
        ..Hello::new("")
    };
    assert_eq!(of(&hello), Progress::Failed(Failure::NoName));
}

#[test]
fn only_one_host_name_is_accepted() {
    let two = [server_name(0, b"a.example"), server_name(0, b"a.example")].concat();
    let other = server_name(1, b"a.example");
    let beside = [server_name(1, b"x"), server_name(0, b"a.example")].concat();
    for (list, failure) in [
        (two, Failure::SeveralNames),
        (beside, Failure::SeveralNames),
        (other, Failure::NameType(1)),
        (vec![], Failure::Malformed),
        (server_name(0, b"a.example")[..5].to_vec(), Failure::Malformed),
        (server_name(0, b""), Failure::Name(HostNameError::EmptyLabel)),
        (
            server_name(0, b"a.example\0"),
            Failure::Name(HostNameError::Character),
        ),
        (
            server_name(0, b"2001:db8::1"),
            Failure::Name(HostNameError::Address),
        ),
    ] {
        let hello = Hello {
            extensions: Some(vec![Hello::names(&list)]),
            ..Hello::new("")
        };
        assert_eq!(of(&hello), Progress::Failed(failure), "{list:?}");
    }
    // Octets behind the list.
    let (kind, mut content) = Hello::names(&server_name(0, b"a.example"));
    content.push(0);
    let hello = Hello {
        extensions: Some(vec![(kind, content)]),
        ..Hello::new("")
    };
    assert_eq!(of(&hello), Progress::Failed(Failure::Malformed));
    // An empty extension is that of a server (RFC 6066 section 3).
    let hello = Hello {
        extensions: Some(vec![(0, vec![])]),
        ..Hello::new("")
    };
    assert_eq!(of(&hello), Progress::Failed(Failure::Malformed));
}

#[test]
fn repeated_extension_is_refused() {
    for kind in [0, 0x0a0a, 0xfe0d] {
        let extension = if kind == 0 {
            Hello::names(&server_name(0, b"b.example"))
        } else {
            (kind, vec![])
        };
        let mut hello = Hello::new("a.example");
        let list = hello.extensions.get_or_insert_default();
        list.retain(|(known, _)| *known == 0);
        list.extend([extension.clone(), (43, vec![]), extension]);
        assert_eq!(of(&hello), Progress::Failed(Failure::RepeatedExtension(kind)));
    }
}

#[test]
fn grease_is_ignored_and_encrypted_client_hello_is_reported() {
    let grease = (0..16_u16).map(|high| high << 12 | high << 4 | 0x0a0a);
    for kind in grease.chain([1, 21, 51, 0xfe07, 0xfe0e, 0xff01]) {
        let mut hello = Hello::new("a.example");
        hello
            .extensions
            .get_or_insert_default()
            .insert(0, (kind, vec![0; 3]));
        assert_eq!(of(&hello), name("a.example", false), "{kind:#x}");
    }
    for kind in [0xfe08, 0xfe0d, 0xffce] {
        let mut hello = Hello::new("a.example");
        hello.extensions.get_or_insert_default().push((kind, vec![]));
        assert_eq!(of(&hello), name("a.example", true), "{kind:#x}");
    }
}

#[test]
fn stream_that_is_not_tls_fails_at_once() {
    for (bytes, failure) in [
        (&b"G"[..], Failure::NotTls),
        (b"SSH-2.0-OpenSSH_9.2", Failure::NotTls),
        (b"\0", Failure::NotTls),
        (b"\x15", Failure::NotTls),
        (b"\x16\x02", Failure::NotTls),
        (b"\x16G", Failure::NotTls),
        (b"\x80\x2e\x01\x03\x01", Failure::Ssl2),
        (b"\x80\x2e\x02", Failure::NotTls),
        (b"\x16\x03\x01\0\0", Failure::EmptyRecord),
        (b"\x16\x03\x01\x40\x01", Failure::LongRecord(16_385)),
        (b"\x16\x03\x01\0\x04\x02\0\0\0", Failure::OtherMessage(2)),
        (b"\x16\x03\x01\0\x04\x01\0\x3f\xfd", Failure::TooLong),
        (b"\x16\x03\x01\0\x04\x01\xff\xff\xff", Failure::TooLong),
        (b"\x16\x03\x01\0\x01\x01\x17", Failure::OtherRecord(23)),
        (b"\x16\x03\x01\0\x01\x01\x95", Failure::OtherRecord(0x95)),
        (b"\x16\x03\x01\0\x01\x01\x16\x02", Failure::Malformed),
        (b"\x16\x03\x01\0\x01\x01\x16\x03\x01\0\0", Failure::EmptyRecord),
        (b"\x16\x03\x01\0\x04\x01\0\0\0", Failure::Malformed),
    ] {
        assert_eq!(read(bytes, &[1]), Progress::Failed(failure), "{bytes:x?}");
        assert_eq!(
            read(bytes, &[usize::MAX]),
            Progress::Failed(failure),
            "{bytes:x?}"
        );
        if bytes.len() > 1 {
            let shorter = &bytes[..bytes.len() - 1];
            let is_known = bytes.starts_with(b"SSH") || bytes.starts_with(b"\x80\x2e\x01\x03");
            assert!(
                is_known || read(shorter, &[1]) == Progress::NeedMore,
                "{shorter:x?}"
            );
        }
    }
}

#[test]
fn hello_may_end_at_the_limit_but_not_behind_it() {
    for (excess, expected) in [
        (0, name("a.example", false)),
        (1, Progress::Failed(Failure::TooLong)),
    ] {
        let mut hello = Hello::new("a.example");
        // The headers of the record, of the message and of one more extension.
        let padding = LIMIT - 5 - hello.message().len() - 4 + excess;
        hello
            .extensions
            .get_or_insert_default()
            .push((21, vec![0; padding]));
        let bytes = records(&hello.message(), &[LIMIT]);
        assert_eq!(bytes.len(), LIMIT + excess);
        assert_eq!(read(&bytes, &[usize::MAX]), expected);
        assert_eq!(read(&bytes, &[1_000]), expected);
    }
    // The headers of records count too.
    let mut hello = Hello::new("a.example");
    hello
        .extensions
        .get_or_insert_default()
        .push((21, vec![0; 3_000]));
    let bytes = records(&hello.message(), &[1]);
    assert!(bytes.len() > LIMIT);
    let mut reader = ClientHelloReader::new();
    assert_eq!(reader.push(&bytes[..LIMIT - 1]), Progress::NeedMore);
    assert_eq!(
        reader.push(&bytes[LIMIT - 1..LIMIT]),
        Progress::Failed(Failure::TooLong)
    );
}

#[test]
fn every_cut_of_the_content_is_malformed_or_has_no_name() {
    let message = Hello::new("a.example").message();
    let mut without_extensions = 0;
    for end in 4..message.len() {
        let mut cut = message[..end].to_vec();
        cut[1..4].copy_from_slice(&u32::try_from(end - 4).unwrap().to_be_bytes()[1..]);
        match read(&records(&cut, &[LIMIT]), &[usize::MAX]) {
            Progress::Failed(Failure::Malformed) => {}
            Progress::Failed(Failure::NoName) => without_extensions += 1,
            other => panic!("{end}: {other:?}"),
        }
    }
    // The end of the list of compression methods.
    assert_eq!(without_extensions, 1);
}

#[test]
fn failures_are_described_in_english() {
    for (failure, text) in [
        (Failure::NotTls, "the stream does not begin with a TLS handshake"),
        (Failure::TooLong, "the ClientHello does not end within 16 KiB"),
        (
            Failure::Version(0x0300),
            "the client requests version 0x0300, which is not one of TLS 1.0 to 1.3",
        ),
        (
            Failure::Name(HostNameError::Address),
            "the server name in the ClientHello is not a host name: it is an IP address",
        ),
    ] {
        assert_eq!(failure.to_string(), text);
    }
}

#[test]
fn committed_fuzz_inputs_are_read() {
    pontoon_test_support::corpus::replay("client_hello", 20, run);
}

proptest! {
    #[test]
    fn result_does_not_depend_on_segments_and_records(
        choice in any::<prop::sample::Index>(),
        segments in proptest::collection::vec(1..600_usize, 1..12),
        lengths in proptest::collection::vec(1..900_usize, 1..12),
    ) {
        let recorded = recorded();
        let (_, bytes, result) = choice.get(&recorded);
        prop_assert_eq!(&read(bytes, &segments), result);
        let message = pontoon_test_support::client_hello::message(bytes);
        let mut divided = records(&message, &lengths);
        if divided.len() <= LIMIT {
            prop_assert_eq!(&read(&divided, &segments), result);
        }
        divided.extend(b"more");
        if divided.len() <= LIMIT {
            prop_assert_eq!(&read(&divided, &segments), result);
        }
    }

    #[test]
    fn mutated_hello_ends_within_the_limit(
        choice in any::<prop::sample::Index>(),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        segments in proptest::collection::vec(1..600_usize, 1..12),
    ) {
        let recorded = recorded();
        let mut bytes = choice.get(&recorded).1.to_vec();
        for (place, value) in flips {
            *place.get_mut::<u8>(&mut bytes) = value;
        }
        bytes.resize(LIMIT, 0);
        let result = read(&bytes, &segments);
        prop_assert_ne!(&result, &Progress::NeedMore);
        prop_assert_eq!(&result, &read(&bytes, &[usize::MAX]));
    }
}
