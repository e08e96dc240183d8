//! Cases about the confinement of the command of `pontoon run`: resources of the host that it must not reach, and
//! actions that stay possible.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::mount::mount_bind;

use super::{expect, tcp_server};
use crate::case::{Caller, Case, Context, Family};
use crate::network::Network;
use crate::process;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("confinement.system-calls", 20, system_calls),
        Case::new("confinement.terminal", 20, terminal),
        Case::new("confinement.descriptors", 20, descriptors),
        Case::new("confinement.process-1-cannot-be-read", 20, process_1),
        Case::new("confinement.namespaces", 60, namespaces),
        Case::new("confinement.keep-capabilities", 20, keep_capabilities)
            .caller(Caller::Root("others have none to keep")),
        Case::new("confinement.without-user-namespaces", 20, without_user_namespaces),
        Case::new("confinement.cgroups-read-only", 30, cgroups_read_only),
        Case::new("confinement.cgroup-of-the-host", 30, cgroup_of_the_host)
            .caller(Caller::Root("it makes a cgroup")),
        Case::new("confinement.one-user-namespace", 20, one_user_namespace),
        Case::new("confinement.capabilities-inside", 60, capabilities_inside),
        Case::new("confinement.set-user-id", 20, set_user_id)
            .caller(Caller::Root("it makes a set-user-ID program")),
        Case::new("confinement.bubblewrap-inside", 20, bubblewrap_inside),
        Case::new("confinement.bubblewrap-around", 20, bubblewrap_around),
    ]
    .into_iter()
    .map(Case::pontoon_only)
    .collect()
}

/// Tests, with each system call ABI of the machine, that the command cannot insert input into its terminal, nor open
/// sockets of families that belong to no network namespace.
fn system_calls(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let refused = |count: usize| "EPERM ".repeat(count) + "EAFNOSUPPORT EAFNOSUPPORT EBADF";
    let ways = if cfg!(target_arch = "x86_64") { 12 } else { 6 };
    let text = network.run().guest(["filter"]).text()?;
    expect(&text, &refused(ways))?;
    #[cfg(target_arch = "x86_64")]
    {
        let output = network.run().guest(["filter", "32"]).output()?;
        // A SIGSEGV means that the kernel lacks the ABI.
        if output.status.code() != Some(128 + 11) {
            expect(&String::from_utf8(output.stdout)?, &refused(2))?;
        }
    }
    Ok(())
}

/// Tests that the command cannot insert input into the shell's terminal (ioctl TIOCSTI).
fn terminal(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let own = std::env::current_exe()?.display().to_string();
    let mut command = context.program.command()?;
    command.args(["run", "-q", "--", &own, "guest", "filter", "terminal"]);
    let words: Vec<String> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.display().to_string())
        .collect();
    let mut script = Command::new("script");
    script.args(["-qec", &words.join(" "), "/dev/null"]);
    let text = process::output(&mut script)?;
    expect(&text, "EPERM")
}

/// Tests that the command inherits only standard input, output and error; `ls` opens one more descriptor for the
/// directory that it lists.
fn descriptors(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    super::tmpfs(Path::new("/run"))?;
    let run = network
        .run()
        .options(["--control", "/run/control", "-p", "8080:80"]);
    expect(&run.command(["ls", "/proc/self/fd"]).text()?, "0\n1\n2\n3")
}

/// Tests that the command cannot read the memory layout and the descriptors of process 1, which is a fork of the
/// supervisor with a socket to it.
fn process_1(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    network.run().shell("cat /proc/$$/maps").text()?;
    for line in ["cat /proc/1/maps", "cat /proc/1/mem", "ls -l /proc/1/fd/0"] {
        let output = network.run().shell(line).output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(text.contains("Permission denied"), "{line}: {output:?}");
    }
    Ok(())
}

/// Mounts the host's network namespace at a path where `ip` finds it by the name `host`.
fn name_host_network() -> Result<()> {
    super::tmpfs(Path::new("/run"))?;
    std::fs::create_dir("/run/netns")?;
    File::create("/run/netns/host")?;
    Ok(mount_bind("/proc/self/ns/net", "/run/netns/host")?)
}

/// Commands that would enter the host's network or mount namespace, or create a device.
const REFUSED: &[&str] = &[
    "nsenter --net=/run/netns/host true",
    "ip netns exec host true",
    "ip link set tap0 netns host",
    "ip link add name new0 netns host type bridge",
    "ip netns set host 7 && ip link add name new0 link-netnsid 7 type bridge",
    "mknod /run/device c 1 3",
    "mknod /run/device b 7 0",
];

fn namespaces(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    name_host_network()?;
    let links = || process::output(Command::new("ip").args(["-o", "-br", "link"]));
    let before = links()?;
    for way in REFUSED {
        let output = network.run().shell(way).output()?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success(), "the command succeeded: {way}");
        ensure!(text.contains("not permitted"), "{way}: {text}");
        let now = links()?;
        ensure!(now == before, "{way} changed\n{before}into\n{now}");
    }
    Ok(())
}

fn keep_capabilities(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    name_host_network()?;
    let host = std::fs::read_link("/proc/self/ns/net")?;
    let run = network.run().options(["--keep-capabilities"]);
    let text = run.shell("nsenter --net=/run/netns/host readlink /proc/self/ns/net");
    expect(&text.text()?, &host.display().to_string())
}

/// Tests that root on a host without user namespaces has to request a command with all capabilities explicitly.
fn without_user_namespaces(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let with = |options: &str| {
        let line = format!(
            "echo 0 > /proc/sys/user/max_user_namespaces && exec {} run {options} -- ip -o link show tap0",
            binary(context)?
        );
        let mut host = Command::new("unshare");
        host.args(["--user", "--map-root-user", "sh", "-c", &line]);
        anyhow::Ok(host.env("PONTOON_DISABLE", "namespaces").output()?)
    };
    let output = with("")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code() == Some(1) && text.ends_with(", or --keep-capabilities)\n"),
        "{}: {text}",
        output.status
    );
    let output = with("--quiet --keep-capabilities")?;
    ensure!(output.status.success(), "{output:?}");
    Ok(())
}

/// Shell commands that print each mount of a cgroup file system that is writable, or that the command makes writable or
/// removes.
const CGROUPS: &str = r#"
    found=0
    for point in $(awk '$3 ~ /^cgroup2?$/ { print $2 }' /proc/mounts); do
        found=1
        is_writable() { awk -v point=$point '$2 == point && $4 !~ /^ro(,|$)/' /proc/mounts | grep -q .; }
        is_writable && echo "$point is writable"
        mount -o remount,bind,rw $point 2> /dev/null
        is_writable && echo "$point was made writable"
        umount -l $point 2> /dev/null && echo "$point was removed"
        mount --bind $point /mnt && mount -o remount,bind,rw /mnt 2> /dev/null && echo "a copy of $point is writable"
    done
    echo "found $found"
"#;

/// Tests that the cgroups of the host are read-only for the command, and stay so, in namespaces of its own as well.
fn cgroups_read_only(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    // The host of the test may have mounted none. An unprivileged user cannot mount those of the host's cgroup namespace.
    let mounts = std::fs::read_to_string("/proc/mounts")?;
    let is_there = mounts.lines().any(|line| {
        line.split(' ')
            .nth(2)
            .is_some_and(|kind| kind.starts_with("cgroup"))
    });
    let expected = if is_there { "found 1" } else { "found 0" };
    super::tmpfs(Path::new("/run"))?;
    std::fs::write("/run/cgroups", CGROUPS)?;
    expect(&network.run().shell("exec sh /run/cgroups").text()?, expected)?;
    let inner = "exec unshare --user --map-root-user --mount sh /run/cgroups";
    expect(&network.run().shell(inner).text()?, expected)
}

/// A cgroup of the host with one process; both are removed on drop.
struct HostGroup {
    directory: std::path::PathBuf,
    process: std::process::Child,
}

impl HostGroup {
    fn new() -> Result<Self> {
        let mounts = std::fs::read_to_string("/proc/mounts")?;
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let found = mounts.find(|fields| fields.get(2) == Some(&"cgroup2"));
        let point = found.context("no cgroup2 is mounted")?[1].to_owned();
        let directory = Path::new(&point).join(format!("pontoon-e2e-{}", std::process::id()));
        std::fs::create_dir(&directory)?;
        let process = Command::new("sleep").arg("60").spawn()?;
        let group = Self { directory, process };
        std::fs::write(
            group.directory.join("cgroup.procs"),
            group.process.id().to_string(),
        )?;
        Ok(group)
    }
}

impl Drop for HostGroup {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // The kernel removes the process from the cgroup a moment later.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.directory).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Tests that root's command cannot kill or freeze processes in a cgroup of the host, or move there, unless it keeps its
/// capabilities.
fn cgroup_of_the_host(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let mut group = HostGroup::new()?;
    let at = group.directory.display().to_string();
    for (file, text) in [
        ("cgroup.kill", "1"),
        ("cgroup.freeze", "1"),
        ("cgroup.procs", "0"),
    ] {
        let output = network
            .run()
            .shell(&format!("echo {text} > {at}/{file}"))
            .output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(error.contains("Read-only file system"), "{file}: {output:?}");
    }
    std::thread::sleep(Duration::from_millis(100));
    ensure!(group.process.try_wait()?.is_none(), "the process was killed");
    let keeping = network.run().options(["--keep-capabilities"]);
    keeping.shell(&format!("echo 1 > {at}/cgroup.kill")).text()?;
    group.process.wait()?;
    Ok(())
}

/// Tests that the command runs where there can be no second user namespace, with a warning, or not at all if the sandbox is
/// required.
fn one_user_namespace(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let with = |options: &str| {
        let line = format!(
            "echo 1 > /proc/sys/user/max_user_namespaces && exec {} run {options} -- ip -o link show tap0",
            binary(context)?
        );
        let mut host = Command::new("unshare");
        host.args(["--user", "--map-root-user", "sh", "-c", &line]);
        anyhow::Ok(host.env("PONTOON_DISABLE", "namespaces").output()?)
    };
    let cannot = "cannot make a second user namespace: no space left on device";
    let output = with("")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && text.contains(cannot), "{output:?}");
    ensure!(
        text.contains("so the command can write the cgroups of the user"),
        "{text}"
    );
    let output = with("--require-sandbox")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success() && text.contains(cannot), "{output:?}");
    Ok(())
}

/// Tests that root in the guest's user namespace may configure the guest's own namespaces.
fn capabilities_inside(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let server = tcp_server(&network, Family::V4)?;
    super::tmpfs(Path::new("/run"))?;
    for line in [
        "mount -t tmpfs tmpfs /mnt && touch /mnt/file && umount /mnt",
        "ip link set tap0 mtu 1400 && ip route add 192.0.2.0/24 via 10.0.2.2 && ip link set lo down",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
        "ip netns add inner && ip netns exec inner ip link set lo up",
        "nft add table inet filter",
        "unshare --mount --pid --fork --user --map-root-user true",
        &format!(
            "{} run -q -- $E2E guest tcp {server} connects 1",
            binary(context)?
        ),
    ] {
        network.run().shell(line).text()?;
    }
    if !context.program.drop_privileges {
        // tcpdump changes its user and groups, which an unprivileged user may not map.
        network.run().shell("tcpdump -Z root -n -i tap0 -c 1 > /dev/null 2>&1 & sleep 0.5; ping -c 2 -W 1 10.0.2.2 > /dev/null; wait $!").text()?;
        let line = "touch /run/file && chown 1000:1000 /run/file && setpriv --reuid 1000 --regid 1000 --clear-groups \
                    sh -c 'id -u; test -O /run/file'";
        expect(&network.run().shell(line).text()?, "1000")?;
    }
    Ok(())
}

fn binary(context: &Context) -> Result<String> {
    let binary = context.program.binary.clone();
    binary.ok_or_else(|| anyhow::anyhow!("there is no program under test"))
}

/// Tests that programs with set-user-id work, as the command's seccomp filter is installed without `no_new_privs`.
fn set_user_id(context: &Context) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let network = Network::new(context)?;
    super::tmpfs(Path::new("/mnt"))?;
    std::fs::copy("/usr/bin/id", "/mnt/id")?;
    std::fs::set_permissions("/mnt/id", std::fs::Permissions::from_mode(0o4755))?;
    let line = "grep -c '^Seccomp:.2$' /proc/self/status; setpriv --reuid 1000 --regid 1000 --clear-groups /mnt/id -u";
    expect(&network.run().shell(line).text()?, "1\n0")
}

/// Options of bubblewrap for the file system of a command, as in `docs/cookbook.md`.
const FILES: &str = "--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/sbin /sbin --symlink usr/lib /lib \
    --symlink usr/lib64 /lib64 --ro-bind /etc /etc --dev /dev --tmpfs /tmp";

/// A command that prints which of the home directory, the sockets and the tap's device are visible, and whether the
/// gateway is reachable.
const LOOK: &str =
    "ls -d /home /run /var /dev/net 2>/dev/null; ping -c 1 -W 5 10.0.2.2 > /dev/null && echo reached";

fn bubblewrap_inside(context: &Context) -> Result<()> {
    let network = Network::new(context)?;
    let line = format!(
        "bwrap {FILES} --proc /proc --unshare-all --share-net --new-session --die-with-parent --cap-drop ALL \
         sh -c '{LOOK}; grep CapEff /proc/self/status'"
    );
    expect(
        &network.run().shell(&line).text()?,
        "reached\nCapEff:\t0000000000000000",
    )
}

fn bubblewrap_around(context: &Context) -> Result<()> {
    let _network = Network::new(context)?;
    let program = context.program.command()?;
    // Where the program runs as an unprivileged user, bubblewrap runs as that user.
    let user: Vec<String> = match program.get_program() == "unshare" {
        true => ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--"]
            .map(String::from)
            .to_vec(),
        false => Vec::new(),
    };
    let line = format!(
        "{} bwrap {FILES} --ro-bind {} /tmp/pontoon --bind /proc /proc --dev-bind /dev/net/tun /dev/net/tun --unshare-user \
         --unshare-ipc --new-session --die-with-parent /tmp/pontoon run -- sh -c '{LOOK}'",
        user.join(" "),
        binary(context)?
    );
    let text = process::output(Command::new("sh").args(["-c", &line]))?;
    // The tap's device is visible, as the program needs it inside of bubblewrap.
    expect(&text, "/dev/net\nreached")
}
