use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use pontoon_worker::FrontEndSocket;
use rustix::fs::{CWD, FileType, mknodat};
use rustix::net::{SocketAddrUnix, bind, connect, socketpair};

use super::*;

fn machine(socket: MachineSocket, protocol: &str) -> Machine {
    let mut protocols = MACHINE_PROTOCOLS.into_iter();
    Machine {
        socket,
        protocol: protocols.find(|known| known.name == protocol).unwrap(),
        one_off: false,
        hostname: None,
    }
}

/// Returns the error text of opening a machine's socket.
#[track_caller]
fn line(socket: MachineSocket, protocol: &str) -> String {
    open(&machine(socket, protocol), None, 1).unwrap_err().to_string()
}

/// Opens a machine's socket that the parent process has passed.
fn open_inherited(socket: OwnedFd, protocol: &str) -> Result<(Attachment, Option<SocketFile>), Error> {
    let number = MachineSocket::Descriptor(socket.as_raw_fd());
    open(&machine(number, protocol), Some(socket), 1)
}

/// Returns a path that does not exist, in a new directory.
fn path(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("pontoon-machine.{}.{name}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).unwrap();
    directory.join("net")
}

#[test]
fn socket_file_is_removed_with_its_owner() {
    let path = path("file");
    for (protocol, other) in [("stream", SocketType::SEQPACKET), ("packet", SocketType::STREAM)] {
        let (attachment, file) = open(
            &machine(MachineSocket::Paths(vec![path.clone()]), protocol),
            None,
            1,
        )
        .unwrap();
        assert!(path.exists());
        let address = SocketAddrUnix::new(&path).unwrap();
        assert_eq!(
            connect(socket(other).unwrap(), &address),
            Err(Errno::PROTOTYPE),
            "another protocol's socket"
        );
        drop(attachment);
        drop(file);
        assert!(!path.exists());
    }
    fs::remove_dir(path.parent().unwrap()).unwrap();
}

#[test]
fn socket_file_has_mode_0600() {
    let path = path("mode");
    let opened = open(
        &machine(MachineSocket::Paths(vec![path.clone()]), "stream"),
        None,
        1,
    );
    let _machine = opened.unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn socket_file_in_use_is_kept_and_a_stale_one_is_replaced() {
    let path = path("taken");
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let text = line(MachineSocket::Paths(vec![path.clone()]), "stream");
    assert!(
        text.contains("address already in use (try: another path; 'ss -xlp src "),
        "{text}"
    );
    assert!(
        listener.accept().is_err(),
        "the listening process got no connection"
    );
    fs::remove_file(&path).unwrap();
    // A file of a closed socket might be in use, as the process of another test may hold a copy of the descriptor.
    mknodat(CWD, &path, FileType::Socket, Mode::from_raw_mode(0o600), 0).unwrap();
    drop(
        open(
            &machine(MachineSocket::Paths(vec![path.clone()]), "stream"),
            None,
            1,
        )
        .unwrap(),
    );

    fs::write(&path, "no socket").unwrap();
    let text = line(MachineSocket::Paths(vec![path.clone()]), "stream");
    assert!(text.contains("address already in use"), "{text}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "no socket");
    fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn file_of_another_process_with_the_same_name_is_kept() {
    let path = path("replaced");
    let (_attachment, file) = open(
        &machine(MachineSocket::Paths(vec![path.clone()]), "packet"),
        None,
        1,
    )
    .unwrap();
    fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    // The open socket still holds the inode of the first file, so that the second file has another inode number.
    drop(file);
    assert!(path.exists());
    fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn errors_of_paths_have_advice() {
    let long = PathBuf::from(format!("/tmp/{}", "x".repeat(200)));
    let text = line(MachineSocket::Paths(vec![long]), "stream");
    assert!(
        text.ends_with("file name too long (try: a path of at most 107 bytes)"),
        "{text}"
    );
    let text = line(
        MachineSocket::Paths(vec!["/no-such-directory/net".into()]),
        "stream",
    );
    assert!(text.ends_with("(try: an existing directory)"), "{text}");
}

#[test]
fn descriptor_must_be_a_socket_of_the_protocol() {
    let pair = |kind| socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let wrong = |socket, protocol| open_inherited(socket, protocol).unwrap_err().to_string();

    for (kind, protocol) in [
        (SocketType::STREAM, "vhost-user"),
        (SocketType::STREAM, "stream"),
        (SocketType::SEQPACKET, "packet"),
        (SocketType::DGRAM, "packet"),
    ] {
        let (ours, _theirs) = pair(kind);
        let (attachment, file) = open_inherited(ours, protocol).unwrap();
        assert!(file.is_none());
        assert!(matches!(
            attachment,
            Attachment::VhostUser(FrontEndSocket {
                source: Source::Connected(_),
                workers: 1
            }) | Attachment::Stream(Source::Connected(_))
                | Attachment::Packet(Source::Connected(_))
        ));
    }
    let listening = socket(SocketType::STREAM).unwrap();
    bind(&listening, &SocketAddrUnix::new_unnamed()).unwrap();
    listen(&listening, 1).unwrap();
    let (attachment, _) = open_inherited(listening, "stream").unwrap();
    assert!(matches!(attachment, Attachment::Stream(Source::Listening { .. })));

    let text = wrong(pair(SocketType::STREAM).0, "packet");
    assert!(text.ends_with("(try: --protocol vhost-user or stream)"), "{text}");
    let text = wrong(pair(SocketType::DGRAM).0, "stream");
    assert!(text.ends_with("(try: --protocol packet)"), "{text}");
    let text = wrong(socket(SocketType::STREAM).unwrap(), "stream");
    assert!(text.ends_with("is neither listening nor connected"), "{text}");
    let file = OwnedFd::from(fs::File::open("/dev/null").unwrap());
    assert!(wrong(file, "stream").ends_with("is not a socket"));
}

#[test]
fn several_workers_need_multiqueue_protocol() {
    for protocol in ["stream", "packet"] {
        let socket = MachineSocket::Paths(vec!["/tmp/x".into()]);
        let refused = open(&machine(socket, protocol), None, 2).unwrap_err();
        assert_eq!(refused.status(), 2);
        assert!(refused.to_string().starts_with("--workers 2: "));
    }
    let path = path("queues");
    let (attachment, _file) = open(
        &machine(MachineSocket::Paths(vec![path.clone()]), "vhost-user"),
        None,
        2,
    )
    .unwrap();
    assert!(matches!(
        attachment,
        Attachment::VhostUser(FrontEndSocket { workers: 2, .. })
    ));
    fs::remove_dir_all(path.parent().unwrap()).unwrap();
}
