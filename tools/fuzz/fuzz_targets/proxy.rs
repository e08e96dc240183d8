//! Fuzz target: the handshakes with proxies, and the text of their addresses.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pontoon_test_support::proxy;

fuzz_target!(|bytes: &[u8]| proxy::run(bytes));
