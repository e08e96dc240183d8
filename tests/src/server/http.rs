//! An HTTP/1.1 server, one request for each connection.
//!
//! `GET /bytes/SEED/LEN` answers with the pattern; `PUT /check/SEED/LEN` checks what it takes and says so;
//! `GET /files/...` answers from the directory it was given.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::tcp::{receive, send};
use crate::pattern::Pattern;

pub(crate) fn start(address: SocketAddr, files: Option<PathBuf>) -> Result<SocketAddr> {
    super::accept(address, files, |files, stream| serve(files.as_deref(), stream))
}

fn serve(files: Option<&Path>, stream: TcpStream) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut length = 0;
    let mut waits = false;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        let header = header.trim_end().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        if let Some(value) = header.strip_prefix("content-length:") {
            length = value.trim().parse()?;
        }
        waits |= header == "expect: 100-continue";
    }
    let mut words = request.split(' ');
    let method = words.next().unwrap_or_default();
    let path = words
        .next()
        .unwrap_or_default()
        .split('?')
        .next()
        .unwrap_or_default();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    match (method, parts.as_slice()) {
        ("GET", ["bytes", seed, len]) => {
            let len = len.parse()?;
            head(&mut writer, "200 OK", len)?;
            send(&mut writer, &Pattern::of(seed.parse()?), len)
        }
        ("PUT", ["check", seed, len]) => {
            if waits {
                writer.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
            }
            let expected: u64 = len.parse()?;
            let verdict = receive(&mut reader.take(length), &Pattern::of(seed.parse()?));
            let text = match verdict {
                Ok(got) if got == expected => "ok\n".to_string(),
                Ok(got) => format!("{got} bytes instead of {expected}\n"),
                Err(error) => format!("{error:#}\n"),
            };
            head(&mut writer, "200 OK", text.len() as u64)?;
            Ok(writer.write_all(text.as_bytes())?)
        }
        ("GET", ["files", path @ ..]) => match open(files, path) {
            Ok(mut file) => {
                head(&mut writer, "200 OK", file.metadata()?.len())?;
                std::io::copy(&mut file, &mut writer)?;
                Ok(())
            }
            Err(_) => head(&mut writer, "404 Not Found", 0),
        },
        _ => head(&mut writer, "400 Bad Request", 0),
    }
}

fn head(writer: &mut TcpStream, status: &str, len: u64) -> Result<()> {
    Ok(write!(
        writer,
        "HTTP/1.1 {status}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n"
    )?)
}

fn open(files: Option<&Path>, parts: &[&str]) -> Result<File> {
    let path: PathBuf = parts.iter().collect();
    if !path.components().all(|part| matches!(part, Component::Normal(_))) {
        bail!("not a path below the directory");
    }
    let path = files.context("no directory to serve")?.join(path);
    if !path.is_file() {
        bail!("no such file");
    }
    Ok(File::open(path)?)
}
