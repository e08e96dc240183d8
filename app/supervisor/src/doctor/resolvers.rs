//! Check of the host's resolvers, each of which is sent a query.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::{Duration, Instant};

use domain::base::{Message, MessageBuilder, Name, Rtype};
use pontoon_process::Fix;
use pontoon_process::error::reason;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::{Check, DEADLINE, Status, trial};
use crate::host::resolv::{self, Resolv};

const NAME: &str = "resolvers";

/// Time after which a query is sent again, and the end of the wait for replies.
const RESENT: Duration = Duration::from_millis(700);
const PATIENCE: Duration = Duration::from_millis(2_000);

/// Addresses of the stub resolver of systemd-resolved (systemd-resolved.service(8)).
const STUBS: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 53)),
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, 54)),
];

/// File of systemd-resolved to which resolv.conf may be a link.
const STUB_FILE: &str = "/run/systemd/resolve/stub-resolv.conf";

/// State of the host's resolvers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Found {
    /// True if resolv.conf exists.
    exists: bool,
    /// True if resolv.conf lists a resolver.
    listed: bool,
    /// True if systemd-resolved has written its file.
    resolved: bool,
    /// Resolvers that the engine uses, and the reason why each does not reply.
    servers: Vec<(SocketAddr, Option<String>)>,
}

/// Sends a query to each resolver of the host.
pub(super) fn check() -> Check {
    match trial::run(DEADLINE, find) {
        Ok(found) => judge(&found),
        Err(error) => Check::incomplete(NAME, &error),
    }
}

fn judge(found: &Found) -> Check {
    let (replied, silent): (Vec<_>, Vec<_>) =
        found.servers.iter().partition(|(_, problem)| problem.is_none());
    let names = replied
        .iter()
        .map(|(server, _)| shown(server))
        .collect::<Vec<_>>()
        .join(", ");
    let problems = silent
        .iter()
        .map(|(server, problem)| format!("{}: {}", shown(server), problem.as_deref().unwrap_or_default()));
    let problems = problems.collect::<Vec<_>>().join("; ");
    if !found.exists {
        let consequence =
            "the guest of pontoon run has no /etc/resolv.conf, so that its programs find no resolver";
        return loss(
            "/etc/resolv.conf does not exist".to_owned(),
            consequence,
            file(found),
        );
    }
    if silent.is_empty() {
        let origin = if found.listed {
            ""
        } else {
            " (/etc/resolv.conf lists none)"
        };
        return Check::ok(NAME, format!("replies from {names}{origin}"));
    }
    if !found.listed {
        let what = format!("/etc/resolv.conf lists no resolver, and there is none on this host ({problems})");
        return loss(what, NO_NAMES, file(found));
    }
    if replied.is_empty() {
        let is_stub = silent.iter().all(|(server, _)| STUBS.contains(&server.ip()));
        let fix = match is_stub {
            true => Fix::root("systemctl restart systemd-resolved").or("pontoon run --dns ADDRESS"),
            false => Fix::root("echo 'nameserver ADDRESS' >/etc/resolv.conf").or("pontoon run --dns ADDRESS"),
        };
        return loss(format!("no resolver replies ({problems})"), NO_NAMES, fix);
    }
    let patterns = silent.iter().map(|(server, _)| format!("-e {} ", server.ip()));
    let patterns: String = patterns.collect();
    let command = format!("list=$(grep -vwF {patterns}/etc/resolv.conf) && echo \"$list\" >/etc/resolv.conf");
    loss(
        format!("replies from {names}, but not from all ({problems})"),
        "names are resolved late while the engine waits for the other resolvers",
        Fix::root(command),
    )
}

const NO_NAMES: &str = "the guest cannot resolve names";

fn loss(found: String, consequence: &str, fix: Fix) -> Check {
    Check::finding(Status::Loss, NAME, found, consequence, fix)
}

/// Returns the command that creates resolv.conf.
fn file(found: &Found) -> Fix {
    Fix::root(match found.resolved {
        true => format!("ln -sf {STUB_FILE} {}", resolv::PATH),
        false => format!("echo 'nameserver ADDRESS' >{}", resolv::PATH),
    })
    .or("pontoon run --dns ADDRESS")
}

fn shown(server: &SocketAddr) -> String {
    match STUBS.contains(&server.ip()) {
        true => format!("{}, the stub of systemd-resolved", server.ip()),
        false => server.ip().to_string(),
    }
}

fn find() -> Found {
    let text = fs::read_to_string(resolv::PATH);
    let is_server = |line: &str| line.split_whitespace().next() == Some("nameserver");
    let servers = Resolv::host().servers;
    let problems = query(&servers);
    Found {
        exists: text.is_ok(),
        listed: text.is_ok_and(|text| text.lines().any(is_server)),
        resolved: Path::new(STUB_FILE).exists(),
        servers: servers.into_iter().zip(problems).collect(),
    }
}

/// Identifier of the queries. The sockets are connected, so that only the queried server can reply.
const ID: u16 = 0x706f;

/// Returns a query for the name servers of the root, which every resolver knows.
fn message() -> Vec<u8> {
    let mut builder = MessageBuilder::new_vec();
    builder.header_mut().set_id(ID);
    builder.header_mut().set_rd(true);
    let mut builder = builder.question();
    // The buffer grows as needed.
    let _ = builder.push((Name::root_vec(), Rtype::NS));
    builder.finish()
}

/// Query to one resolver.
struct Query {
    socket: io::Result<UdpSocket>,
    replied: bool,
    error: Option<io::Error>,
}

impl Query {
    fn open(server: SocketAddr) -> Self {
        let any: IpAddr = match server {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let open = || {
            let socket = UdpSocket::bind((any, 0))?;
            socket.connect(server)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        };
        Self {
            socket: open(),
            replied: false,
            error: None,
        }
    }

    fn waits(&self) -> Option<&UdpSocket> {
        self.socket
            .as_ref()
            .ok()
            .filter(|_| !self.replied && self.error.is_none())
    }

    fn send(&mut self, message: &[u8]) {
        if let Some(Err(error)) = self.waits().map(|socket| socket.send(message)) {
            self.error = Some(error);
        }
    }

    fn receive(&mut self) {
        let mut buffer = [0; 4096];
        match self.waits().map(|socket| socket.recv(&mut buffer)) {
            Some(Ok(len)) => {
                let reply = Message::from_octets(&buffer[..len]);
                self.replied = reply.is_ok_and(|reply| reply.header().qr() && reply.header().id() == ID);
            }
            Some(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => self.error = Some(error),
            Some(Err(_)) | None => {}
        }
    }

    /// Returns the reason why there is no reply.
    fn problem(self) -> Option<String> {
        match (self.replied, self.error.or(self.socket.err())) {
            (true, _) => None,
            (false, Some(error)) => Some(reason(&error)),
            (false, None) => Some(format!("no reply within {} s", PATIENCE.as_secs())),
        }
    }
}

/// Queries all servers at the same time, and returns the reason why each does not reply.
fn query(servers: &[SocketAddr]) -> Vec<Option<String>> {
    let message = message();
    let mut queries: Vec<_> = servers.iter().map(|server| Query::open(*server)).collect();
    let begin = Instant::now();
    for end in [RESENT, PATIENCE].map(|after| begin + after) {
        for query in &mut queries {
            query.send(&message);
        }
        wait(&mut queries, end);
    }
    queries.into_iter().map(Query::problem).collect()
}

/// Receives replies until there is one from each server, or until the time `end`.
fn wait(queries: &mut [Query], end: Instant) {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let mut fds: Vec<_> = queries
            .iter()
            .filter_map(Query::waits)
            .map(|socket| PollFd::new(socket, PollFlags::IN))
            .collect();
        if fds.is_empty() || left.is_zero() {
            return;
        }
        let left = Timespec::try_from(left).unwrap_or_default();
        if rustix::io::retry_on_intr(|| poll(&mut fds, Some(&left))).is_err() {
            return;
        }
        queries.iter_mut().for_each(Query::receive);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(servers: &[(&str, Option<&str>)]) -> Found {
        let servers = servers.iter().map(|(address, problem)| {
            let address: IpAddr = address.parse().unwrap();
            ((address, 53).into(), problem.map(str::to_owned))
        });
        Found {
            exists: true,
            listed: true,
            resolved: false,
            servers: servers.collect(),
        }
    }

    #[test]
    fn replies_are_no_finding() {
        let check = judge(&found(&[("127.0.0.53", None), ("192.0.2.1", None)]));
        let expected = "replies from 127.0.0.53, the stub of systemd-resolved, 192.0.2.1";
        assert_eq!(check, Check::ok("resolvers", expected));
        let mut unlisted = found(&[("127.0.0.1", None)]);
        unlisted.listed = false;
        let check = judge(&unlisted);
        assert_eq!(
            check.found,
            "replies from 127.0.0.1 (/etc/resolv.conf lists none)"
        );
        assert_eq!(check.status, Status::Ok);
    }

    #[test]
    fn missing_resolvers_are_a_loss() {
        let mut none = found(&[("127.0.0.1", Some("connection refused"))]);
        none.listed = false;
        let check = judge(&none);
        assert_eq!(check.status, Status::Loss);
        assert_eq!(
            check.found,
            "/etc/resolv.conf lists no resolver, and there is none on this host (127.0.0.1: connection refused)"
        );
        assert_eq!(
            check.fix.unwrap().command,
            "echo 'nameserver ADDRESS' >/etc/resolv.conf"
        );
        none.exists = false;
        none.resolved = true;
        let check = judge(&none);
        assert_eq!(check.found, "/etc/resolv.conf does not exist");
        assert_eq!(
            check.fix.unwrap().command,
            "ln -sf /run/systemd/resolve/stub-resolv.conf /etc/resolv.conf"
        );
    }

    #[test]
    fn silent_resolvers_are_named() {
        let silent = Some("no reply within 2 s");
        let check = judge(&found(&[("192.0.2.1", silent)]));
        assert_eq!(
            check.found,
            "no resolver replies (192.0.2.1: no reply within 2 s)"
        );
        let check = judge(&found(&[("127.0.0.53", Some("connection refused"))]));
        assert_eq!(check.fix.unwrap().command, "systemctl restart systemd-resolved");
        let check = judge(&found(&[("192.0.2.1", None), ("192.0.2.2", silent)]));
        assert_eq!(
            check.found,
            "replies from 192.0.2.1, but not from all (192.0.2.2: no reply within 2 s)"
        );
        assert_eq!(
            check.fix.unwrap().command,
            "list=$(grep -vwF -e 192.0.2.2 /etc/resolv.conf) && echo \"$list\" >/etc/resolv.conf"
        );
    }

    #[test]
    fn servers_are_queried() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = server.local_addr().unwrap();
        let closed = {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.local_addr().unwrap()
        };
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 512];
            let (len, client) = server.recv_from(&mut buffer).unwrap();
            let text = buffer[..len].to_vec();
            // The flag QR makes a reply of the query.
            buffer[2] |= 0x80;
            server.send_to(&buffer[..len], client).unwrap();
            text
        });
        let problems = query(&[address, closed]);
        assert_eq!(problems, [None, Some("connection refused".to_owned())]);
        // Header, root name, type NS, class IN.
        let expected = [0x70, 0x6f, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];
        assert_eq!(thread.join().unwrap(), expected);
    }
}
