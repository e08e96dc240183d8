//! The control socket: whole messages in, answers out, never waiting.

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

use crate::message::{HEADER, Header, MAX_BODY, MAX_REGIONS, Malformed};

/// A front-end's end of the session is at the other side of this.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
    buffer: Box<[u8; HEADER + MAX_BODY]>,
    /// Bytes of the message under way.
    have: usize,
    /// Its header, once it is there.
    header: Option<Header>,
    fds: Vec<OwnedFd>,
}

/// A whole message.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    pub(crate) header: Header,
    pub(crate) body: &'a [u8],
    pub(crate) fds: Vec<OwnedFd>,
}

/// The session is over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error("closed by the front-end")]
    Closed,
    #[error("closed by the front-end in the middle of a message")]
    Cut,
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("more descriptors with a message than {MAX_REGIONS}")]
    Descriptors,
    #[error("the front-end does not take its answers")]
    Stuffed,
    #[error(transparent)]
    Socket(#[from] Errno),
}

impl Channel {
    /// `socket` does not block.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            buffer: Box::new([0; HEADER + MAX_BODY]),
            have: 0,
            header: None,
            fds: Vec::new(),
        }
    }

    /// Whether nothing comes but what is there already.
    pub(crate) fn has_hung_up(&self) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// The next message, if all of it is there.
    pub(crate) fn receive(&mut self) -> Result<Option<Message<'_>>, Broken> {
        loop {
            let need = HEADER + self.header.map_or(0, |header| header.size as usize);
            // Not a byte of the next message: its descriptors would come with this one.
            if self.have < need {
                match self.read(need) {
                    Ok(0) if self.have == 0 => return Err(Broken::Closed),
                    Ok(0) => return Err(Broken::Cut),
                    Ok(bytes) => self.have += bytes,
                    Err(Broken::Socket(Errno::AGAIN)) => return Ok(None),
                    Err(broken) => return Err(broken),
                }
                continue;
            }
            let Some(header) = self.header.take() else {
                let bytes = self.buffer.first_chunk().expect("the buffer holds a header");
                self.header = Some(Header::parse(bytes)?);
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

    /// Reads towards `need` bytes.
    fn read(&mut self, need: usize) -> Result<usize, Broken> {
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
            return Err(Broken::Descriptors);
        }
        Ok(received.bytes)
    }

    /// Answers message `code`.
    pub(crate) fn reply(&mut self, code: u32, body: &[u8]) -> Result<(), Broken> {
        let header = Header::reply(code, body.len());
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
            // It asks and does not listen: half a message in its socket would be the last one it understands.
            Ok(_) | Err(Errno::AGAIN) => Err(Broken::Stuffed),
            Err(Errno::PIPE | Errno::CONNRESET) => Err(Broken::Closed),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

const SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_REGIONS));
