//! The relay mcr: a daemon, to which `mcrctl` adds the rules when it listens.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Selection, StackFinder, StackKind};
use crate::relay::{Hop, InstalledRelay, SCRATCH, group, spawn};
use crate::schema::StackRole;

pub(super) const KIND: StackKind = StackKind {
    name: "mcr",
    role: StackRole::Peer,
    find: StackFinder::Relay(find),
};

/// Time limit for the daemon to listen on its control socket.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// The path of the daemon `mcrd`, beside which `mcrctl` is.
struct Mcr(PathBuf);

fn find(wanted: &Selection) -> Result<Box<dyn InstalledRelay>> {
    Ok(Box::new(Mcr(super::program(wanted, "mcrd", "mcr")?)))
}

impl InstalledRelay for Mcr {
    fn start(&self, hop: &Hop<'_>) -> Result<Vec<Child>> {
        let (from, to) = (group(hop.number), group(hop.number + 1));
        let socket = format!("{SCRATCH}/mcr.{}.{}", std::process::id(), hop.number);
        let mut command = Command::new(&self.0);
        command.args(["supervisor", "--control-socket-path", &socket]);
        command.args(["--interface", "in", "--num-workers", "1"]);
        let child = spawn(hop, &mut command)?;
        let begin = Instant::now();
        loop {
            let mut control = Command::new(self.0.with_file_name("mcrctl"));
            control.args(["--socket-path", &socket, "add", "--input-interface", "in"]);
            control.args(["--input-group", &from.ip().to_string()]);
            control.args(["--input-port", &from.port().to_string()]);
            for output in 0..hop.outputs.len() {
                control.args(["--outputs", &format!("{to}:out{output}")]);
            }
            control.stdout(Stdio::null()).stderr(Stdio::null());
            if hop.namespace.enter(|| Ok(control.status()?))?.success() {
                return Ok(vec![child]);
            }
            ensure!(begin.elapsed() < START_TIMEOUT, "mcrctl cannot add a rule");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
