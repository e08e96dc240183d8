//! Attaching to a vhost-user socket: for a process on Linux.

use std::io;
use std::os::unix::net::UnixStream;

use vhost::vhost_user::Frontend;

use crate::{Error, Interface, Map, Pacing, Platform};

mod mapping;
mod process;
mod session;

pub use mapping::Mapping;
pub use process::Process;

use mapping::ORIGIN;
use session::Session;

/// An interface that was attached to a vhost-user socket, with `N` frames each way.
pub type Attached<const N: usize = 256> = Interface<Mapping, Process, N>;

/// What an attached interface is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of the longest frame, without a checksum behind it: 14 more than the MTU.
    pub frame: u16,
    /// How to wait.
    pub pacing: Pacing,
}

impl Default for Options {
    /// An MTU of 1,500, and hybrid pacing.
    fn default() -> Self {
        Self {
            frame: 1514,
            pacing: Pacing::Hybrid,
        }
    }
}

/// An interface could not be attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The vhost-user session failed.
    #[error("the vhost-user session: {0}")]
    Session(#[from] vhost::Error),
    /// The device does not offer VIRTIO_F_VERSION_1.
    #[error("the device knows only the virtio of before 1.0")]
    Legacy,
    /// Out of memory or of descriptors.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The rings could not be made.
    #[error(transparent)]
    Interface(#[from] Error),
}

/// Attaches an interface to the device at the other end of `socket`, and starts it. Waits for the device's answers, as
/// long as the socket's timeout.
///
/// The clock of its deadlines is CLOCK_MONOTONIC. From here on the process makes no system calls but `write` to ring, and
/// `ppoll` and `read` to sleep, so that it can lock itself in. When the interface is dropped, the device hears of it by the
/// end of the connection. A device that goes away is noticed by whoever sleeps, which with [`Pacing::Poll`] nobody does.
///
/// # Errors
/// The device refuses, or goes away; out of memory or of descriptors.
///
/// # Example
///
/// Echoes whatever comes, in batches.
///
/// ```no_run
/// use std::os::unix::net::UnixStream;
/// use pontoon_guest::{Attached, Options, QueueError, attach};
///
/// let socket = UnixStream::connect("/run/pontoon/guest.sock")?;
/// let mut interface: Attached = attach(socket, Options::default())?;
/// let mut frame = [0; 1514];
/// loop {
///     interface.poll(None)?;
///     while let Some(len) = interface.read(&mut frame)? {
///         let (to, from) = frame[..12].split_at_mut(6);
///         to.swap_with_slice(from);
///         match interface.queue(&frame[..len]) {
///             Ok(()) | Err(QueueError::Full) => {}
///             Err(error) => return Err(error.into()),
///         }
///     }
///     interface.flush()?;
/// }
/// # #[expect(unreachable_code, reason = "for the type of the question mark")]
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn attach<const N: usize>(socket: UnixStream, options: Options) -> Result<Attached<N>, AttachError> {
    let mut process = Process::new(socket.try_clone()?.into())?;
    // The first look at the clock finds the vDSO, by a system call of its own.
    process.now();
    let mut session = Session::negotiate(Frontend::from_stream(socket, 2))?;
    let map = Map::<N>::new(ORIGIN, options.frame);
    let mapping = Mapping::new(map.bytes())?;
    session.share(&mapping)?;
    let places = [map.receive(), map.transmit()].map(|layout| mapping.place(layout));
    let events = process.events()?;
    let mut interface = Interface::new(mapping, map, session.features(), process, options.pacing)?;
    for ((number, place), [kick, call]) in places.into_iter().enumerate().zip(&events) {
        session.set_up(number, &place?, kick, call)?;
    }
    session.enable()?;
    interface.start();
    Ok(interface)
}
