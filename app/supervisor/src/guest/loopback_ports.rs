//! Sockets that listen at loopback addresses of the guest's network namespace, for guest forwards at these addresses.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use pontoon_engine::config::Published;
use pontoon_process::child::spawn;
use pontoon_process::error::{Context as _, Error};
use pontoon_sys::seqpacket::{self, MAX_DESCRIPTORS};

use crate::guest::attach::{self, isolate};
use crate::guest::handshake::FromGuest;
use crate::publish::open_socket;
use crate::watch::GuestKind;

/// Opens a listening socket for each of `ports` in the guest's network namespace, through a child that enters it and exits.
///
/// # Errors
/// The namespace cannot be entered, or one of the ports is in use there.
pub(crate) fn open(ports: &[Published], guest: &GuestKind) -> Result<Vec<Arc<OwnedFd>>, Error> {
    if ports.is_empty() {
        return Ok(Vec::new());
    }
    let namespace = guest
        .network()
        .context("cannot open the guest's network namespace")?;
    let Some(namespace) = &namespace else {
        return Err(Error::new("the guest has no network namespace of this host"));
    };
    let (ours, theirs) = seqpacket::pair().context("cannot make a socket pair")?;
    let child = spawn::fork(|| {
        let sent = enter(namespace, &theirs).and_then(|()| {
            ports.chunks(MAX_DESCRIPTORS).try_for_each(|ports| {
                let sockets = ports.iter().map(listening).collect::<Result<_, _>>()?;
                FromGuest::Sockets(sockets).send(&theirs).context("no supervisor")
            })
        });
        match sent {
            Ok(()) => 0,
            // The send fails only if the supervisor has exited.
            Err(error) => u8::from(FromGuest::Failed(error).send(&theirs).is_err()),
        }
    });
    let child = child.context("cannot fork")?;
    drop(theirs);
    let mut sockets = Vec::new();
    let received = loop {
        match FromGuest::receive(&ours).context("cannot receive from the child") {
            Ok(Some(FromGuest::Sockets(more))) => sockets.extend(more.into_iter().map(Arc::new)),
            Ok(Some(FromGuest::Failed(error))) | Err(error) => break Err(error),
            Ok(_) => break Ok(()),
        }
    };
    let _ = child.wait();
    received?;
    match sockets.len() == ports.len() {
        true => Ok(sockets),
        false => Err(Error::new(
            "the child that opens ports of the guest exited unexpectedly",
        )),
    }
}

/// Closes all other descriptors of this process, a child, and enters the namespace.
fn enter(namespace: &File, supervisor: &OwnedFd) -> Result<(), Error> {
    isolate(&[namespace.as_fd(), supervisor.as_fd()]).context("cannot close inherited file descriptors")?;
    attach::enter(namespace).context("cannot enter the guest's network namespace")
}

fn listening(port: &Published) -> Result<OwnedFd, Error> {
    open_socket(port.key()).map_err(|error| {
        Error::io(
            format_args!("cannot listen at {} of the guest", port.host),
            &error,
        )
    })
}
