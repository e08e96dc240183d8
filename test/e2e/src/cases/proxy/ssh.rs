//! SSH through a proxy: the server sends first, and data flows in both directions at the same time.

use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::Result;

use super::{Kind, MIB, RunningProxy, hash};
use crate::case::{Case, Context, Family};
use crate::cases::expect;
use crate::network::Network;
use crate::process;

const PORT: u16 = 2222;

pub(super) fn cases() -> Vec<Case> {
    [
        ("proxy.ssh-through-squid", Kind::Squid),
        ("proxy.ssh-through-dante", Kind::Dante),
    ]
    .map(|(name, kind)| Case::new(name, 60, move |context| carries(context, kind)))
    .into()
}

/// An SSH server, which is killed on drop.
struct SshServer(Child);

impl SshServer {
    /// Starts a server at the far end for the user `tester`, with keys in `/mnt/ssh`.
    fn start(network: &Network<'_>, address: SocketAddr) -> Result<Self> {
        let home = Path::new("/mnt/ssh/home");
        std::fs::create_dir_all(home.join(".ssh"))?;
        for name in ["server", "client"] {
            let file = format!("/mnt/ssh/{name}");
            process::output(Command::new("dropbearkey").args(["-t", "ed25519", "-f", &file]))?;
        }
        let public = process::output(Command::new("dropbearkey").args(["-y", "-f", "/mnt/ssh/client"]))?;
        let key = public.lines().find(|line| line.starts_with("ssh-ed25519"));
        std::fs::write(home.join(".ssh/authorized_keys"), key.unwrap_or_default())?;
        for (path, mode) in [("", 0o755), (".ssh", 0o700), (".ssh/authorized_keys", 0o600)] {
            std::fs::set_permissions(home.join(path), PermissionsExt::from_mode(mode))?;
        }
        let user = format!("tester:x:1000:1000::{}:/bin/sh\n", home.display());
        std::fs::write("/mnt/ssh/passwd", user)?;
        // The server becomes no other user: it is the user of its only account.
        let line = "mount --bind /mnt/ssh/passwd /etc/passwd; \
                    exec unshare --user --map-user=1000 --map-group=1000 -- \"$@\"";
        let child = network.server().enter(|| {
            let mut command = Command::new("unshare");
            command.args(["--mount", "--", "sh", "-c", line, "sh"]);
            command.args(["dropbear", "-F", "-E", "-s", "-r", "/mnt/ssh/server"]);
            command.args(["-P", "/mnt/ssh/pid", "-p", &address.to_string()]);
            Ok(command.stdin(Stdio::null()).spawn()?)
        })?;
        let server = Self(child);
        process::wait_until("the SSH server listens", Duration::from_secs(15), || {
            Ok(TcpStream::connect(address).is_ok())
        })?;
        Ok(server)
    }
}

impl Drop for SshServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Tests that a command at the far end receives and returns data.
fn carries(context: &Context, kind: Kind) -> Result<()> {
    let network = Network::new(context)?;
    let proxy = RunningProxy::start(kind)?;
    let address = SocketAddr::new(network.server_address(Family::V4), PORT);
    let _server = SshServer::start(&network, address)?;
    let line = format!(
        "$E2E guest generate 3 {} | dbclient -y -y -T -i /mnt/ssh/client -p {PORT} tester@{} cat 2>/mnt/ssh/log \
         | openssl dgst -sha256 -r; cat /mnt/ssh/log >&2",
        8 * MIB,
        address.ip()
    );
    let text = network
        .run()
        .options(proxy.option(Family::V4))
        .shell(&line)
        .text()?;
    expect(&text, &hash(3, 8 * MIB)?)?;
    proxy.logs(&match kind {
        Kind::Squid => format!("CONNECT {address}"),
        Kind::Dante => format!("{}.{PORT}", address.ip()),
    })
}
