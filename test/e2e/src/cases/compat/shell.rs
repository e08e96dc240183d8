//! The shell by which the cases start a program and its network namespace.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::case::Context;
use crate::cases::lifecycle::nothing_left;
use crate::cases::{OBEDIENT, expect, tmpfs};
use crate::machine::DIRECTORY;
use crate::run::{RunningProgram, own_path};

/// A shell on the host of a case, which runs as the user that starts the program and creates network namespaces.
pub(in crate::cases) struct Shell {
    shell: RunningProgram,
    /// Options of unshare(1) for a new namespace of this user.
    unshare: &'static str,
    /// Options of nsenter(1).
    pub(super) nsenter: &'static str,
}

impl Shell {
    pub(in crate::cases) fn start(context: &Context) -> Result<Self> {
        tmpfs(Path::new(DIRECTORY))?;
        let program = &context.program;
        let binary = program
            .binary
            .as_deref()
            .context("there is no program under test")?;
        let (mut command, unshare, nsenter) = match program.drop_privileges {
            true => {
                let mut command = Command::new("unshare");
                command.args(["--user", "--map-user=1000", "--map-group=1000", "--"]);
                (command, "--user --map-root-user", "--user --preserve-credentials")
            }
            false => (Command::new("env"), "", ""),
        };
        // The cases use `wait -n` and process substitution, which bash has and dash does not.
        let child = command
            .args(["bash", "-c", OBEDIENT])
            .env("SLIRP", format!("{binary} compat slirp4netns"))
            .env("PONTOON", binary)
            .env("E2E", own_path())
            .envs(program.environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let shell = RunningProgram::of(child)?.listening()?;
        Ok(Self {
            shell,
            unshare,
            nsenter,
        })
    }

    /// Runs a line that prints one line.
    pub(in crate::cases) fn ask(&mut self, line: &str) -> Result<String> {
        self.shell.ask(line)
    }

    /// Runs a line that prints nothing.
    pub(in crate::cases) fn run(&mut self, line: &str) -> Result<()> {
        let status = self.ask(&format!("{line}; echo $?"))?;
        ensure!(status == "0", "{line}: exit status {status}");
        Ok(())
    }

    /// Sends a request to the API socket as a process of the user, and returns the response.
    pub(super) fn api(&mut self, request: &str) -> Result<String> {
        self.ask(&format!("$E2E guest exchange /mnt/api '{request}'"))
    }

    /// Starts a process that keeps a new network namespace; `$holder` is its process id.
    pub(super) fn holder(&mut self) -> Result<String> {
        let unshare = self.unshare;
        self.ask(&format!(
            "unshare {unshare} --net sleep 1000 >/dev/null & holder=$!; \
             until [ \"$(cat /proc/$holder/comm)\" = sleep ]; do sleep 0.01; done; echo $holder"
        ))
    }

    /// Runs a line in the network namespace of the last `$holder`, and returns its output in one line.
    pub(super) fn inside(&mut self, line: &str) -> Result<String> {
        let nsenter = self.nsenter;
        self.ask(&format!(
            "echo $(nsenter {nsenter} --net --target $holder bash -c '{line}' 2>&1)"
        ))
    }

    /// Creates a tap as RootlessKit does, and configures it for the network 10.0.2.0/24.
    pub(super) fn tap(&mut self) -> Result<()> {
        let text = self.inside(
            "ip tuntap add name tap0 mode tap && ip link set tap0 address 02:11:22:33:44:55 mtu 65520 up && \
             ip address add 10.0.2.100/24 dev tap0 && ip route add default via 10.0.2.2 && ip link set lo up",
        )?;
        expect(&text, "")
    }

    /// Starts the program with these arguments, in which `$holder` may occur, and waits until it is ready; `$slirp` is
    /// its process id.
    pub(super) fn slirp(&mut self, arguments: &str) -> Result<()> {
        let ready = self.ask(&format!(
            "rm -f /mnt/ready; mkfifo /mnt/ready; $SLIRP -r 3 {arguments} 3>/mnt/ready >/dev/null & slirp=$!; \
             cat /mnt/ready"
        ))?;
        expect(&ready, "1")
    }

    /// Sends a signal to the program, and returns its exit status.
    pub(super) fn end(&mut self, signal: &str) -> Result<String> {
        self.ask(&format!("kill -{signal} $slirp; wait $slirp; echo $?"))
    }

    /// Ends the last `$holder`, and checks that no process other than the shell is left.
    pub(super) fn finish(mut self) -> Result<()> {
        self.run("kill $holder; ! wait $holder")?;
        drop(self);
        nothing_left()
    }
}
