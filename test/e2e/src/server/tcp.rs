//! A TCP server that does what the first line asks. The same server runs on the host and in a guest.
//!
//! | request | what it does |
//! |---|---|
//! | `echo` | sends back what comes, then closes its half |
//! | `late SECONDS` | waits, sends `late`, then as `echo` |
//! | `source SEED LEN` | sends LEN bytes of the pattern, closes its half, reads to the end |
//! | `sink SECONDS SEED LEN` | waits, then reads to the end, checks, answers `ok` or what differs |
//! | `half NAME SEED LEN` | closes its half at once, then as `sink 0`, its answer kept for `report` |
//! | `swap SEED LEN` | takes LEN bytes, checks, sends as many of the pattern, closes its half, reads to the end |
//! | `reset` | closes with a RST |
//! | `urgent` | sends `ab`, `c` as urgent data, and `def`, then reads to the end |
//! | `hold NAME` | reads to the end, and keeps how that was for `report` |
//! | `report NAME` | answers how the connection of that name ended, once it did |
//! | `peer` | answers the client's address |

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::pattern::Pattern;

/// The ends of connections, by the name that the client gave them.
#[derive(Default)]
struct Reports {
    ended: Mutex<HashMap<String, String>>,
    changed: Condvar,
}

pub(crate) fn start(address: SocketAddr) -> Result<SocketAddr> {
    super::accept(address, Reports::default(), serve)
}

fn serve(reports: &Reports, mut stream: TcpStream) -> Result<()> {
    let peer = stream.peer_addr()?;
    let request = request_line(&mut stream)?;
    let words: Vec<&str> = request.split(' ').collect();
    match words.as_slice() {
        ["echo"] => echo(&mut stream),
        ["late", seconds] => {
            // The idle time that the case requests.
            std::thread::sleep(Duration::from_secs(seconds.parse()?));
            stream.write_all(b"late\n")?;
            echo(&mut stream)
        }
        ["source", seed, len] => source(&mut stream, &Pattern::of(seed.parse()?), len.parse()?),
        ["sink", seconds, seed, len] => {
            // The receive window is closed for the time that the case requests.
            std::thread::sleep(Duration::from_secs(seconds.parse()?));
            let verdict = sink(&mut stream, &Pattern::of(seed.parse()?), len.parse()?);
            Ok(stream.write_all(answer(verdict).as_bytes())?)
        }
        ["swap", seed, len] => {
            let pattern = Pattern::of(seed.parse()?);
            let len: u64 = len.parse()?;
            let got = receive(&mut (&mut stream).take(len), &pattern)?;
            source(&mut stream, &pattern, got)
        }
        ["half", name, seed, len] => {
            stream.shutdown(std::net::Shutdown::Write)?;
            let verdict = sink(&mut stream, &Pattern::of(seed.parse()?), len.parse()?);
            reports.keep(name, answer(verdict))
        }
        ["reset"] => Ok(rustix::net::sockopt::set_socket_linger(
            &stream,
            Some(Duration::ZERO),
        )?),
        ["urgent"] => {
            stream.write_all(b"ab")?;
            rustix::net::send(&stream, b"c", rustix::net::SendFlags::OOB)?;
            stream.write_all(b"def")?;
            std::io::copy(&mut stream, &mut std::io::sink())?;
            Ok(())
        }
        ["hold", name] => {
            stream.write_all(b"held\n")?;
            let end = match std::io::copy(&mut stream, &mut std::io::sink()) {
                Ok(_) => "eof".to_string(),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => "reset".to_string(),
                Err(error) => error.to_string(),
            };
            reports.keep(name, format!("{end}\n"))
        }
        ["report", name] => Ok(stream.write_all(reports.wait(name)?.as_bytes())?),
        ["peer"] => Ok(writeln!(stream, "{}", peer.ip())?),
        _ => bail!("unknown request {request}"),
    }
}

/// Reads the first line one byte at a time, as the bytes after it belong to the function that serves the request.
fn request_line(stream: &mut TcpStream) -> Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte)?;
        if byte[0] == b'\n' || line.len() == 100 {
            return Ok(String::from_utf8(line)?);
        }
        line.push(byte[0]);
    }
}

fn echo(stream: &mut TcpStream) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = [0; 16 * 1024];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(stream.shutdown(std::net::Shutdown::Write)?),
            len => stream.write_all(&buffer[..len])?,
        }
    }
}

fn source(stream: &mut TcpStream, pattern: &Pattern, len: u64) -> Result<()> {
    send(stream, pattern, len)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    std::io::copy(stream, &mut std::io::sink())?;
    Ok(())
}

fn sink(stream: &mut TcpStream, pattern: &Pattern, len: u64) -> Result<()> {
    let got = receive(stream, pattern)?;
    anyhow::ensure!(got == len, "{got} bytes instead of {len}");
    Ok(())
}

fn answer(verdict: Result<()>) -> String {
    verdict.map_or_else(|error| format!("{error:#}\n"), |()| "ok\n".to_string())
}

/// Sends the first `len` bytes of the pattern.
pub(crate) fn send(to: &mut impl Write, pattern: &Pattern, len: u64) -> Result<()> {
    let mut offset = 0;
    while offset < len {
        let bytes = pattern.at(offset, len - offset);
        let bytes = &bytes[..bytes.len().min(256 * 1024)];
        to.write_all(bytes)
            .with_context(|| format!("sending at offset {offset}"))?;
        offset += bytes.len() as u64;
    }
    Ok(())
}

/// Reads to the end of the stream and checks the bytes. Returns their number.
pub(crate) fn receive(from: &mut impl Read, pattern: &Pattern) -> Result<u64> {
    let mut buffer = vec![0; 32 * 1024];
    let mut offset = 0;
    loop {
        let len = from
            .read(&mut buffer)
            .with_context(|| format!("receiving at offset {offset}"))?;
        if len == 0 {
            return Ok(offset);
        }
        pattern.check(offset, &buffer[..len])?;
        offset += len as u64;
    }
}

impl Reports {
    fn keep(&self, name: &str, how: String) -> Result<()> {
        self.ended
            .lock()
            .map_err(|_| anyhow::anyhow!("the lock of the reports is poisoned"))?
            .insert(name.to_string(), how);
        self.changed.notify_all();
        Ok(())
    }

    fn wait(&self, name: &str) -> Result<String> {
        let ended = self
            .ended
            .lock()
            .map_err(|_| anyhow::anyhow!("the lock of the reports is poisoned"))?;
        let limit = Duration::from_secs(10);
        let (mut ended, _) = self
            .changed
            .wait_timeout_while(ended, limit, |ended| !ended.contains_key(name))
            .map_err(|_| anyhow::anyhow!("the lock of the reports is poisoned"))?;
        Ok(ended.remove(name).unwrap_or_else(|| "still open\n".to_string()))
    }
}
