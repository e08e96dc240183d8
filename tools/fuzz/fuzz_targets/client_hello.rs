//! Fuzz target: the reader of ClientHellos, and the removal of `ech` from DNS responses.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pontoon_names::client_hello::{LIMIT, Progress};
use pontoon_test_support::client_hello;
use tls_parser::{TlsExtension, parse_tls_client_hello_extensions, parse_tls_handshake_client_hello};

fuzz_target!(|bytes: &[u8]| {
    client_hello::run(bytes);
    compare(bytes);
});

/// Checks that another parser reads the same name from a handshake message for which the reader has a name.
fn compare(content: &[u8]) {
    let mut message = vec![1];
    message.extend(&(content.len() as u32).to_be_bytes()[1..]);
    message.extend(content);
    let Progress::Name(hello) = client_hello::read(&client_hello::records(&message, &[LIMIT]), &[usize::MAX])
    else {
        return;
    };
    let (rest, other) = parse_tls_handshake_client_hello(content).expect("a ClientHello");
    assert!(rest.is_empty());
    let (_, extensions) =
        parse_tls_client_hello_extensions(other.ext.unwrap_or_default()).expect("extensions");
    let names = extensions.iter().find_map(|extension| match extension {
        TlsExtension::SNI(names) => Some(names),
        _ => None,
    });
    // That parser ends the list at an extension whose content is invalid.
    if let Some(names) = names {
        let [(_, name)] = names[..] else {
            panic!("{names:?}");
        };
        let name = std::str::from_utf8(name).expect("ASCII").to_ascii_lowercase();
        assert_eq!(name.strip_suffix('.').unwrap_or(&name), hello.name.as_str());
    }
}
