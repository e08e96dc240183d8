//! Tests of the addresses of a server: a Unix socket, and TCP.

use std::os::unix::fs::PermissionsExt;

use pontoon_worker::messages::ForwardUpdate;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

#[test]
fn tcp_address_serves_metrics_only() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let metrics = |hosts: &[&str]| Metrics {
        at,
        hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
    };
    let error = Control::open(None, Some(&metrics(&[])), served())
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        format!("cannot listen on {at}: address already in use (try: another port)")
    );
    close_port(taken);
    let mut control = Control::open(None, Some(&metrics(&["metrics.example"])), served()).unwrap();
    let mut client = std::net::TcpStream::connect(at).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut ask = |control: &mut Control, path: &str| {
        client
            .write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes())
            .unwrap();
        control.serve(&mut |update| panic!("{update:?}"), Instant::now());
        let mut answer = vec![0; 65_536];
        let len = client.read(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[..len]).into_owned()
    };
    let metrics = ask(&mut control, "/metrics");
    assert_eq!(status(&metrics), "200");
    assert!(
        metrics.contains("\r\nContent-Type: text/plain; version=0.0.4; "),
        "{metrics}"
    );
    for path in ["/v1/stats", "/v1/publish", "/v1/policy"] {
        assert_eq!(status(&ask(&mut control, path)), "404");
    }
    // A request from a web page whose host name resolves to this address is refused (DNS rebinding).
    for (target, expected) in [
        ("/metrics HTTP/1.1\r\nHost: evil.example:9090\r\nX:", "421"),
        (
            "http://evil.example/metrics HTTP/1.1\r\nHost: localhost\r\nX:",
            "421",
        ),
        ("/metrics HTTP/1.1\r\nHost: 127.0.0.1:9090\r\nX:", "200"),
        ("/metrics HTTP/1.1\r\nHost: Metrics.example\r\nX:", "200"),
        (
            "/metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nX:",
            "400",
        ),
    ] {
        let answer = ask(&mut control, target);
        assert_eq!(status(&answer), expected, "{target}");
        assert_eq!(answer.contains("pontoon_"), expected == "200", "{target}");
    }
}

#[test]
fn listening_with_a_full_queue_elsewhere_fails_without_waiting() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    let at = rustix::net::SocketAddrUnix::new(&path).unwrap();
    let socket = || {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
        socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
            None,
        )
        .unwrap()
    };
    let listener = socket();
    rustix::net::bind(&listener, &at).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let mut waiting = Vec::new();
    loop {
        let client = socket();
        if rustix::net::connect(&client, &at) == Err(rustix::io::Errno::AGAIN) {
            break;
        }
        waiting.push(client);
    }
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let error = Control::open(Some(&path), None, served()).unwrap_err();
        sender.send(error.to_string()).unwrap();
    });
    let error = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
    assert!(error.contains(": address already in use "), "{error}");
}

#[test]
fn socket_file_has_mode_0600_and_is_removed_on_drop() {
    let fixture = Fixture::new(1);
    let mode = std::fs::metadata(&fixture.path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let Fixture {
        control,
        path,
        _directory,
        ..
    } = fixture;
    let taken = Control::open(Some(&path), None, served())
        .unwrap_err()
        .to_string();
    assert!(
        taken.starts_with(&format!("cannot open control socket {}: address", path.display())),
        "{taken}"
    );
    drop(control);
    assert!(!path.exists());
    // The socket file of an exited process is replaced, a regular file is not.
    mknodat(CWD, &path, FileType::Socket, Mode::from_raw_mode(0o600), 0).unwrap();
    drop(Control::open(Some(&path), None, served()).unwrap());
    std::fs::write(&path, "precious").unwrap();
    Control::open(Some(&path), None, served()).unwrap_err();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn auto_forwards_do_not_lead_to_the_metrics_address() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    close_port(taken);
    let metrics = Metrics {
        at,
        hosts: Vec::new(),
    };
    let mut served = served();
    served.forwards.change(&[], &["auto".parse().unwrap()]).unwrap();
    let mut control = Control::open(None, Some(&metrics), served).unwrap();
    let (mut updates, mut now) = (Vec::new(), Instant::now());
    for _ in 0..100 {
        control.serve(&mut |update| updates.push(update), now);
        let Some(next) = control.deadline().filter(|_| updates.is_empty()) else {
            break;
        };
        now = now.max(next);
    }
    // The changes are confirmed before the next scan.
    assert!(matches!(updates.last(), Some(Update::Confirm(1))), "{updates:?}");
    let forwarded = updates.iter().flat_map(|update| match update {
        Update::Forwards(list) => list.clone(),
        _ => Vec::new(),
    });
    let ports: Vec<_> = forwarded
        .map(|update| match update {
            ForwardUpdate::Add(forward) | ForwardUpdate::Remove(forward) => forward.to.port(),
        })
        .collect();
    assert!(ports.contains(&other.local_addr().unwrap().port()), "{ports:?}");
    assert!(!ports.contains(&at.port()), "{ports:?}");
}
