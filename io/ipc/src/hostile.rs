//! Fuzz target of the decoder of messages.

use std::fs::File;
use std::os::fd::OwnedFd;

use crate::{ChannelMessage, decode, encode};

/// Decodes a message with zero to two descriptors; returns it if it is accepted.
///
/// # Panics
/// The message differs after it has been encoded and decoded again.
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
        // The text of a decoded message can be longer than the received text.
        if let Ok(encoded) = encode(&message) {
            let again = decoded(&encoded, count);
            assert_eq!(again.map(|again| encode(&again).ok()), Some(Some(encoded)));
        }
        accepted = Some(message);
    }
    accepted
}
