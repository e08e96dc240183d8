//! Faults that a test plants in the server, to see that the client notices.

/// What goes wrong in a server. The server's threads are generic over it, so that without faults there is no code.
pub trait Fault: 'static {
    /// Called before each answer to a byte or a datagram.
    fn delay() {}

    /// Called with what is about to be sent, or has just been received.
    fn corrupt(_bytes: &mut [u8]) {}

    /// Called before bytes are sent or received, with the position in their stream.
    fn block(_position: u64) {}
}

/// Nothing goes wrong.
#[derive(Debug)]
pub struct NoFault;

impl Fault for NoFault {}
