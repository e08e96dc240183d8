//! Arbitrary input for the decoder of messages, for fuzz targets and tests.

use std::fs::File;
use std::os::fd::OwnedFd;

use crate::{ChannelMessage, decode, encode};

/// Decodes a message that comes with each number of descriptors up to two. The encoding of an accepted message is decoded
/// as the same message, which is returned.
///
/// # Panics
/// The two differ.
pub fn message<M: ChannelMessage>(bytes: &[u8]) -> Option<M> {
    let descriptors = |count| (0..count).filter_map(|_| File::open("/dev/null").ok().map(OwnedFd::from));
    let decoded = |bytes: &[u8], count| decode::<M>(bytes, descriptors(count).collect()).ok();
    let mut accepted = None;
    for count in 0..3 {
        let Some(message) = decoded(bytes, count) else {
            continue;
        };
        let received = message
            .descriptors()
            .into_iter()
            .filter(|place| place.borrow().is_some());
        assert_eq!(received.count(), count);
        // The text of a decoded message can be longer than the received one.
        if let Ok(encoded) = encode(&message) {
            let again = decoded(&encoded, count);
            assert_eq!(again.map(|again| encode(&again).ok()), Some(Some(encoded)));
        }
        accepted = Some(message);
    }
    accepted
}
