//! The links by which a supervisor can attach a guest to an engine, and the macro that defines
//! [`Attachment`](crate::Attachment).

use std::fmt::Debug;
use std::io;
use std::os::fd::BorrowedFd;

use crate::Link;

/// A type of link whose descriptors the supervisor opens and an engine process serves.
pub trait Attach {
    /// The engine's end of the link, with the descriptors that the supervisor has opened.
    type Endpoint: Debug;

    /// Returns the number of workers that `endpoint` needs: one for each of its queues.
    fn workers(endpoint: &Self::Endpoint) -> u8;

    /// Returns the descriptors of `endpoint`, which the engine process must inherit.
    fn descriptors(endpoint: &Self::Endpoint) -> Vec<BorrowedFd<'_>>;

    /// Returns a copy of `endpoint` with duplicated descriptors.
    ///
    /// # Errors
    /// Errors of dup(2): no free descriptor.
    fn try_clone(endpoint: &Self::Endpoint) -> io::Result<Self::Endpoint>;

    /// Returns true if a new engine process can continue on `endpoint` after an engine process has crashed.
    fn outlives_engine(endpoint: &Self::Endpoint) -> bool;

    /// Opens a link for each worker and passes the links to `server`. `mtu` is the MTU of the guest's interface.
    ///
    /// # Errors
    /// A link could not be opened, or `server` has returned an error.
    fn serve(endpoint: Self::Endpoint, mtu: u16, server: impl LinkServer) -> io::Result<()>;
}

/// A function that serves a guest by links of any type: the engine process.
pub trait LinkServer {
    /// Serves a guest by its links, one for each worker, until it has disconnected and no other guest can connect.
    ///
    /// # Errors
    /// An error that ends the engine; the text names the failed operation.
    fn serve<L: Link + 'static>(self, links: Vec<L>) -> io::Result<()>;
}

/// Defines the enum `Attachment` with one variant for each line: the type of the endpoint and the type of its link,
/// which implements [`Attach`].
macro_rules! attachments {
    ($($(#[$doc:meta])* $name:ident($endpoint:ty) => $link:ty;)*) => {
        /// The engine's end of the guest's link, as the supervisor has opened it.
        #[derive(Debug)]
        pub enum Attachment {
            $($(#[$doc])* $name($endpoint),)*
        }

        impl Attachment {
            /// Returns the number of workers that the link needs: one for each of its queues.
            #[must_use]
            pub fn workers(&self) -> u8 {
                match self {
                    $(Self::$name(endpoint) => <$link as $crate::Attach>::workers(endpoint),)*
                }
            }

            /// Returns the descriptors of the link, which the engine process must inherit.
            #[must_use]
            pub fn descriptors(&self) -> Vec<std::os::fd::BorrowedFd<'_>> {
                match self {
                    $(Self::$name(endpoint) => <$link as $crate::Attach>::descriptors(endpoint),)*
                }
            }

            /// Returns a copy with duplicated descriptors. Copies of a listener do not share accepted connections.
            ///
            /// # Errors
            /// Errors of dup(2): no free descriptor.
            pub fn try_clone(&self) -> std::io::Result<Self> {
                Ok(match self {
                    $(Self::$name(endpoint) => Self::$name(<$link as $crate::Attach>::try_clone(endpoint)?),)*
                })
            }

            /// Returns true if a new engine process can continue on this link after an engine process has crashed. A
            /// connection that the engine has accepted ends with the engine, and the guest reconnects.
            #[must_use]
            pub fn outlives_engine(&self) -> bool {
                match self {
                    $(Self::$name(endpoint) => <$link as $crate::Attach>::outlives_engine(endpoint),)*
                }
            }

            /// Opens a link for each worker and passes the links to `server`. `mtu` is the MTU of the guest's
            /// interface.
            ///
            /// # Errors
            /// A link could not be opened, or `server` has returned an error.
            pub fn serve(self, mtu: u16, server: impl $crate::LinkServer) -> std::io::Result<()> {
                match self {
                    $(Self::$name(endpoint) => <$link as $crate::Attach>::serve(endpoint, mtu, server),)*
                }
            }
        }
    };
}
pub(crate) use attachments;
