//! Attaching of an interface to a vhost-user socket, for a process on Linux.

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
use session::FrontendSession;

/// An interface that is attached to a vhost-user socket, with `N` buffers in each direction.
pub type Attached<const N: usize = 256> = Interface<Mapping, Process, N>;

/// Options of an interface that is attached to a vhost-user socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Length in bytes of the longest frame, without the frame check sequence: the MTU and 14.
    pub frame: u16,
    /// Method by which the interface waits for the device.
    pub pacing: Pacing,
}

impl Default for Options {
    /// Returns options for an MTU of 1,500 bytes, with hybrid pacing.
    fn default() -> Self {
        Self {
            frame: 1514,
            pacing: Pacing::Hybrid,
        }
    }
}

/// Reason why an interface could not be attached to a socket.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The vhost-user session has failed.
    #[error("the vhost-user session has failed: {0}")]
    FrontendSession(#[from] vhost::Error),
    /// The device does not offer VIRTIO_F_VERSION_1 (a legacy device).
    #[error("the device does not offer VIRTIO_F_VERSION_1")]
    Legacy,
    /// A system call has failed, for example because no memory or descriptor was free.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The rings could not be created in the shared memory.
    #[error(transparent)]
    Interface(#[from] Error),
}

/// Attaches an interface to the vhost-user device at the other end of `socket`, and starts it. The function waits for
/// the device's replies for as long as the socket's timeout allows.
///
/// Deadlines are times of CLOCK_MONOTONIC. After this call the process makes no system calls but `write` to notify the
/// device, and `ppoll` and `read` to sleep, so it can be sandboxed. Dropping the interface closes the connection. The
/// end of the device is noticed while sleeping, and so never with [`Pacing::Poll`].
///
/// # Errors
/// The device has refused or disconnected; no memory or descriptor is free.
///
/// # Example
///
/// A program that echoes all frames, in batches.
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
    // The first reading of the clock looks up the vDSO, which needs a system call.
    process.now();
    let mut session = FrontendSession::negotiate(Frontend::from_stream(socket, 2))?;
    let map = Map::<N>::new(ORIGIN, options.frame);
    let mapping = Mapping::new(map.bytes())?;
    session.share_memory(&mapping)?;
    let configs = [map.receive(), map.transmit()].map(|layout| mapping.vring_config(layout));
    let events = process.events()?;
    let mut interface = Interface::new(mapping, map, session.features(), process, options.pacing)?;
    for ((number, place), [kick, call]) in configs.into_iter().enumerate().zip(&events) {
        session.configure_ring(number, &place?, kick, call)?;
    }
    session.enable()?;
    interface.start();
    Ok(interface)
}
