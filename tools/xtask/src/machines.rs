//! `cargo xtask machines`: end-to-end cases in QEMU machines with Debian's kernels: under the AppArmor profile, on aarch64,
//! and on an older kernel. Kernels, parsers and the files of other architectures are downloaded once, in the build directory.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::debian::DEBIAN_12_AARCH64;
use crate::profiles::{ABI_3, ABI_4, Form};
use crate::test::Tally;
use crate::{cargo, cross, kernel, packages, step, target};

pub(crate) const USAGE: &str = "cargo xtask machines [--list] [--binary PATH] [NAME...]";

/// Script that runs the cases under the AppArmor profile.
const APPARMOR: &str = include_str!("machines/apparmor.sh");

const BUILD: Duration = Duration::from_secs(20 * 60);

/// A machine and the cases that run in it.
struct Machine {
    name: &'static str,
    about: &'static str,
    deadline: Duration,
    cases: &'static [&'static str],
    command: fn(&Programs, &[&str]) -> Result<Command>,
    /// Returns the command that runs the tests of the sandbox's layers in the machine, if it has them.
    layers: Option<fn(&Programs) -> Result<Command>>,
}

/// Programs of this architecture that run in the machines.
struct Programs {
    pontoon: PathBuf,
    tests: PathBuf,
}

const MACHINES: &[Machine] = &[
    Machine {
        name: "apparmor-3",
        about: "the AppArmor profile of ABI 3.0, compiled by Debian 12's parser, on Debian 12's kernel",
        deadline: minutes(10),
        cases: UNDER_APPARMOR,
        command: |programs, cases| apparmor(&ABI_3, &kernel::old(&target())?, programs, cases),
        layers: None,
    },
    Machine {
        name: "apparmor-4",
        about: "the AppArmor profile of ABI 4.0, compiled by Debian 13's parser, on a kernel that mediates user namespaces",
        deadline: minutes(10),
        cases: UNDER_APPARMOR,
        command: |programs, cases| apparmor(&ABI_4, &kernel::recent(&target())?, programs, cases),
        layers: None,
    },
    Machine {
        name: "aarch64",
        about: "the program for aarch64, statically linked with musl, on Debian 12's kernel",
        deadline: minutes(15),
        cases: ON_AARCH64,
        command: |programs, cases| aarch64(programs, cases),
        layers: Some(aarch64_layers),
    },
    Machine {
        name: "debian-12",
        about: "Debian 12's kernel, Linux 6.1, which has no SO_PEEK_OFF for TCP",
        deadline: minutes(15),
        cases: ON_DEBIAN_12,
        command: debian_12,
        layers: Some(debian_12_layers),
    },
];

/// Cases of each verb, each kind of socket and each mount that the profile names.
const UNDER_APPARMOR: &[&str] = &[
    "apparmor.",
    "compat.pasta.command",
    "compat.slirp4netns.api-socket",
    "confinement.cgroups-read-only",
    "control.authority.run",
    "dns.resolvers-change.v4",
    "dns.udp.v4",
    "icmp.ping.v4",
    "icmp.ping.v6",
    "lifecycle.attach-by-path",
    "lifecycle.attach-by-pid",
    "publish.tcp-content-both-ways.v6",
    "publish.udp.v4",
    "relay.joins-groups.v4",
    "relay.workers-have-no-privileges",
    "sandbox.descriptors",
    "sandbox.status",
    "vm.stream.handed-over-socket",
];

/// Cases that an unprivileged user runs under the profile, too.
const OF_USER_UNDER_APPARMOR: &[&str] = &[
    "dns.udp.v6",
    "icmp.ping.v4",
    "lifecycle.attach-by-path",
    "publish.udp.v4",
    "sandbox.status",
];

/// Cases of TCP, UDP, ICMP and DNS, and of the sandbox.
const ON_AARCH64: &[&str] = &[
    "confinement.system-calls",
    "dns.tcp.v6",
    "dns.udp.v4",
    "icmp.ping.v4",
    "icmp.ping.v6",
    "lifecycle.attach-by-path",
    "publish.tcp-content-both-ways.v4",
    "publish.udp.v6",
    "relay.workers-have-no-privileges",
    "sandbox.descriptors",
    "sandbox.refused-layers-are-logged",
    "sandbox.status",
    "sandbox.traffic-makes-no-refused-call",
    "tcp.guest-closes-its-half-first.v4",
    "tcp.guest-resets.v6",
    "udp.one-mapping-for-two-servers.v4",
];

/// Cases of each protocol in both directions, and of the sandbox.
const ON_DEBIAN_12: &[&str] = &[
    "confinement.cgroups-read-only",
    "dns.tcp.v6",
    "dns.udp.v4",
    "doctor.user-namespaces-of-root-only",
    "escapes.",
    "icmp.ping.v4",
    "lifecycle.attach-by-path",
    "publish.tcp-content-both-ways",
    "publish.udp.v6",
    "sandbox.descriptors",
    "sandbox.refused-layers-are-logged",
    "sandbox.status",
    "sandbox.traffic-makes-no-refused-call",
    "tcp.guest-closes-its-half-first",
    "tcp.guest-resets",
    "udp.one-mapping-for-two-servers",
    "vm.stream.handed-over-socket",
];

/// Options of the tests in a machine of two processors whose instructions are translated: longer deadlines, few cases at one
/// time, and none that are repetitions with other options.
const OPTIONS: &[&str] = &[
    "--slow",
    "3",
    "--beside",
    "2",
    "--except",
    "bare.",
    "--except",
    "two-workers.",
    "--except",
    "workers.",
    "--except",
    "vhost.",
];

const fn minutes(minutes: u64) -> Duration {
    Duration::from_secs(60 * minutes)
}

/// Runs the machines named in `arguments`, or all. Returns true if all cases passed.
pub(crate) fn run(arguments: &[String]) -> Result<bool> {
    let mut binary = None;
    let mut names: Vec<&str> = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--list" => return list(),
            "--binary" => binary = Some(PathBuf::from(arguments.next().context("--binary: no path")?)),
            option if option.starts_with('-') => bail!("unknown option {option}\nusage: {USAGE}"),
            name => names.push(name),
        }
    }
    let known = |name: &&str| MACHINES.iter().any(|machine| machine.name == *name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        bail!("no machine {unknown} (try: cargo xtask machines --list)");
    }
    packages::install(packages::NEEDED)?;
    let programs = Programs::build(binary)?;
    let mut tally = Tally::default();
    for machine in MACHINES
        .iter()
        .filter(|machine| names.is_empty() || names.contains(&machine.name))
    {
        let mut command = (machine.command)(&programs, machine.cases)?;
        let name = format!("machine {}", machine.name);
        tally.listed(&name, &mut command, machine.deadline)?;
        if let Some(layers) = machine.layers {
            let name = format!("{name}, layers of the sandbox");
            tally.single(&name, &mut layers(&programs)?, machine.deadline)?;
        }
    }
    tally.print()
}

fn list() -> Result<bool> {
    for Machine {
        name, about, cases, ..
    } in MACHINES
    {
        writeln!(std::io::stdout(), "{name}: {about}\n    {}", cases.join(" "))?;
    }
    Ok(true)
}

impl Programs {
    /// Builds the programs, except the program under test if `pontoon` is given.
    fn build(pontoon: Option<PathBuf>) -> Result<Self> {
        let pontoon = match pontoon {
            Some(path) => path,
            None => {
                let mut build = cargo(&["build", "--release", "-p", "pontoon-cli"]);
                ensure!(step::run("build the program", &mut build, BUILD)?, "no program");
                target().join("release/pontoon")
            }
        };
        let mut build = cargo(&["build", "--profile", "test", "-p", "pontoon-e2e"]);
        ensure!(
            step::run("build the end-to-end tests", &mut build, BUILD)?,
            "no tests"
        );
        let absolute = |path: PathBuf| {
            path.canonicalize()
                .with_context(|| format!("cannot find {}", path.display()))
        };
        Ok(Self {
            pontoon: absolute(pontoon)?,
            tests: absolute(target().join("debug/pontoon-e2e"))?,
        })
    }

    /// Returns a command that boots a machine; its options, the kernel and the command in the machine follow.
    fn boot(&self) -> Command {
        let mut boot = Command::new(&self.tests);
        boot.arg("boot");
        boot
    }
}

fn apparmor(form: &Form, kernel: &Path, programs: &Programs, cases: &[&str]) -> Result<Command> {
    let parser = form.parser()?;
    let script = target().join("apparmor.sh");
    fs::write(&script, APPARMOR).with_context(|| format!("cannot write {}", script.display()))?;
    let mut boot = programs.boot();
    boot.args(["--append", "apparmor=1 security=apparmor"])
        .arg(kernel)
        // Not the one of busybox, which prefers its own programs.
        .arg("/bin/sh")
        .arg(script.canonicalize()?)
        .arg(crate::workspace().join(form.file).canonicalize()?)
        .args([&programs.pontoon, &programs.tests])
        .arg(form.root()?.join("etc/apparmor.d/local"))
        .arg([OPTIONS, cases].concat().join(" "))
        .arg([OPTIONS, OF_USER_UNDER_APPARMOR].concat().join(" "))
        .arg(parser.get_program())
        .args(parser.get_args());
    Ok(boot)
}

fn debian_12(programs: &Programs, cases: &[&str]) -> Result<Command> {
    let mut boot = programs.boot();
    boot.arg(kernel::old(&target())?)
        .arg(&programs.tests)
        .arg("--binary")
        .arg(&programs.pontoon)
        .args(OPTIONS)
        .args(cases);
    Ok(boot)
}

/// Programs of Debian that the cases on aarch64 execute.
const AARCH64_PACKAGES: &[&str] = &[
    "base-files",
    "bash",
    "bind9-dnsutils",
    "busybox-static",
    "coreutils",
    "curl",
    "dash",
    "grep",
    "iperf3",
    "iproute2",
    "iputils-ping",
    "mount",
    "procps",
    "sed",
    "strace",
    "tar",
    "util-linux",
];

/// Directories that scripts of the packages would create, and mount points.
const AARCH64_DIRECTORIES: &[&str] = &["dev", "mnt", "opt", "proc", "root", "run", "sys", "tmp"];

/// Files that scripts of the packages would create.
const AARCH64_FILES: &[(&str, &str)] = &[
    ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"),
    ("etc/group", "root:x:0:\n"),
    ("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
    ("etc/resolv.conf", ""),
];

fn aarch64(programs: &Programs, cases: &[&str]) -> Result<Command> {
    packages::install(&[("qemu-system-aarch64", "qemu-system-arm")])?;
    let root = aarch64_root();
    DEBIAN_12_AARCH64.unpack(&root, AARCH64_PACKAGES)?;
    for directory in AARCH64_DIRECTORIES {
        fs::create_dir_all(root.join(directory))?;
    }
    for (path, text) in AARCH64_FILES {
        fs::write(root.join(path), text)?;
    }
    let install = &mut cross::install();
    ensure!(
        step::run("install Rust for aarch64", install, BUILD)?,
        "no Rust for aarch64"
    );
    let opt = root.join("opt");
    let mut build = cross::build(&["pontoon-cli", "pontoon-e2e"], "test");
    ensure!(
        step::run("build for aarch64", &mut build, BUILD)?,
        "cannot build for aarch64"
    );
    for name in ["pontoon", "pontoon-e2e"] {
        fs::copy(cross::program("debug", name), opt.join(name))?;
    }
    let mut boot = boot_aarch64(programs)?;
    boot.args(["/opt/pontoon-e2e", "--binary", "/opt/pontoon"])
        .args(OPTIONS)
        .args(cases);
    Ok(boot)
}

fn boot_aarch64(programs: &Programs) -> Result<Command> {
    let mut boot = programs.boot();
    boot.args(["--aarch64", "--root"])
        .arg(aarch64_root().canonicalize()?)
        .arg(kernel::old_aarch64(&target())?.canonicalize()?);
    Ok(boot)
}

fn aarch64_root() -> PathBuf {
    target().join("debian-12-aarch64")
}

/// Returns the command that runs `io/sandbox/tests/layers.rs` by the program `runner`.
fn layers(test: Command, triple: &str, runner: &str) -> Command {
    let variable = format!("CARGO_TARGET_{}_RUNNER", triple.to_uppercase().replace('-', "_"));
    let mut test = test;
    test.args(["-p", "pontoon-sandbox", "--test", "layers"])
        .env(variable, runner);
    test
}

fn debian_12_layers(programs: &Programs) -> Result<Command> {
    let kernel = kernel::old(&target())?.canonicalize()?;
    let runner = format!("{} boot {}", programs.tests.display(), kernel.display());
    Ok(layers(cargo(&["test"]), "x86_64-unknown-linux-gnu", &runner))
}

/// As [`debian_12_layers`]. The runner copies the program to a directory of the machine first.
fn aarch64_layers(programs: &Programs) -> Result<Command> {
    let boot = boot_aarch64(programs)?;
    let words: Vec<String> = [boot.get_program()]
        .into_iter()
        .chain(boot.get_args())
        .map(|word| format!("'{}'", word.display()))
        .collect();
    let copy = aarch64_root().canonicalize()?.join("opt/layers");
    let script = format!(
        "#!/bin/sh\ncp \"$1\" '{}' && exec {} /opt/layers\n",
        copy.display(),
        words.join(" ")
    );
    let runner = target().join("aarch64-runner.sh");
    fs::write(&runner, script)?;
    fs::set_permissions(&runner, PermissionsExt::from_mode(0o755))?;
    let test = cross::test();
    Ok(layers(
        test,
        cross::AARCH64,
        &runner.canonicalize()?.display().to_string(),
    ))
}
