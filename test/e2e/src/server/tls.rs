//! An HTTPS server behind a relay that records how many bytes each client has sent. Its certificate is from an authority of the
//! tests' own.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::process;

/// The certificate of the authority.
pub(crate) const AUTHORITY: &str = "/run/tls/authority.pem";

/// The content of the file `hello` and of the reply to each request for it.
pub(crate) const HELLO: &str = "hello from the server";

/// Address of `openssl s_server`, in the network namespace of the server.
const BEHIND: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8443);

/// A running server. It ends when this value is dropped.
pub(crate) struct TlsServer {
    openssl: Child,
    received: Arc<Mutex<Vec<u64>>>,
}

impl TlsServer {
    /// Starts a server on port 443 of `addresses` in the caller's network namespace. The certificate is valid for `names`, in the
    /// form of openssl-x509v3_config(5): `DNS:name,IP:address`.
    pub(crate) fn start(addresses: &[SocketAddr], names: &str) -> Result<Self> {
        certificates(names)?;
        let files = Path::new("/run/tls/files");
        std::fs::create_dir_all(files.join("repo/info"))?;
        std::fs::write(files.join("hello"), HELLO)?;
        // The oldest protocol of git for reading over HTTP needs files only.
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let references = files.join("repo/info/refs?service=git-upload-pack");
        std::fs::write(references, format!("{commit}\trefs/heads/main\n"))?;
        std::fs::write(files.join("repo/HEAD"), "ref: refs/heads/main\n")?;
        let openssl = Command::new("openssl")
            .args(["s_server", "-quiet", "-WWW", "-accept", &BEHIND.to_string()])
            .args(["-cert", "/run/tls/server.pem", "-key", "/run/tls/server.key"])
            .current_dir(files)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start openssl")?;
        let server = Self {
            openssl,
            received: Arc::default(),
        };
        let begin = Instant::now();
        while TcpStream::connect(BEHIND).is_err() {
            if begin.elapsed() > Duration::from_secs(20) {
                bail!("openssl s_server does not listen");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        for address in addresses {
            super::accept(*address, Arc::clone(&server.received), |received, client| {
                relay(client, received)
            })?;
        }
        Ok(server)
    }

    /// Returns the number of bytes that each client has sent, in the order of their connections.
    pub(crate) fn received(&self) -> Vec<u64> {
        self.received
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for TlsServer {
    fn drop(&mut self) {
        let _ = self.openssl.kill();
        let _ = self.openssl.wait();
    }
}

/// Makes an authority, and a certificate for `names`.
fn certificates(names: &str) -> Result<()> {
    std::fs::create_dir_all("/run/tls")?;
    let extensions = format!("subjectAltName={names}");
    let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc"];
    let openssl = |arguments: &[&str]| {
        let output = Command::new("openssl").args(arguments).args(key).output()?;
        process::checked("openssl", output.status, &output.stdout, &output.stderr).map(drop)
    };
    openssl(&[
        "req",
        "-x509",
        "-days",
        "2",
        "-subj",
        "/CN=Tests",
        "-keyout",
        "/run/tls/authority.key",
        "-out",
        AUTHORITY,
    ])?;
    openssl(&[
        "req",
        "-x509",
        "-days",
        "2",
        "-subj",
        "/CN=server",
        "-addext",
        &extensions,
        "-addext",
        "basicConstraints=critical,CA:FALSE",
        "-CA",
        AUTHORITY,
        "-CAkey",
        "/run/tls/authority.key",
        "-keyout",
        "/run/tls/server.key",
        "-out",
        "/run/tls/server.pem",
    ])
}

/// Relays a client to the server, once it has sent data, and counts this data.
fn relay(mut client: TcpStream, received: &Mutex<Vec<u64>>) -> Result<()> {
    let place = {
        let mut received = received.lock().unwrap_or_else(PoisonError::into_inner);
        received.push(0);
        received.len() - 1
    };
    let mut buffer = [0; 16_384];
    let mut server = None;
    loop {
        let len = client.read(&mut buffer)?;
        received.lock().unwrap_or_else(PoisonError::into_inner)[place] += len as u64;
        if len == 0 {
            break;
        }
        if server.is_none() {
            let begun = TcpStream::connect(BEHIND)?;
            let (mut from, mut to) = (begun.try_clone()?, client.try_clone()?);
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Write);
            });
            server = Some(begun);
        }
        if let Some(server) = &mut server {
            server.write_all(&buffer[..len])?;
        }
    }
    if let Some(server) = server {
        server.shutdown(Shutdown::Write)?;
    }
    Ok(())
}
