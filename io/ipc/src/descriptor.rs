//! File descriptors that are passed with a message (SCM_RIGHTS).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// File descriptor that is part of a message and is shared by all copies of the message. In the text of the message it is
/// `null`: the descriptor is passed with SCM_RIGHTS. It is empty if it could not be passed (see
/// [`ChannelMessage::may_lack_descriptors`](crate::ChannelMessage::may_lack_descriptors)).
#[derive(Clone, Debug, Default)]
pub struct Descriptor(Option<Arc<OwnedFd>>);

impl Descriptor {
    /// Returns the shared descriptor.
    ///
    /// # Errors
    /// It could not be passed.
    pub fn into_inner(self) -> io::Result<Arc<OwnedFd>> {
        self.0.ok_or_else(|| {
            io::Error::other(
                "no file descriptor was passed: too many are open, or too many in flight for this user",
            )
        })
    }

    /// Returns the descriptor if this is its only copy.
    #[must_use]
    pub fn into_owned(self) -> Option<OwnedFd> {
        self.0.and_then(Arc::into_inner)
    }

    /// Borrows the descriptor; `None` if it was not received.
    #[must_use]
    pub fn borrow(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }

    pub(crate) fn set(&mut self, descriptor: OwnedFd) {
        self.0 = Some(Arc::new(descriptor));
    }
}

impl From<Arc<OwnedFd>> for Descriptor {
    fn from(descriptor: Arc<OwnedFd>) -> Self {
        Self(Some(descriptor))
    }
}

/// Descriptors are equal if they have the same number.
impl PartialEq for Descriptor {
    fn eq(&self, other: &Self) -> bool {
        let number = |descriptor: &Self| descriptor.0.as_ref().map(AsRawFd::as_raw_fd);
        number(self) == number(other)
    }
}

impl Eq for Descriptor {}

impl Serialize for Descriptor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl<'de> Deserialize<'de> for Descriptor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <()>::deserialize(deserializer).map(|()| Self::default())
    }
}
