use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use pontoon_test_support::process::in_child;
use rustix::process::{getegid, getpid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

use super::*;
use crate::child::spawn::{self, Child};

const SKIPPED: u8 = 77;

fn own(kind: &str) -> File {
    File::open(format!("/proc/self/ns/{kind}")).unwrap()
}

#[test]
fn process_of_the_own_namespaces_is_within_them_and_in_no_descendant() {
    let guest = GuestNamespaces::new(own("net"), Some(getpid())).unwrap();
    assert!(guest.owner.is_none() && guest.pid.is_none());
    let (socket, _other) = UnixStream::pair().unwrap();
    assert!(
        guest.holds_peer(&socket).unwrap(),
        "it is in the network namespace"
    );
    let guest = GuestNamespaces {
        network: own("uts"),
        owner: Some(own("uts")),
        pid: Some(own("uts")),
    };
    for kind in ["user", "pid"] {
        assert!(is_within(own(kind), &own(kind)).unwrap());
        // A UTS namespace is no ancestor of these.
        assert!(!is_within(own(kind), &own("uts")).unwrap());
    }
    assert!(!guest.holds_peer(&socket).unwrap());
}

#[test]
fn process_that_cannot_be_inspected_is_an_error() {
    let guest = GuestNamespaces::of(getpid()).unwrap();
    guest.holds_peer(File::open("/dev/null").unwrap()).unwrap_err();
    GuestNamespaces::of(Pid::from_raw(0x3fff_ffff).unwrap()).unwrap_err();
    // A UTS namespace has no parent namespace.
    is_within(own("uts"), &own("pid")).unwrap_err();
}

/// Way in which a child connects.
#[derive(Clone, Copy)]
enum Way<'a> {
    /// From user and network namespaces that many levels below this process's.
    Below(u8),
    /// From a user namespace below that of another process, in the network namespace of this one.
    UserOf(&'a Child),
    /// From the network namespace of another process, by a socket that was created before it entered that.
    NetworkOf(&'a Child),
}

/// Forks a process that connects to `path` and does not exit.
fn connected(path: &Path, way: Way<'_>) -> io::Result<Child> {
    spawn::fork(|| {
        let entered = match way {
            Way::Below(deep) => (0..deep).try_for_each(|_| enter_new()),
            Way::UserOf(guest) => {
                enter(guest, "user", LinkNameSpaceType::User).and_then(|()| unshare(UnshareFlags::NEWUSER))
            }
            Way::NetworkOf(_) => Ok(()),
        };
        if entered.is_err() {
            return SKIPPED;
        }
        let _socket = match way {
            Way::Below(_) | Way::UserOf(_) => UnixStream::connect(path),
            Way::NetworkOf(guest) => connect_from(guest, path),
        };
        loop {
            let _ = rustix::thread::nanosleep(&rustix::thread::Timespec {
                tv_sec: 60,
                tv_nsec: 0,
            });
        }
    })
}

/// Enters new user and network namespaces, and maps the own user and group.
fn enter_new() -> io::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNET)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

fn unshare(flags: UnshareFlags) -> io::Result<()> {
    // SAFETY: these flags do not unshare the descriptor table.
    Ok(unsafe { unshare_unsafe(flags) }?)
}

fn enter(process: &Child, kind: &str, of: LinkNameSpaceType) -> io::Result<()> {
    let namespace = open(process.pid(), kind)?;
    Ok(move_into_link_name_space(namespace.as_fd(), Some(of))?)
}

fn connect_from(guest: &Child, path: &Path) -> io::Result<UnixStream> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
    let socket = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    enter(guest, "user", LinkNameSpaceType::User)?;
    enter(guest, "net", LinkNameSpaceType::Network)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket.into())
}

fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    let wait = Timespec {
        tv_sec: 5,
        tv_nsec: 0,
    };
    match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&wait))? {
        0 => Err(io::ErrorKind::TimedOut.into()),
        _ => Ok(listener.accept()?.0),
    }
}

/// Runs a test with a listener, and a first client that is the guest, in a process with one thread.
fn with_guest(name: &str, test: impl FnOnce(&Path, &UnixListener, &Child, &UnixStream) -> io::Result<bool>) {
    let run = || {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path)?;
        let guest = connected(&path, Way::Below(1))?;
        let socket = accept(&listener)?;
        let result = test(&path, &listener, &guest, &socket);
        guest.kill();
        let _ = guest.wait();
        result
    };
    let status = in_child(name, || match run() {
        Ok(true) => 0,
        Ok(false) => 1,
        Err(error) if error.kind() == io::ErrorKind::TimedOut => SKIPPED,
        Err(_) => 2,
    });
    if status == SKIPPED {
        eprintln!("SKIPPED: {name}: no user namespaces");
        return;
    }
    assert_eq!(status, 0);
}

/// Connects as described and returns whether the guest holds the peer.
fn holds(guest: &GuestNamespaces, path: &Path, listener: &UnixListener, way: Way<'_>) -> io::Result<bool> {
    let child = connected(path, way)?;
    let holds = guest.holds_peer(accept(listener)?);
    child.kill();
    let _ = child.wait();
    holds
}

/// The processes are in the PID namespace of the test, like a process of the host that has reused the id of a guest's
/// process.
#[test]
fn socket_connected_in_the_guest_is_recognized_whatever_process_holds_it() {
    let name =
        "guest_namespaces::tests::socket_connected_in_the_guest_is_recognized_whatever_process_holds_it";
    with_guest(name, |path, listener, guest, socket| {
        let namespaces = GuestNamespaces::of(guest.pid())?;
        let mut right = namespaces.holds_peer(socket)?;
        // Neither another guest nor a process outside any guest is in the namespace.
        for way in [Way::Below(1), Way::Below(0)] {
            right &= !holds(&namespaces, path, listener, way)?;
        }
        guest.kill();
        let _ = guest.wait();
        Ok(right && namespaces.holds_peer(socket)?)
    });
}

/// The guest's network namespace is known by a file only, as with `--attach PATH`.
#[test]
fn process_in_the_user_or_network_namespace_of_the_guest_is_recognized() {
    let name = "guest_namespaces::tests::process_in_the_user_or_network_namespace_of_the_guest_is_recognized";
    with_guest(name, |path, listener, guest, _| {
        let namespaces = GuestNamespaces::new(open(guest.pid(), "net")?, None)?;
        // The socket itself is of the host's network namespace.
        let mut right = holds(&namespaces, path, listener, Way::UserOf(guest))?;
        right &= holds(&namespaces, path, listener, Way::NetworkOf(guest))?;
        Ok(right && !holds(&namespaces, path, listener, Way::Below(0))?)
    });
}

/// The guest's network namespace belongs to the user namespace of this process, as one that root has made.
#[test]
fn process_of_the_own_user_namespace_is_not_of_the_guest() {
    let name = "guest_namespaces::tests::process_of_the_own_user_namespace_is_not_of_the_guest";
    with_guest(name, |path, listener, _, _| {
        unshare(UnshareFlags::NEWUSER)?;
        let outside = own("net");
        unshare(UnshareFlags::NEWNET)?;
        let namespaces = GuestNamespaces::new(own("net"), None)?;
        let is_held = holds(&namespaces, path, listener, Way::Below(0))?;
        move_into_link_name_space(outside.as_fd(), Some(LinkNameSpaceType::Network)).ok();
        Ok(namespaces.owner.is_none() && is_held)
    });
}

/// A process that may not be inspected, because it is not dumpable, is recognized by files of /proc that any process may read.
#[test]
fn process_is_outside_with_all_ids_and_in_the_own_network_namespace() {
    let name = "guest_namespaces::tests::process_is_outside_with_all_ids_and_in_the_own_network_namespace";
    with_guest(name, |path, listener, guest, _| {
        let namespaces = GuestNamespaces::new(open(guest.pid(), "net")?, None)?;
        let has_all_ids = has_all_ids(rustix::process::getpid())?;
        let is_outside = |way| {
            let child = connected(path, way)?;
            let accepted = accept(listener);
            let is_outside = namespaces.is_outside(child.pid());
            child.kill();
            let _ = child.wait();
            accepted.and(is_outside)
        };
        Ok(is_outside(Way::Below(0))? == has_all_ids
            && !is_outside(Way::Below(1))?
            && !is_outside(Way::UserOf(guest))?
            && !is_outside(Way::NetworkOf(guest))?
            && !namespaces.is_outside(guest.pid())?)
    });
}

/// A process that has no id in this process's PID namespace is outside every guest that has a PID namespace.
#[test]
fn process_without_id_is_refused_unless_the_guest_has_a_pid_namespace() {
    let name = "guest_namespaces::tests::process_without_id_is_refused_unless_the_guest_has_a_pid_namespace";
    with_guest(name, |path, listener, guest, _| {
        let outside = connected(path, Way::Below(0))?;
        let socket = accept(listener)?;
        let network = open(guest.pid(), "net")?;
        let inner = spawn::clone(libc::CLONE_NEWUSER | libc::CLONE_NEWPID, || {
            let with = |pid| GuestNamespaces {
                network: network.try_clone().unwrap(),
                owner: None,
                pid,
            };
            let served = with(Some(own("uts"))).holds_peer(&socket).ok() == Some(false);
            u8::from(!(served && with(None).holds_peer(&socket).is_err()))
        });
        outside.kill();
        let _ = outside.wait();
        Ok(inner?.wait() == 0)
    });
}
