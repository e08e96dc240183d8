//! Receiving of several datagrams with their control messages by one system call (recvmmsg(2)).

use std::os::fd::AsFd;

use rustix::io::Errno;

use crate::header::{self, BatchedHeader, MessageHeader};
use crate::udp::CONTROL;

/// Buffers for the datagrams of one recvmmsg(2), and the datagrams of the last call.
#[derive(Debug)]
pub struct Batch {
    headers: Vec<BatchedHeader>,
    /// One element for each header, which references it; so this vector must not be reallocated.
    _iovecs: Vec<libc::iovec>,
    /// Payload buffers, `room` bytes for each datagram; referenced by `_iovecs`.
    bytes: Vec<u8>,
    /// Buffers for control messages, [`CONTROL`] bytes for each datagram; referenced by `headers`.
    control: Vec<u8>,
    room: usize,
    /// Number of datagrams that the last call has received.
    received: usize,
}

impl Batch {
    /// Creates buffers for `messages` datagrams of up to `room` bytes each; longer datagrams are truncated.
    #[must_use]
    pub fn new(messages: usize, room: usize) -> Self {
        let mut bytes = vec![0; messages * room];
        let mut control = vec![0; messages * CONTROL];
        let at = bytes.as_mut_ptr();
        let mut iovecs: Vec<_> = (0..messages)
            .map(|index| libc::iovec {
                iov_base: at.wrapping_add(index * room).cast(),
                iov_len: room,
            })
            .collect();
        let (iovec, at) = (iovecs.as_mut_ptr(), control.as_mut_ptr());
        let headers = (0..messages)
            .map(|index| {
                let header = MessageHeader {
                    control: at.wrapping_add(index * CONTROL).cast(),
                    control_len: CONTROL,
                    ..MessageHeader::new(iovec.wrapping_add(index), 1)
                };
                header.batched()
            })
            .collect();
        Self {
            headers,
            _iovecs: iovecs,
            bytes,
            control,
            room,
            received: 0,
        }
    }

    /// Waits for a datagram and receives all datagrams that have arrived by then, at most as many as there are buffers.
    /// Returns their number.
    ///
    /// # Errors
    /// Errors of recvmmsg(2).
    pub fn receive(&mut self, socket: impl AsFd) -> Result<usize, Errno> {
        // The last call has overwritten the lengths of the buffers for control messages.
        for header in self.headers.iter_mut().take(self.received) {
            header.header.control_len = CONTROL;
        }
        self.received = 0;
        let headers = &mut self.headers;
        // SAFETY: the headers reference the heap memory of `_iovecs`, `bytes` and `control`, which this value owns and
        // never grows; it is borrowed exclusively, so no reference into that memory exists now.
        self.received = unsafe { header::receive_batch(socket.as_fd(), headers, libc::MSG_WAITFORONE) }?;
        Ok(self.received)
    }

    /// Returns payload and control messages of datagram `index` of the last [`receive`](Self::receive).
    ///
    /// # Panics
    /// If the last call has received `index` datagrams or fewer.
    pub fn message(&mut self, index: usize) -> (&mut [u8], &[u8]) {
        assert!(index < self.received, "message {index} of {}", self.received);
        let header = &self.headers[index];
        let len = (header.len as usize).min(self.room);
        let control_len = header.header.control_len.min(CONTROL);
        (
            &mut self.bytes[index * self.room..][..len],
            &self.control[index * CONTROL..][..control_len],
        )
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::udp::{self, Ancillary};

    #[test]
    fn receive_returns_at_most_as_many_datagrams_as_buffers() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(server.local_addr().unwrap()).unwrap();
        let mut batch = Batch::new(2, 4);
        for sent in [&b"one"[..], b"two", b"three"] {
            client.send(sent).unwrap();
        }
        assert_eq!(batch.receive(&server), Ok(2));
        assert_eq!(batch.message(0), (&mut b"one".to_owned()[..], &[][..]));
        assert_eq!(batch.message(1).0, b"two");
        assert_eq!(batch.receive(&server), Ok(1));
        assert_eq!(batch.message(0).0, b"thre");
    }

    #[test]
    fn lengths_of_control_buffers_are_reset_between_calls() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        udp::coalesce(&server).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(server.local_addr().unwrap()).unwrap();
        udp::set_segment(&client, 1000).unwrap();
        let mut batch = Batch::new(4, 65536);
        for _ in 0..3 {
            client.send(&[7; 2500]).unwrap();
            assert_eq!(batch.receive(&server), Ok(1));
            let (bytes, control) = batch.message(0);
            assert_eq!(
                (bytes.len(), Ancillary::decode(control).stride),
                (2500, Some(1000))
            );
        }
    }

    #[test]
    #[should_panic(expected = "message 0 of 0")]
    fn message_panics_before_a_receive() {
        Batch::new(1, 1).message(0);
    }
}
