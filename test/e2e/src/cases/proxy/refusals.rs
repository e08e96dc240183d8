//! Proxies that refuse, stall, close, or are none: each connection of the guest is reset in time, and nothing is left.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{DIRECTORY, HTTP};
use crate::case::{Case, Context, Family};
use crate::cases::{OBEDIENT, expect, tmpfs};
use crate::network::Network;
use crate::process;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("proxy.refusals", 60, refusals),
        Case::new("proxy.answer-octet-by-octet", 30, slowly),
    ]
}

/// The behaviour of a server in place of a proxy, the scheme of its URL, and the reason and error in the closing event.
const CASES: [(Behaviour, &str, &str, &str); 7] = [
    (
        Behaviour::Answer(b"HTTP/1.1 407 No\r\nProxy-Authenticate: Negotiate\r\n\r\n"),
        "http",
        "proxy-refused",
        "the proxy requires Negotiate authentication, which is not supported",
    ),
    (
        Behaviour::Answer(b"HTTP/1.1 302 Found\r\nLocation: http://login.test/\r\n\r\n"),
        "http",
        "proxy-refused",
        "the proxy answered with status 302 (Found)",
    ),
    (
        Behaviour::Answer(b"220 mail.test ESMTP\r\n"),
        "http",
        "proxy-refused",
        "the answer of the proxy is not a response of HTTP/1.1",
    ),
    (
        Behaviour::Answer(b"HTTP/1.1 200 "),
        "http",
        "proxy-failed",
        "timed out",
    ),
    (
        Behaviour::Close,
        "http",
        "proxy-refused",
        "the proxy closed the connection without an answer",
    ),
    (
        Behaviour::Answer(b"\x05\x00\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00"),
        "socks5",
        "proxy-refused",
        "the proxy answered with code 2 (connection not allowed by ruleset)",
    ),
    (Behaviour::Answer(b""), "socks5", "proxy-failed", "timed out"),
];

/// Number of further connections that each proxy refuses.
const MANY: usize = 12;

/// The actions of a server when a client has sent its first request.
#[derive(Clone, Copy)]
enum Behaviour {
    /// Sends these octets, and reads to the end.
    Answer(&'static [u8]),
    /// Closes the connection.
    Close,
}

fn serve(mut stream: TcpStream, behaviour: Behaviour) -> Result<()> {
    let mut request = [0; 1024];
    let len = stream.read(&mut request)?;
    ensure!(len > 0, "no request");
    if let Behaviour::Answer(answer) = behaviour {
        stream.write_all(answer)?;
        while stream.read(&mut request)? > 0 {}
    }
    Ok(())
}

fn start(behaviour: Behaviour) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().filter_map(Result::ok) {
            std::thread::spawn(move || serve(stream, behaviour));
        }
    });
    Ok(address)
}

fn refusals(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    tmpfs(std::path::Path::new(DIRECTORY))?;
    let server = SocketAddr::new(network.server_address(Family::V4), HTTP);
    for (behaviour, scheme, reason, error) in CASES {
        let proxy = start(behaviour)?;
        let url = format!("{scheme}://{proxy}");
        // A proxy that answers has time on a loaded machine. A stalled one is abandoned before the guest's kernel repeats its
        // SYN after a second.
        let timeout = if error == "timed out" { "500ms" } else { "20s" };
        let options = [
            "--proxy",
            &url,
            "--audit",
            "/mnt/audit",
            "--connect-timeout",
            timeout,
        ];
        let mut guest = network
            .run()
            .options(options)
            .shell(OBEDIENT)
            .spawn()?
            .listening()?;
        let took = Instant::now();
        let line = format!(
            "curl -sS --max-time 10 http://{}/ 2>/dev/null; echo $?",
            server.ip()
        );
        // CURLE_COULDNT_CONNECT: the guest's connect was refused.
        expect(&guest.ask(&line)?, "7")?;
        ensure!(
            took.elapsed() < Duration::from_secs(5),
            "{error}: after {:?}",
            took.elapsed()
        );
        // Each worker keeps a socket for its next connection, so a few more descriptors than after the first one are none that
        // are left.
        let engine = context.program.engine()?;
        let before = engine.descriptors()?;
        let line = format!(
            "for i in $(seq {MANY}); do curl -sS --max-time 10 http://{}/ 2>/dev/null & done; wait; echo done",
            server.ip()
        );
        expect(&guest.ask(&line)?, "done")?;
        process::wait_until("no descriptor is left", Duration::from_secs(5), || {
            Ok(engine.descriptors()? < before + MANY / 2)
        })?;
        guest.finish_by_end_of_input()?;
        let audit = std::fs::read_to_string("/mnt/audit")?;
        let records = audit.lines().map(serde_json::from_str);
        let records: Vec<Value> = records.collect::<Result<_, _>>()?;
        let mut closed = records.iter().filter(|record| record["type"] == "closed");
        // A connection that a late repetition of a SYN has opened may end with the program.
        let is_right = |record: &Value| {
            record["reason"] == "ended" || record["reason"] == reason && record["error"] == error
        };
        ensure!(closed.all(is_right), "{error}: {audit}");
        ensure!(records.iter().any(|record| record["reason"] == reason), "{audit}");
        let opened = records.iter().find(|record| record["type"] == "opened");
        ensure!(
            opened.is_some_and(|it| it["target"] == proxy.to_string()),
            "{audit}"
        );
        std::fs::remove_file("/mnt/audit")?;
    }
    Ok(())
}

/// Tests a proxy that sends its answer octet by octet, with the first octets of the stream behind it.
fn slowly(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let proxy = listener.local_addr()?;
    std::thread::spawn(move || {
        for mut stream in listener.incoming().filter_map(Result::ok) {
            std::thread::spawn(move || -> Result<()> {
                stream.set_nodelay(true)?;
                let mut request = [0; 1024];
                ensure!(stream.read(&mut request)? > 0, "no request");
                let answer = b"HTTP/1.1 200 OK\r\nVia: 1.1 test\r\n\r\nfirst octets\n";
                for octet in answer {
                    stream.write_all(&[*octet])?;
                    // The octets arrive in segments of their own.
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(())
            });
        }
    });
    let url = format!("http://{proxy}");
    let to = network.server_address(Family::V4).to_string();
    let run = network.run().options(["--proxy", &url]);
    let text = run
        .command(["python3", "-c", super::FIRST_LINE, &to, "22"])
        .text()?;
    expect(&text, "first octets")
}
