//! System calls that no safe crate of the dependencies wraps.

use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// Restores the default action of the terminal's signals, in this process and in programs that it starts. They are
/// ignored in programs that nohup(1) runs or a shell runs in the background (`&`), and a shell cannot trap a signal
/// that was ignored at its start.
pub(crate) fn heed_signals() -> io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
        // SAFETY: SIG_DFL is no function of this program.
        if unsafe { libc::signal(signal, libc::SIG_DFL) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Repeats a call that was interrupted although no handler ran, as happens to a wait with a timeout (signal(7),
/// "Interruption of system calls and library functions by stop signals").
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Makes each send of the socket a number of datagrams of `bytes` bytes (`UDP_SEGMENT`, Linux 4.18).
pub(crate) fn segment_sends(socket: &UdpSocket, bytes: u16) -> io::Result<()> {
    set_udp_option(socket, libc::UDP_SEGMENT, bytes.into())
}

/// Makes a receive return several datagrams of one length together (`UDP_GRO`, Linux 5.0).
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

/// Returns the number of datagrams that the kernel dropped because the socket's buffer was full (`SO_MEMINFO`, Linux
/// 4.12).
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

/// Opens a packet socket that sends and receives Ethernet frames on the interface with index `ifindex`.
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

/// Creates a tap in the caller's network namespace: a `virtio_net_hdr` of 10 bytes before each frame, partial
/// checksums, and no segmentation offload. Reads and writes do not block.
pub(crate) fn tap(name: &str) -> io::Result<OwnedFd> {
    tap_with(name, libc::TUN_F_CSUM)
}

/// Creates a tap as [`tap`] does, with the offloads `offloads`.
pub(crate) fn tap_with(name: &str, offloads: libc::c_uint) -> io::Result<OwnedFd> {
    let tap = tun_device(name, libc::IFF_TAP | libc::IFF_VNET_HDR)?;
    let offloads = libc::c_ulong::from(offloads);
    // SAFETY: the argument of TUNSETOFFLOAD is a number of flags, not a pointer, and accesses no memory of this
    // process.
    if unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETOFFLOAD, offloads) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(tap)
}

/// Creates a tun, whose packets begin with the IP header, in the caller's network namespace. Reads and writes do not block.
pub(crate) fn tun(name: &str) -> io::Result<OwnedFd> {
    tun_device(name, libc::IFF_TUN)
}

/// Creates an interface with `/dev/net/tun` whose packets are not preceded by `struct tun_pi`.
fn tun_device(name: &str, flags: libc::c_int) -> io::Result<OwnedFd> {
    let device = OwnedFd::from(
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
    request.ifr_ifru.ifru_flags = (flags | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, and `request` is initialised and exclusively borrowed.
    if unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(device)
}

/// Opens a pseudo-terminal. Returns its master and its slave.
pub(crate) fn terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    let (mut master, mut slave) = (-1, -1);
    let null = std::ptr::null_mut();
    // SAFETY: the call writes two descriptors, and accepts null for the other arguments.
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
    // SAFETY: the call has just opened both descriptors, and no other code owns them.
    Ok(unsafe { (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) })
}

/// Stops or restarts the output of a terminal (tcflow(3)).
pub(crate) fn stop_output(terminal: &OwnedFd, stop: bool) -> io::Result<()> {
    let action = if stop { libc::TCOOFF } else { libc::TCOON };
    // SAFETY: the call accesses no memory of this process.
    if unsafe { libc::tcflow(terminal.as_raw_fd(), action) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
