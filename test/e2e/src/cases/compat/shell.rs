//! Steps of the shell that concern `slirp4netns`: its taps, its start and end, and its API socket.

use anyhow::Result;

use crate::cases::expect;
use crate::cases::shell::Shell;

impl Shell {
    /// Sends a request to the API socket as a process of the user, and returns the response.
    pub(super) fn api(&mut self, request: &str) -> Result<String> {
        self.ask(&format!("$E2E guest exchange /mnt/api '{request}'"))
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
}
