//! Fuzz target: decoders of text: messages between processes, HTTP requests, options, resolv.conf.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    pontoon_supervisor::hostile::play(bytes);
    pontoon_relay_supervisor::hostile::play(bytes);
});
