//! The links that a supervisor can attach a guest by, and the macro that makes [`Attachment`](crate::Attachment) of them.

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;

use crate::Link;

/// A link that the supervisor opens for an engine.
pub trait Attach {
    /// The engine's end of the link, as the supervisor has opened it.
    type Endpoint: Debug;

    /// Returns the number of workers that the endpoint needs.
    fn workers(endpoint: &Self::Endpoint) -> u8;

    /// Returns the descriptors that the engine process needs.
    fn descriptors(endpoint: &Self::Endpoint) -> Vec<BorrowedFd<'_>>;

    /// Returns a copy with descriptors of its own.
    ///
    /// # Errors
    /// Out of descriptors.
    fn try_clone(endpoint: &Self::Endpoint) -> io::Result<Self::Endpoint>;

    /// Returns true if another engine can continue on the endpoint after one has crashed.
    fn outlives_engine(endpoint: &Self::Endpoint) -> bool;

    /// Opens a link for each worker, to a guest whose interface has this MTU, and passes them to `server`.
    ///
    /// # Errors
    /// A link could not be opened, or the server's error.
    fn serve(endpoint: Self::Endpoint, mtu: u16, server: impl Serve) -> io::Result<()>;
}

/// A user of links of any type.
pub trait Serve {
    /// Serves a guest by its links, one for each worker, until it has disconnected for good.
    ///
    /// # Errors
    /// The text names what failed.
    fn serve<L: Link>(self, links: Vec<L>) -> io::Result<()>;
}

/// Defines `Attachment`: a variant for each line, with the type of its endpoint and that of its link, which is [`Attach`].
macro_rules! attachments {
    ($($(#[$doc:meta])* $name:ident($endpoint:ty) => $link:ty;)*) => {
        /// The guest's link, as the supervisor has opened it.
        #[derive(Debug)]
        pub enum Attachment {
            $($(#[$doc])* $name($endpoint),)*
        }

        impl Attachment {
            /// Returns the number of workers that the attachment needs.
            #[must_use]
            pub fn workers(&self) -> u8 {
                match self {
                    $(Self::$name(endpoint) => <$link as $crate::Attach>::workers(endpoint),)*
                }
            }

            /// Returns the descriptors that the engine process needs.
            #[must_use]
            pub fn descriptors(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
                match self {
                    $(Self::$name(endpoint) => <$link as $crate::Attach>::descriptors(endpoint),)*
                }
            }

            /// Returns a copy with descriptors of its own. Copies of a listener do not share accepted connections.
            ///
            /// # Errors
            /// Out of descriptors.
            pub fn try_clone(&self) -> std::io::Result<Self> {
                Ok(match self {
                    $(Self::$name(endpoint) => Self::$name(<$link as $crate::Attach>::try_clone(endpoint)?),)*
                })
            }

            /// Returns true if another engine can continue on this attachment after one has crashed. An accepted
            /// connection ends with its engine, and the guest connects again.
            #[must_use]
            pub fn outlives_engine(&self) -> bool {
                match self {
                    $(Self::$name(endpoint) => <$link as $crate::Attach>::outlives_engine(endpoint),)*
                }
            }

            /// Opens a link for each worker, to a guest whose interface has this MTU, and passes them to `server`.
            ///
            /// # Errors
            /// A link could not be opened, or the server's error.
            pub fn serve(self, mtu: u16, server: impl $crate::Serve) -> std::io::Result<()> {
                match self {
                    $(Self::$name(endpoint) => <$link as $crate::Attach>::serve(endpoint, mtu, server),)*
                }
            }
        }
    };
}
pub(crate) use attachments;
