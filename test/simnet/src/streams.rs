//! Stream numbers: a port identifies a connection, and each of its directions has its own stream contents.

/// Returns the number of the stream from guest to host.
#[must_use]
pub const fn up(port: u16) -> u64 {
    port as u64
}

/// Returns the number of the stream from host to guest.
#[must_use]
pub const fn down(port: u16) -> u64 {
    port as u64 | 1 << 32
}
