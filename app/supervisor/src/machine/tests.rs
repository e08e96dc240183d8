use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixListener;

use rustix::net::socketpair;

use super::*;

fn machine(seat: Seat, protocol: Protocol) -> Machine {
    Machine {
        seat,
        protocol,
        one_off: false,
    }
}

/// Returns the error of opening a machine's socket.
#[track_caller]
fn line(seat: Seat, protocol: Protocol) -> String {
    open(&machine(seat, protocol), 1).unwrap_err().to_string()
}

/// Returns a path that does not exist, in a new directory.
fn path(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("pontoon-machine.{}.{name}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).unwrap();
    directory.join("net")
}

#[test]
fn a_socket_file_lives_as_long_as_its_owner() {
    let path = path("file");
    for (protocol, other) in [
        (Protocol::Stream, SocketType::SEQPACKET),
        (Protocol::Packet, SocketType::STREAM),
    ] {
        let (attachment, file) = open(&machine(Seat::Path(path.clone()), protocol), 1).unwrap();
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
fn the_file_is_for_this_user_alone() {
    let path = path("mode");
    let opened = open(&machine(Seat::Path(path.clone()), Protocol::Stream), 1);
    let _machine = opened.unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn a_file_that_somebody_listens_on_stays_and_one_left_over_goes() {
    let path = path("taken");
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let said = line(Seat::Path(path.clone()), Protocol::Stream);
    assert!(
        said.contains("address already in use (try: another path; 'ss -xlp src "),
        "{said}"
    );
    assert!(listener.accept().is_err(), "who listens was not disturbed");
    drop(listener);
    drop(open(&machine(Seat::Path(path.clone()), Protocol::Stream), 1).unwrap());

    fs::write(&path, "no socket").unwrap();
    let said = line(Seat::Path(path.clone()), Protocol::Stream);
    assert!(said.contains("address already in use"), "{said}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "no socket");
    fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn another_ones_file_of_the_same_name_stays() {
    let path = path("replaced");
    let (_attachment, file) = open(&machine(Seat::Path(path.clone()), Protocol::Packet), 1).unwrap();
    fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    // The socket still holds the inode of the first file, so that the second has another number.
    drop(file);
    assert!(path.exists());
    fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn says_what_is_wrong_with_a_path() {
    let long = PathBuf::from(format!("/tmp/{}", "x".repeat(200)));
    let said = line(Seat::Path(long), Protocol::Stream);
    assert!(
        said.ends_with("file name too long (try: a path of at most 107 bytes)"),
        "{said}"
    );
    let said = line(Seat::Path("/no-such-directory/net".into()), Protocol::Stream);
    assert!(said.ends_with("(try: an existing directory)"), "{said}");
}

#[test]
fn a_descriptor_is_what_the_protocol_needs() {
    let pair = |kind| socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let handed = |socket: OwnedFd| Seat::Descriptor(socket.into_raw_fd());

    for (kind, protocol) in [
        (SocketType::STREAM, Protocol::VhostUser),
        (SocketType::STREAM, Protocol::Stream),
        (SocketType::SEQPACKET, Protocol::Packet),
        (SocketType::DGRAM, Protocol::Packet),
    ] {
        let (ours, _theirs) = pair(kind);
        let (attachment, file) = open(&machine(handed(ours), protocol), 1).unwrap();
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
    let (attachment, _) = open(&machine(handed(listening), Protocol::Stream), 1).unwrap();
    assert!(matches!(attachment, Attachment::Stream(Source::Listening { .. })));

    let said = line(handed(pair(SocketType::STREAM).0), Protocol::Packet);
    assert!(said.ends_with("(try: --protocol stream)"), "{said}");
    let said = line(handed(pair(SocketType::DGRAM).0), Protocol::Stream);
    assert!(said.ends_with("(try: --protocol packet)"), "{said}");
    let said = line(handed(socket(SocketType::STREAM).unwrap()), Protocol::Stream);
    assert!(said.ends_with("is neither listening nor connected"), "{said}");
    let file = OwnedFd::from(fs::File::open("/dev/null").unwrap());
    assert!(line(handed(file), Protocol::Stream).ends_with("is not a socket"));
    let said = line(Seat::Descriptor(0x3fff_ffff), Protocol::Stream);
    assert!(
        said.ends_with("(try: a socket that the parent process leaves open as 1073741823)"),
        "{said}"
    );
}

#[test]
fn several_workers_need_several_queues() {
    for protocol in [Protocol::Stream, Protocol::Packet] {
        let seat = Seat::Path("/tmp/x".into());
        let refused = open(&machine(seat, protocol), 2).unwrap_err();
        assert_eq!(refused.status(), 2);
        assert!(refused.to_string().starts_with("--workers 2: "));
    }
    let path = path("queues");
    let (attachment, _file) = open(&machine(Seat::Path(path.clone()), Protocol::VhostUser), 2).unwrap();
    assert!(matches!(
        attachment,
        Attachment::VhostUser(FrontEndSocket { workers: 2, .. })
    ));
    fs::remove_dir_all(path.parent().unwrap()).unwrap();
}
