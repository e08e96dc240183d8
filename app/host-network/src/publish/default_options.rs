//! The options of a new TCP socket, for listeners whose options an engine may have changed.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use pontoon_engine::config::Protocol;
use pontoon_sandbox::Role;
use pontoon_sandbox::seccomp::options::settable;
use pontoon_sys::option;
use rustix::net::sockopt;

use super::unbound_socket;

/// Level, name and value of each option that an engine may set, and that TCP sockets of a family have.
#[derive(Debug, Default)]
pub(super) struct DefaultOptions {
    options: Vec<(i32, i32, Vec<u8>)>,
    /// Sizes of the receive and the send buffer.
    buffers: [usize; 2],
}

/// Longer than the value of any of them.
const LONGEST: usize = 64;

impl DefaultOptions {
    /// Returns the options for listeners of the family of `host`, or none if this host lacks the family.
    ///
    /// # Errors
    /// A socket cannot be opened, for example because no descriptor is free.
    pub(super) fn of(host: SocketAddr) -> io::Result<Self> {
        let socket = match unbound_socket(Protocol::Tcp, host) {
            Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => return Ok(Self::default()),
            socket => socket?,
        };
        let mut options = Vec::new();
        for option in settable(Role::EngineOnInterface) {
            let mut value = vec![0; LONGEST];
            // Options that a TCP socket does not have are skipped.
            if let Ok(len) = option::get(&socket, option.level, option.name, &mut value) {
                value.truncate(len);
                options.push((option.level, option.name, value));
            }
        }
        let buffers = [
            sockopt::socket_recv_buffer_size(&socket).unwrap_or(0),
            sockopt::socket_send_buffer_size(&socket).unwrap_or(0),
        ];
        // Setting a size would end the automatic adjustment of the buffers of accepted sockets.
        options.retain(|(level, name, _)| {
            !matches!(
                (*level, *name),
                (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_SNDBUF)
            )
        });
        for (level, name, value) in &mut options {
            // A socket without its own hop limit uses that of the route, and getsockopt(2) returns that number. The
            // value -1 makes the socket use the route's hop limit again.
            if let (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) =
                (*level, *name)
            {
                *value = (-1_i32).to_ne_bytes().to_vec();
            }
        }
        Ok(Self { options, buffers })
    }

    /// Sets them on a listener; accepted sockets inherit most. What cannot be set stays: `IPV6_V6ONLY` of a bound socket, which the
    /// engine cannot set either, and, unless root runs this, the interface that a socket is bound to.
    pub(super) fn restore(&self, listener: impl AsFd) {
        for (level, name, value) in &self.options {
            let _ = option::set(&listener, *level, *name, value);
        }
        // A size that was set is locked. Before Linux 5.14 that is neither shown nor undone.
        let mut locked = [0; 4];
        let lock = (libc::SOL_SOCKET, libc::SO_BUF_LOCK);
        if option::get(&listener, lock.0, lock.1, &mut locked).is_ok() && locked != [0; 4] {
            // The kernel doubles what is set.
            let _ = sockopt::set_socket_recv_buffer_size(&listener, self.buffers[0] / 2);
            let _ = sockopt::set_socket_send_buffer_size(&listener, self.buffers[1] / 2);
            let _ = option::set(&listener, lock.0, lock.1, &[0; 4]);
        }
    }
}
