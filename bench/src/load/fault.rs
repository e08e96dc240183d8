//! Faults that a test injects into the server, to verify that the client detects them.

/// A fault of the server. The server's threads are generic over it, so that a server without faults has no code for
/// them.
pub trait Fault: 'static {
    /// Called before each answer to a byte or a datagram.
    fn delay() {}

    /// Called with bytes that are about to be sent, or were just received.
    fn corrupt(_bytes: &mut [u8]) {}

    /// Called before bytes are sent or received, with their position in the stream.
    fn block(_position: u64) {}
}

/// No fault.
#[derive(Debug)]
pub struct NoFault;

impl Fault for NoFault {}
