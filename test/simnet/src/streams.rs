//! Numbers of streams: a port identifies a connection, and each direction has contents of its own.

/// The number of the stream that the guest sends.
#[must_use]
pub const fn up(port: u16) -> u64 {
    port as u64
}

/// The number of the stream that the guest receives.
#[must_use]
pub const fn down(port: u16) -> u64 {
    port as u64 | 1 << 32
}
