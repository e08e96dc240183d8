//! The system calls that no safe crate here wraps.

use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// Makes the signals of a terminal do what they do by default, here and in programs that are run from here. They are ignored in
/// what nohup(1) runs, or a shell behind `&`, and no shell can trap what is ignored when it begins.
pub(crate) fn heed_signals() -> io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
        // SAFETY: SIG_DFL is no code of ours.
        if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Repeats a call that an unhandled signal has interrupted, as happens to a wait with a timeout (signal(7),
/// "Interruption of system calls and library functions by stop signals").
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Makes one send many datagrams of `bytes` bytes (`UDP_SEGMENT`, Linux 4.18).
pub(crate) fn segment_sends(socket: &UdpSocket, bytes: u16) -> io::Result<()> {
    set_udp_option(socket, libc::UDP_SEGMENT, bytes.into())
}

/// Lets one receive yield many datagrams of one size (`UDP_GRO`, Linux 5.0).
pub(crate) fn coalesce_receives(socket: &UdpSocket) -> io::Result<()> {
    set_udp_option(socket, libc::UDP_GRO, 1)
}

fn set_udp_option(socket: &UdpSocket, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `socket` is open, and `value` is a live int of `len` bytes that the call only reads.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            name,
            (&raw const value).cast(),
            len,
        )
    };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Datagrams that a socket has dropped, as its buffer was full (`SO_MEMINFO`, Linux 4.12).
pub(crate) fn dropped(socket: &UdpSocket) -> io::Result<u32> {
    const SO_MEMINFO: libc::c_int = 55;
    const SK_MEMINFO_DROPS: usize = 8;
    let mut info = [0_u32; SK_MEMINFO_DROPS + 1];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: `socket` is open, and the call writes at most `len` bytes to `info`, which is a live array of that size.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(info[SK_MEMINFO_DROPS])
    }
}

/// A packet socket that sends and receives whole Ethernet frames on the interface of index `ifindex`.
pub(crate) fn packet_socket(ifindex: u32) -> io::Result<OwnedFd> {
    let protocol = 0x0003_u16.to_be(); // ETH_P_ALL
    // SAFETY: `socket` takes no pointer.
    let raw = unsafe {
        libc::socket(
            libc::AF_PACKET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC,
            i32::from(protocol),
        )
    };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor and no other code has it.
    let socket = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: `sockaddr_ll` is integers and arrays of them, for which zero is a value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET.cast_unsigned() as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = ifindex.cast_signed();
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `socket` is open, and `address` is a live `sockaddr_ll` of `len` bytes that the call only reads.
    let rc = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(socket)
    }
}

/// Makes a tap in the caller's network namespace: frames behind a `virtio_net_hdr` of 10 bytes, their checksums left
/// partial where the kernel likes, and never more than the MTU in one. Reading and writing do not wait.
pub(crate) fn tap(name: &str) -> io::Result<OwnedFd> {
    let tap = OwnedFd::from(
        File::options()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK)
            .open("/dev/net/tun")?,
    );
    // SAFETY: `ifreq` is plain C data for which all-zero bytes are a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which `request` is, initialised and exclusively borrowed.
    if unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let offloads = libc::c_ulong::from(libc::TUN_F_CSUM);
    // SAFETY: TUNSETOFFLOAD takes its flags as the argument itself and touches no memory of ours.
    if unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETOFFLOAD, offloads) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(tap)
}

/// A pseudo-terminal: the master, and the slave.
pub(crate) fn terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    let (mut master, mut slave) = (-1, -1);
    let null = std::ptr::null_mut();
    // SAFETY: the call writes two descriptors, and takes null for the rest.
    let rc = unsafe {
        libc::openpty(
            &raw mut master,
            &raw mut slave,
            null,
            null.cast_const().cast(),
            null.cast_const().cast(),
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both have just been opened, and nothing else owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) })
}

/// Stops or starts output to a terminal (tcflow(3)).
pub(crate) fn stop_output(terminal: &OwnedFd, stop: bool) -> io::Result<()> {
    let action = if stop { libc::TCOOFF } else { libc::TCOON };
    // SAFETY: the call touches no memory of ours.
    if unsafe { libc::tcflow(terminal.as_raw_fd(), action) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
