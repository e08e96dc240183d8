//! Names of streams: a port names a connection, and each direction has contents of its own.

/// What the guest sends.
#[must_use]
pub const fn up(port: u16) -> u64 {
    port as u64
}

/// What the guest receives.
#[must_use]
pub const fn down(port: u16) -> u64 {
    port as u64 | 1 << 32
}
