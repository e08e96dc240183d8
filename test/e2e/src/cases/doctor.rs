//! Cases about `pontoon doctor`: each finding is true, and is gone after its fix, and a start that fails for its reason prints
//! it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use pontoon_netns::sysctl;
use rustix::thread::{CapabilitySet, capabilities};

use super::{expect, replace_file, tmpfs};
use crate::case::{Caller, Case, Context, Family, Outcome};
use crate::machine::DIRECTORY;
use crate::network::Network;
use crate::process;
use crate::run::own_path;
use crate::server;

pub(super) mod place;

use place::{DoctorPlace, Report, as_root};

/// Setting of Debian's kernels.
const USERNS_CLONE: &str = "/proc/sys/kernel/unprivileged_userns_clone";

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("doctor.host", 60, host),
        Case::new("doctor.text", 60, text),
        Case::new("doctor.in-user-namespace", 60, in_user_namespace),
        Case::new("doctor.no-tun-device", 60, no_tun_device),
        Case::new("doctor.chroot", 60, chroot),
        Case::new("doctor.no-user-namespaces", 60, no_user_namespaces),
        Case::may_skip(
            "doctor.user-namespaces-of-root-only",
            60,
            user_namespaces_of_root_only,
        )
        .alone()
        .caller(Caller::Root("it changes a setting of the kernel")),
        Case::new("doctor.one-user-namespace", 90, one_user_namespace),
        Case::new("doctor.filter", 60, filter),
        Case::new("doctor.no-resolver", 60, no_resolver),
        Case::new("doctor.silent-resolver", 60, silent_resolver),
        Case::new("doctor.stub-resolver", 60, stub_resolver),
        Case::new("doctor.few-descriptors", 60, few_descriptors),
        Case::new("doctor.disabled-features", 60, disabled_features),
        Case::new("doctor.covered-proc", 60, covered_proc),
        Case::new("doctor.ipv6-disabled", 60, ipv6_disabled),
        Case::new("doctor.program-names", 60, program_names),
        Case::may_skip("doctor.subordinate-ids", 60, subordinate_ids)
            .caller(Caller::Root("newuidmap needs a user of the machine")),
        Case::new("doctor.required-sandbox", 60, required_sandbox),
        Case::new("doctor.invalid-options", 20, invalid_options),
    ]
    .into_iter()
    .map(Case::pontoon_only)
    .collect()
}

/// Creates a network with a DNS server, which the host's resolv.conf names.
fn resolved<'a>(context: &'a Context) -> Result<Network<'a>> {
    let network = Network::new(context)?;
    let server = network.server_address(Family::V4);
    network
        .server()
        .enter(|| server::dns::start(SocketAddr::new(server, 53)))?;
    replace_file("/etc/resolv.conf", &format!("nameserver {server}\n"))?;
    Ok(network)
}

/// Checks that `name` is a finding with this status and text, and returns its fix.
pub(super) fn found(report: &Report, name: &str, status: &str, text: &str) -> Result<String> {
    report.expect(name, status)?;
    let found = report.field(name, "found")?;
    ensure!(
        found.contains(text),
        "{name}: {found:?} does not contain {text:?}"
    );
    ensure!(!report.field(name, "consequence")?.is_empty());
    report.fix(name)
}

/// Tests a host without failures, by root or by a user whose ids are not those of the machine.
fn host(context: &Context) -> Result<()> {
    let _network = resolved(context)?;
    let mut place = DoctorPlace::of_user(context)?;
    let report = place.examine()?;
    for name in [
        "kernel",
        "user-namespaces",
        "cgroup-protection",
        "tun-device",
        "guest-network",
        "resolvers",
        "ipv6",
    ] {
        report.expect(name, "ok")?;
    }
    for name in [
        "sandbox-namespaces",
        "sandbox-root",
        "seccomp",
        "descriptors",
        "pipes",
        "program-names",
    ] {
        report.expect(name, "ok")?;
    }
    place.agrees(&report)?;
    if context.program.drop_privileges {
        // The user id 1000 of the case has no entry, or one whose ids the user namespace of the case does not map.
        report.expect("subordinate-ids", "loss")?;
        return ping(&mut place, &report);
    }
    report.expect("subordinate-ids", "ok")?;
    report.expect("ping-sockets", "ok")
}

/// Tests the finding about ping sockets, and its fix.
fn ping(place: &mut DoctorPlace, report: &Report) -> Result<()> {
    let fix = found(report, "ping-sockets", "loss", "net.ipv4.ping_group_range")?;
    as_root(&fix)?;
    place.examine()?.expect("ping-sockets", "ok")
}

/// Tests the text: a line for each check, aligned, with the same content as the JSON.
fn text(context: &Context) -> Result<()> {
    let _network = resolved(context)?;
    tmpfs(Path::new("/dev/net"))?;
    let mut place = DoctorPlace::of_user(context)?;
    let report = place.examine()?;
    let text = place.text()?;
    eprint!("{text}");
    let mut lines = text.lines();
    let mut next = || lines.next().unwrap_or_default();
    let names = report.names();
    let width = names.iter().map(|name| name.len()).max().unwrap_or_default();
    for name in &names {
        let field = |field| report.field(name, field);
        expect(
            next(),
            &format!("{name:width$}  {:7}  {}", field("status")?, field("found")?),
        )?;
        if let Ok(consequence) = field("consequence") {
            expect(next(), &format!("  consequence: {consequence}"))?;
            let fix = next();
            let is_fix = fix.starts_with("  fix: ") && fix.contains(&report.fix(name)?);
            ensure!(is_fix, "{fix}");
        }
    }
    expect(next(), "")
}

/// Tests root of a user namespace that another program has created, without a range of ids.
fn in_user_namespace(context: &Context) -> Result<()> {
    let _network = resolved(context)?;
    let mut place = DoctorPlace::new(context, &["unshare", "--user", "--map-root-user", "--"])?;
    let report = place.examine()?;
    for name in [
        "user-namespaces",
        "guest-network",
        "resolvers",
        "sandbox-namespaces",
    ] {
        report.expect(name, "ok")?;
    }
    place.agrees(&report)?;
    expect(
        &report.field("subordinate-ids", "found")?,
        "1 user ids, those of root's own user namespace",
    )?;
    ping(&mut place, &report)
}

/// Tests a mount namespace without the device: by root its fix, which creates the device.
fn no_tun_device(context: &Context) -> Result<()> {
    let _network = resolved(context)?;
    tmpfs(Path::new("/dev/net"))?;
    let mut place = DoctorPlace::of_user(context)?;
    let report = place.examine()?;
    let fix = found(
        &report,
        "tun-device",
        "failure",
        "cannot open /dev/net/tun: no such file",
    )?;
    report.expect("guest-network", "skipped")?;
    place.agrees(&report)?;
    place.explains(&report, "tun-device")?;
    match context.program.drop_privileges {
        // Only root of the machine may create devices.
        true => rustix::mount::unmount("/dev/net", rustix::mount::UnmountFlags::empty())?,
        false => as_root(&fix)?,
    }
    let report = place.examine()?;
    report.expect("tun-device", "ok")?;
    report.expect("guest-network", "ok")?;
    place.agrees(&report)
}

/// Tests a chroot without the device. The fix is to leave it.
fn chroot(context: &Context) -> Result<()> {
    let _network = resolved(context)?;
    tmpfs(Path::new(DIRECTORY))?;
    let program = context.program.binary.as_deref().context("no program")?;
    let directory = Path::new(program).parent().context("no directory")?.display();
    // The root of the chroot is a directory of the file system, as a mount would be a root by itself. The program may be in the
    // directory for temporary files.
    let script = format!(
        "mkdir -p {DIRECTORY}/x/root && cd {DIRECTORY}/x/root && mkdir dev tmp && \
         for each in /*; do [ -L $each ] && cp -P $each .$each; \
         [ -d $each ] && [ ! -L $each ] && case $each in /dev|/tmp|/sys|{DIRECTORY}) ;; *) \
         mkdir .$each && mount --rbind $each .$each;; esac; done; \
         mkdir .{DIRECTORY}; touch dev/null && mount --bind /dev/null dev/null; \
         [ -e .{program} ] || {{ mkdir -p .{directory} && mount --bind {directory} .{directory}; }}"
    );
    as_root(&script)?;
    let root = format!("{DIRECTORY}/x/root");
    let mut place = DoctorPlace::new(context, &["chroot", &root])?;
    let report = place.examine()?;
    found(&report, "user-namespaces", "failure", "in a chroot")?;
    found(&report, "tun-device", "failure", "/dev/net/tun")?;
    let confinement = report.field("confinement", "found")?;
    ensure!(confinement.contains("a chroot"), "{confinement}");
    ensure!(report.status == 2, "status {}", report.status);
    place.explains(&report, "user-namespaces")?;
    let mut outside = DoctorPlace::of_user(context)?;
    outside.examine()?.expect("user-namespaces", "ok")
}

/// Tests `user.max_user_namespaces` = 0, in a user namespace of the case, as the sysctl belongs to a user namespace.
fn no_user_namespaces(context: &Context) -> Result<()> {
    let _network = resolved(context)?;
    let mut place = DoctorPlace::new(context, &["unshare", "--user", "--map-root-user", "--"])?;
    place.shell("echo 0 >/proc/sys/user/max_user_namespaces")?;
    let report = place.examine()?;
    let fix = found(
        &report,
        "user-namespaces",
        "failure",
        "user.max_user_namespaces is 0",
    )?;
    ensure!(
        found(
            &report,
            "sandbox-namespaces",
            "loss",
            "the host allows no user namespaces"
        )? == fix
    );
    place.agrees(&report)?;
    place.explains(&report, "user-namespaces")?;
    place.shell(&fix)?;
    let report = place.examine()?;
    for name in [
        "user-namespaces",
        "cgroup-protection",
        "sandbox-namespaces",
        "sandbox-root",
    ] {
        report.expect(name, "ok")?;
    }
    place.agrees(&report)
}

/// Tests a kernel that permits user namespaces to root only, and its fix.
fn user_namespaces_of_root_only(context: &Context) -> Result<Outcome> {
    if !Path::new(USERNS_CLONE).exists() {
        return Ok(Outcome::Skipped(
            "this kernel has no kernel.unprivileged_userns_clone".to_owned(),
        ));
    }
    let _network = resolved(context)?;
    let user = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "--"];
    let mut place = DoctorPlace::new(context, &user)?;
    fs::write(USERNS_CLONE, "0")?;
    let tested = (|| {
        let report = place.examine()?;
        let text = "kernel.unprivileged_userns_clone is 0";
        let fix = found(&report, "user-namespaces", "failure", text)?;
        place.agrees(&report)?;
        place.explains(&report, "user-namespaces")?;
        as_root(&fix)?;
        let report = place.examine()?;
        report.expect("user-namespaces", "ok")?;
        place.agrees(&report)
    })();
    fs::write(USERNS_CLONE, "1")?;
    tested.map(|()| Outcome::Passed)
}

/// Tests a limit that permits one user namespace, so that the second one of a guest is refused.
fn one_user_namespace(context: &Context) -> Result<()> {
    let _network = resolved(context)?;
    let mut place = DoctorPlace::new(context, &["unshare", "--user", "--map-root-user", "--"])?;
    place.shell("echo 1 >/proc/sys/user/max_user_namespaces")?;
    let report = place.examine()?;
    let fix = found(
        &report,
        "cgroup-protection",
        "loss",
        "a limit on user namespaces is reached",
    )?;
    place.shell(&fix)?;
    place.examine()?.expect("cgroup-protection", "ok")
}

/// Tests a filter of system calls that refuses user namespaces, as that of a container does. The fix is to omit it.
fn filter(context: &Context) -> Result<()> {
    let _network = resolved(context)?;
    let own = own_path();
    let wrapper = [own.as_str(), "guest", "without-user-namespaces"];
    let mut place = DoctorPlace::new(context, &wrapper)?;
    let report = place.examine()?;
    let fix = found(
        &report,
        "user-namespaces",
        "failure",
        "a filter of system calls (seccomp) refuses it",
    )?;
    ensure!(fix.contains("seccomp profile"), "{fix}");
    let confinement = report.field("confinement", "found")?;
    ensure!(confinement.contains("seccomp"), "{confinement}");
    place.agrees(&report)?;
    place.explains(&report, "user-namespaces")?;
    let mut without = DoctorPlace::of_user(context)?;
    without.examine()?.expect("user-namespaces", "ok")
}

/// Tests a resolv.conf without a resolver.
fn no_resolver(context: &Context) -> Result<()> {
    let network = resolved(context)?;
    std::fs::write("/etc/resolv.conf", "# none\n")?;
    let mut place = DoctorPlace::of_user(context)?;
    let report = place.examine()?;
    let fix = found(&report, "resolvers", "loss", "/etc/resolv.conf lists no resolver")?;
    place.agrees(&report)?;
    let server = network.server_address(Family::V4).to_string();
    as_root(&fix.replace("ADDRESS", &server))?;
    place.examine()?.expect("resolvers", "ok")
}

/// Tests one of two resolvers that does not reply.
fn silent_resolver(context: &Context) -> Result<()> {
    let network = resolved(context)?;
    let server = network.server_address(Family::V4);
    let lines = format!("nameserver 127.0.0.1\nnameserver {server}\nsearch example.test\n");
    std::fs::write("/etc/resolv.conf", lines)?;
    let mut place = DoctorPlace::of_user(context)?;
    let fix = found(
        &place.examine()?,
        "resolvers",
        "loss",
        "127.0.0.1: connection refused",
    )?;
    as_root(&fix)?;
    expect(
        &std::fs::read_to_string("/etc/resolv.conf")?,
        &format!("nameserver {server}\nsearch example.test"),
    )?;
    place.examine()?.expect("resolvers", "ok")
}

/// Tests the address of systemd-resolved, without a resolver and with one.
fn stub_resolver(context: &Context) -> Result<()> {
    let _network = resolved(context)?;
    let stub = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 53));
    std::fs::write("/etc/resolv.conf", format!("nameserver {stub}\n"))?;
    let mut place = DoctorPlace::of_user(context)?;
    let fix = found(
        &place.examine()?,
        "resolvers",
        "loss",
        "127.0.0.53, the stub of systemd-resolved",
    )?;
    expect(&fix, "systemctl restart systemd-resolved")?;
    // A server in the place of systemd-resolved.
    server::dns::start(SocketAddr::new(stub, 53))?;
    place.examine()?.expect("resolvers", "ok")
}

/// Tests 64 descriptors, which leave no room for flows, and five, with which nothing starts.
fn few_descriptors(context: &Context) -> Result<()> {
    let _network = resolved(context)?;
    let mut place = DoctorPlace::of_user(context)?;
    place.shell("ulimit -n 64")?;
    let report = place.examine()?;
    let fix = found(&report, "descriptors", "failure", "64, with room for 0 flows")?;
    place.agrees(&report)?;
    let line = place.failure("run -- true")?;
    ensure!(line.contains("descriptors") && line.contains(&fix), "{line}");
    let held = capabilities(None)?.effective;
    match !context.program.drop_privileges && held.contains(CapabilitySet::SYS_RESOURCE) {
        true => as_root(&fix)?,
        // Only root of the machine may raise the limit of another process; a shell with more descriptors takes its place.
        false => place = DoctorPlace::of_user(context)?,
    }
    let report = place.examine()?;
    report.expect("descriptors", "ok")?;
    place.agrees(&report)?;
    let advice = " (try: as root: prlimit --pid ";
    for (limit, text) in [(10, "leaves no room for flows"), (5, "too many open files")] {
        place.shell(&format!("ulimit -n {limit}"))?;
        let line = place.failure("run -- true")?;
        ensure!(line.contains(&format!("{text}{advice}")), "{line}");
    }
    // The report is complete although child processes cannot be started.
    let names = place.text()?;
    for name in report.names() {
        let of_guest = [
            "guest-proc",
            "tap-offloads",
            "cgroup-protection",
            "subordinate-ids",
            "guest-network",
        ];
        let of_sockets = ["udp-gso", "udp-gro", "pass-rights"];
        let depends = of_guest.contains(&name.as_str()) || of_sockets.contains(&name.as_str());
        ensure!(
            depends || names.lines().any(|line| line.starts_with(&name)),
            "no {name} in\n{names}"
        );
    }
    Ok(())
}

/// Tests kernel features, which an environment variable disables, as an older kernel lacks them.
fn disabled_features(context: &Context) -> Result<()> {
    let _network = resolved(context)?;
    let mut place = DoctorPlace::of_user(context)?;
    place
        .shell("export PONTOON_DISABLE=peek_off,uso,udp_gso,udp_gro,landlock,seccomp,namespaces,vhost_net")?;
    let report = place.examine()?;
    let losses = [
        "tcp-peek-off",
        "tap-offloads",
        "udp-gso",
        "udp-gro",
        "landlock",
        "seccomp",
        "sandbox-namespaces",
        "sandbox-root",
    ];
    for name in losses {
        expect(&found(&report, name, "loss", "")?, "unset PONTOON_DISABLE")?;
    }
    found(&report, "vhost-net", "note", "disabled by PONTOON_DISABLE")?;
    ensure!(report.status == 1, "status {}", report.status);
    place.agrees(&report)?;
    place.shell(&report.fix("seccomp")?)?;
    let report = place.examine()?;
    for name in [
        "udp-gso",
        "udp-gro",
        "seccomp",
        "sandbox-namespaces",
        "sandbox-root",
    ] {
        report.expect(name, "ok")?;
    }
    Ok(())
}

/// Tests a /proc of which a part is covered, as in containers.
fn covered_proc(context: &Context) -> Result<()> {
    let _network = resolved(context)?;
    let covered = Path::new("/proc/irq");
    tmpfs(covered)?;
    let mut place = DoctorPlace::of_user(context)?;
    let report = place.examine()?;
    found(&report, "guest-proc", "loss", "the kernel refuses to mount /proc")?;
    place.agrees(&report)?;
    rustix::mount::unmount(covered, rustix::mount::UnmountFlags::empty())?;
    place.examine()?.expect("guest-proc", "ok")
}

/// Tests a host on which IPv6 is disabled, which is no loss.
fn ipv6_disabled(context: &Context) -> Result<()> {
    let _network = resolved(context)?;
    sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
    let mut place = DoctorPlace::of_user(context)?;
    let report = place.examine()?;
    let fix = found(&report, "ipv6", "note", "net.ipv6.conf.all.disable_ipv6 is 1")?;
    place.agrees(&report)?;
    as_root(&fix)?;
    // The addresses are not restored by the kernel.
    let found = place.examine()?.field("ipv6", "found")?;
    ensure!(!found.contains("disable_ipv6"), "{found}");
    Ok(())
}

/// Tests a program with the name of a compatible one that precedes the link to Pontoon in PATH.
fn program_names(context: &Context) -> Result<()> {
    let _network = resolved(context)?;
    let mut place = DoctorPlace::of_user(context)?;
    place.shell(&format!(
        "mkdir {DIRECTORY}/system {DIRECTORY}/own && cp /bin/true {DIRECTORY}/system/pasta && \
         ln -s $PONTOON {DIRECTORY}/own/pasta && PATH={DIRECTORY}/system:{DIRECTORY}/own:$PATH"
    ))?;
    let report = place.examine()?;
    let text = format!("{DIRECTORY}/system/pasta precedes {DIRECTORY}/own/pasta in PATH");
    let fix = found(&report, "program-names", "loss", &text)?;
    place.shell(&fix)?;
    let report = place.examine()?;
    report.expect("program-names", "ok")?;
    expect(&report.field("program-names", "found")?, "executed as pasta")
}

/// User of the machine that has no privileges.
const USER: &str = "pontoon-test";

/// Tests a user of the machine without a range of ids, and one whose newuidmap gets no privileges.
fn subordinate_ids(context: &Context) -> Result<Outcome> {
    let ids = process::output(Command::new("id").args(["-u", USER]));
    let Ok(id) = ids else {
        return Ok(Outcome::Skipped(format!("there is no user {USER}")));
    };
    let _network = resolved(context)?;
    tmpfs(Path::new(DIRECTORY))?;
    // usermod replaces the files, which is not possible for a single file that is mounted.
    as_root(&format!(
        "cp -a /etc {DIRECTORY}/etc && mount --bind {DIRECTORY}/etc /etc && \
         sed -i '/^{USER}:/d' /etc/subuid /etc/subgid"
    ))?;
    let id = id.trim();
    let user = ["setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--"];
    let mut place = DoctorPlace::new(context, &user)?;
    let report = place.examine()?;
    let fix = found(
        &report,
        "subordinate-ids",
        "loss",
        "/etc/subuid has no range for user pontoon-test",
    )?;
    place.agrees(&report)?;
    as_root(&fix)?;
    let report = place.examine()?;
    report.expect("subordinate-ids", "ok")?;
    let range = report.field("subordinate-ids", "found")?;
    expect(&range, "65537 user ids, with subordinate ids")?;
    place.agrees(&report)?;
    let confined = [&["setpriv", "--no-new-privs"][..], &user[1..]].concat();
    let mut place = DoctorPlace::new(context, &confined)?;
    found(
        &place.examine()?,
        "subordinate-ids",
        "loss",
        "no_new_privs is set",
    )?;
    Ok(Outcome::Passed)
}

/// Tests that a virtual machine's network with a required sandbox explains the missing layer.
fn required_sandbox(context: &Context) -> Result<()> {
    let _network = resolved(context)?;
    let mut place = DoctorPlace::new(context, &["unshare", "--user", "--map-root-user", "--"])?;
    place.shell("echo 0 >/proc/sys/user/max_user_namespaces")?;
    let report = place.examine()?;
    let vm = format!("vm --socket {DIRECTORY}/socket --protocol stream --require-sandbox");
    let line = place.failure(&vm)?;
    let fix = report.fix("user-namespaces")?;
    ensure!(
        line.contains("user.max_user_namespaces is 0") && line.contains(&fix),
        "{line}"
    );
    Ok(())
}

fn invalid_options(context: &Context) -> Result<()> {
    let output = context
        .program
        .command()?
        .args(["doctor", "--no-such-option"])
        .output()?;
    let line = String::from_utf8(output.stderr)?;
    ensure!(
        output.status.code() == Some(2) && output.stdout.is_empty(),
        "{}",
        output.status
    );
    ensure!(
        line.lines().count() == 1 && line.contains("--no-such-option"),
        "{line}"
    );
    Ok(())
}
