//! Faults of the load server that a test injects to verify that the load client detects them.

/// A fault of the load server. The server's threads are generic over it, so that a server without faults
/// contains no code for them.
pub trait Fault: 'static {
    /// Delays an answer; called before each answer to a byte or a datagram.
    fn delay() {}

    /// Corrupts bytes; called with bytes that are about to be sent, or were just received.
    fn corrupt(_bytes: &mut [u8]) {}

    /// Blocks a stream; called with the stream position before bytes are sent or received there.
    fn block(_position: u64) {}
}

/// The absence of faults, for the server of measurements.
#[derive(Debug)]
pub struct NoFault;

impl Fault for NoFault {}
