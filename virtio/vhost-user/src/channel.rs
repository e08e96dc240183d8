//! The socket of a vhost-user session: receives complete messages and sends replies, without blocking.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendFlags,
    recvmsg, sendmsg,
};
use zerocopy::IntoBytes;

use crate::message::{HEADER, MAX_BODY, MAX_REGIONS, MalformedMessage, MessageHeader};

/// The device's end of the connection to the front-end.
#[derive(Debug)]
pub(crate) struct FrontEndChannel {
    socket: OwnedFd,
    buffer: Box<[u8; HEADER + MAX_BODY]>,
    /// Number of received bytes of the current message.
    have: usize,
    /// Header of the current message, after it was received.
    header: Option<MessageHeader>,
    fds: Vec<OwnedFd>,
}

/// A complete message of the front-end.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub(crate) header: MessageHeader,
    pub(crate) body: &'a [u8],
    pub(crate) fds: Vec<OwnedFd>,
}

/// Reason why the connection to a front-end cannot be used any longer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    #[error("the front-end has closed the connection")]
    Closed,
    #[error("the front-end has closed the connection within a message")]
    Truncated,
    #[error(transparent)]
    Malformed(#[from] MalformedMessage),
    #[error("a message has more than {MAX_REGIONS} descriptors")]
    Descriptors,
    #[error("the front-end does not read its replies")]
    SendBufferFull,
    #[error(transparent)]
    Socket(#[from] Errno),
}

impl FrontEndChannel {
    /// Creates the device's end on `socket`, which must be non-blocking.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            buffer: Box::new([0; HEADER + MAX_BODY]),
            have: 0,
            header: None,
            fds: Vec::new(),
        }
    }

    /// Returns true if the front-end has shut down its sending side.
    pub(crate) fn peer_closed(&self) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Returns the next message if it was received completely.
    pub(crate) fn receive(&mut self) -> Result<Option<Message<'_>>, ChannelError> {
        loop {
            let need = HEADER + self.header.map_or(0, |header| header.size as usize);
            // No byte of the next message is read, because its descriptors would arrive with this message.
            if self.have < need {
                match self.read(need) {
                    Ok(0) if self.have == 0 => return Err(ChannelError::Closed),
                    Ok(0) => return Err(ChannelError::Truncated),
                    Ok(bytes) => self.have += bytes,
                    Err(ChannelError::Socket(Errno::AGAIN)) => return Ok(None),
                    Err(broken) => return Err(broken),
                }
                continue;
            }
            let Some(header) = self.header.take() else {
                let bytes = self.buffer.first_chunk().expect("the buffer holds a header");
                self.header = Some(MessageHeader::parse(bytes)?);
                continue;
            };
            self.have = 0;
            return Ok(Some(Message {
                header,
                body: &self.buffer[HEADER..need],
                fds: std::mem::take(&mut self.fds),
            }));
        }
    }

    /// Reads until the buffer contains `need` bytes of the message or the socket is empty.
    fn read(&mut self, need: usize) -> Result<usize, ChannelError> {
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut self.buffer[self.have..need])];
        let received = rustix::io::retry_on_intr(|| {
            recvmsg(&self.socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                self.fds.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || self.fds.len() > MAX_REGIONS {
            return Err(ChannelError::Descriptors);
        }
        Ok(received.bytes)
    }

    /// Sends the reply to message `code`.
    pub(crate) fn reply(&mut self, code: u32, body: &[u8]) -> Result<(), ChannelError> {
        let header = MessageHeader::reply(code, body.len());
        let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(body)];
        let mut control = SendAncillaryBuffer::default();
        let sent = rustix::io::retry_on_intr(|| {
            sendmsg(
                &self.socket,
                &parts,
                &mut control,
                SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
            )
        });
        match sent {
            Ok(bytes) if bytes == HEADER + body.len() => Ok(()),
            // The socket's buffer is full, because the front-end does not read its replies. After a partial reply it
            // could not parse anything.
            Ok(_) | Err(Errno::AGAIN) => Err(ChannelError::SendBufferFull),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(ChannelError::Closed),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for FrontEndChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

const SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_REGIONS));
