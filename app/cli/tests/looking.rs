//! Tests of `pontoon ctl` and `pontoon top` as programs, with an instance without flows.

#![expect(
    clippy::unwrap_used,
    reason = "all of this is tests; clippy knows only the functions marked so"
)]

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use tempfile::TempDir;

/// Timeout of each step.
const PATIENCE: Timespec = Timespec {
    tv_sec: 20,
    tv_nsec: 0,
};

/// Simulated instance without flows: a control socket in a directory of its own, with constant responses.
struct Instance(TempDir);

impl Instance {
    fn new() -> Self {
        let instance = Self(tempfile::tempdir().unwrap());
        let listener = UnixListener::bind(instance.path()).unwrap();
        thread::spawn(move || listener.incoming().for_each(|client| answer(client.unwrap())));
        instance
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("control")
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = pontoon(verb);
        command.arg("--control").arg(self.path());
        command
    }
}

fn answer(mut client: UnixStream) {
    let mut buffer = [0; 4096];
    let len = client.read(&mut buffer).unwrap();
    let body = match buffer[..len].starts_with(b"GET /v1/stats ") {
        true => r#"{"workers":[],"total":{"flows":0,"pool_bytes":0,"counters":{}}}"#,
        false => r#"{"flows":[]}"#,
    };
    let len = body.len();
    write!(client, "HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{body}").unwrap();
}

fn pontoon(verb: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pontoon"));
    command.arg(verb);
    command
}

#[test]
fn reader_that_closes_early_is_not_an_error() {
    let instance = Instance::new();
    for words in [&["stats"][..], &["--json", "stats"], &["flows"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = instance
            .command("ctl")
            .args(words)
            .stdout(writer)
            .output()
            .unwrap();
        let printed = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (printed.as_str(), output.status.code()),
            ("", Some(0)),
            "{words:?}"
        );
    }
    // It is an error if the instance closes the connection before a response.
    let output = pontoon("ctl")
        .args(["--control", "/none", "stats"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn usage_error_of_top_names_its_help() {
    let output = pontoon("top").output().unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(printed.ends_with("(try: pontoon top --help)\n"), "{printed}");
}

#[test]
fn top_restores_the_terminal_when_it_is_terminated() {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT, Signal::QUIT] {
        let instance = Instance::new();
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
        let theirs = File::options().read(true).write(true).open(name).unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: 80,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&ours, size).unwrap();
        // A shell starts background processes with some signals ignored, and this test may be one.
        let mut top = Command::new("env")
            .args([
                "--default-signal",
                env!("CARGO_BIN_EXE_pontoon"),
                "top",
                "--control",
            ])
            .arg(instance.path())
            .env("TERM", "xterm")
            .stdin(theirs.try_clone().unwrap())
            .stdout(theirs.try_clone().unwrap())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut ours = File::from(ours);
        let mut until_seen = |wanted: &str| {
            let (mut seen, mut buffer) = (Vec::new(), [0; 4096]);
            while !String::from_utf8_lossy(&seen).contains(wanted) {
                let came = poll(&mut [PollFd::new(&ours, PollFlags::IN)], Some(&PATIENCE)).unwrap();
                assert!(came > 0, "{wanted:?} is not shown");
                let len = ours.read(&mut buffer).unwrap();
                seen.extend_from_slice(&buffer[..len]);
            }
        };
        until_seen("quit");
        let is_raw = || {
            !tcgetattr(&theirs)
                .unwrap()
                .local_modes
                .contains(LocalModes::ICANON)
        };
        assert!(is_raw());
        let pid = Pid::from_child(&top);
        kill_process(pid, signal).unwrap();
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let ended = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&PATIENCE)).unwrap();
        if ended == 0 {
            top.kill().unwrap();
        }
        let status = top.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{signal:?}: {status}");
        assert!(!is_raw(), "{signal:?}");
        // This escape sequence restores the earlier screen.
        until_seen("\x1b[?1049l");
    }
}
