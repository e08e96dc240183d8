//! Socket of a virtual machine: a Unix socket to which a hypervisor or a unikernel's tender connects, or an inherited
//! descriptor.

use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use pontoon_process::error::{Context as _, Error, reason};
use pontoon_process::socket_file::SocketFile;
use pontoon_worker::{Attachment, MACHINE_PROTOCOLS, Source};
use rustix::fs::{Mode, fchmod};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, getpeername, listen, socket_with, sockopt};

use crate::options::{Machine, MachineSocket};

/// Opens the link of a virtual machine, and logs the path to which the hypervisor has to connect. `inherited` is the descriptor
/// that the options name.
///
/// # Errors
/// The socket file cannot be created or is in use, the descriptor is not a socket of the protocol's type, or the protocol
/// has one queue only.
pub(crate) fn open(
    machine: &Machine,
    inherited: Option<OwnedFd>,
    workers: u8,
) -> Result<(Attachment, Option<SocketFile>), Error> {
    let protocol = machine.protocol;
    let types = protocol.socket_types;
    if workers > 1 && !protocol.multiqueue {
        let wrong = format!("--workers {workers}: a socket of this protocol has one queue");
        return Err(Error::new(wrong).advise("--workers 1").with_status(2));
    }
    let one_off = machine.one_off;
    let (source, file) = match (&machine.socket, inherited) {
        (MachineSocket::Descriptor(number), Some(socket)) => (source(*number, socket, types, one_off)?, None),
        (MachineSocket::Descriptor(number), None) => {
            return Err(Error::new(format!(
                "--fd {number}: the descriptor was not inherited"
            )));
        }
        (MachineSocket::Paths(paths), _) => {
            let (listener, file) = listen_at(paths, types[0])?;
            tracing::info!("waiting for the guest at {}", file.path().display());
            (Source::Listening { listener, one_off }, Some(file))
        }
    };
    Ok(((protocol.attach)(source, workers), file))
}

/// Listens on a new socket file at the first of `paths` at which that is possible.
fn listen_at(paths: &[PathBuf], kind: SocketType) -> Result<(OwnedFd, SocketFile), Error> {
    let last = paths.last().map_or(Path::new(""), PathBuf::as_path);
    let cannot = |error: io::Error| refused(last, &error);
    let socket = socket(kind).context("cannot open a socket")?;
    // The file inherits the mode of the socket (`unix_bind_bsd` in Linux), so that no other user can connect at any time.
    fchmod(&socket, Mode::from_raw_mode(0o600)).context("cannot open a socket")?;
    let bound = match paths {
        [path] => SocketFile::bind(path, &socket),
        paths => SocketFile::bind_first(paths, &socket),
    };
    let file = bound.map_err(cannot)?;
    listen(&socket, BACKLOG).map_err(|error| cannot(error.into()))?;
    Ok((socket, file))
}

fn socket(kind: SocketType) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, kind, flags, None)
}

fn refused(path: &Path, error: &io::Error) -> Error {
    let shown = path.display();
    let plain = Error::new(format!("cannot listen on {shown}: {}", reason(error)));
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => plain.advise(format!(
            "another path; 'ss -xlp src {shown}' shows the process that uses it"
        )),
        Some(libc::ENAMETOOLONG) => plain.advise("a path of at most 107 bytes"),
        Some(libc::ENOENT) => plain.advise("an existing directory"),
        Some(libc::EACCES | libc::EROFS) => plain.advise("a directory in which you may create files"),
        _ => plain,
    }
}

/// Checks an inherited socket, whose number is `number`.
fn source(number: RawFd, socket: OwnedFd, types: &[SocketType], one_off: bool) -> Result<Source, Error> {
    let wrong = |what: &str| Err(Error::new(format!("--fd {number}: the descriptor {what}")));
    match sockopt::socket_type(&socket) {
        Ok(actual) if types.contains(&actual) => {}
        Ok(actual) => {
            let suitable = MACHINE_PROTOCOLS
                .iter()
                .filter(|protocol| protocol.socket_types.contains(&actual));
            let names: Vec<_> = suitable.map(|protocol| protocol.name).collect();
            if names.is_empty() {
                return wrong("is a socket of an unsupported type");
            }
            return wrong(&format!("is a {} socket", type_name(actual)))
                .map_err(|error| error.advise(format!("--protocol {}", names.join(" or "))));
        }
        Err(_) => return wrong("is not a socket"),
    }
    if sockopt::socket_acceptconn(&socket) == Ok(true) {
        return Ok(Source::Listening {
            listener: socket,
            one_off,
        });
    }
    if getpeername(&socket).is_err() {
        return wrong("is a socket that is neither listening nor connected");
    }
    Ok(Source::Connected(socket))
}

/// Returns the name of a socket type in socket(2).
fn type_name(of: SocketType) -> &'static str {
    match of {
        SocketType::STREAM => "SOCK_STREAM",
        SocketType::SEQPACKET => "SOCK_SEQPACKET",
        _ => "SOCK_DGRAM",
    }
}

/// Length of the accept queue of a machine's socket. One guest is served at a time, and a second one is refused.
const BACKLOG: i32 = 8;

#[cfg(test)]
mod tests;
