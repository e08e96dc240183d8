//! Programs of the cases: Go modules of pinned versions, built here, and Debian packages. They are kept in a cache
//! directory, which the cases see as `/run/clients`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::clients::cases::Client;
use crate::clients::{Link, machine, passt, podman};
use crate::{packages, step};

/// Pairs of program and Debian package of this machine.
pub(crate) const NEEDED: &[(&str, &str)] = &[
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("curl", "curl"),
    ("dhclient", "isc-dhcp-client"),
    ("dig", "bind9-dnsutils"),
    ("dnsmasq", "dnsmasq-base"),
    ("getpcaps", "libcap2-bin"),
    ("hostname", "hostname"),
    ("ip", "iproute2"),
    ("iperf3", "iperf3"),
    ("iptables", "iptables"),
    ("jq", "jq"),
    ("ncat", "ncat"),
    ("newuidmap", "uidmap"),
    ("nft", "nftables"),
    ("openssl", "openssl"),
    ("patchelf", "patchelf"),
    ("perl", "perl-base"),
    ("ping", "iputils-ping"),
    ("ps", "procps"),
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("qperf", "qperf"),
    ("script", "bsdutils"),
    ("setpriv", "util-linux"),
    ("socat", "socat"),
    ("tmux", "tmux"),
    ("unshare", "util-linux"),
    ("useradd", "passwd"),
];

/// The Debian suite of the original slirp4netns and passt, of Docker and of podman, which has their newest versions.
pub(super) const SUITE: &str = "sid";

/// Packages of [`SUITE`] that are unpacked but not installed: the programs, and libraries of which this machine may
/// have older versions.
const UNPACKED: &[&str] = &[
    "slirp4netns",
    "passt",
    "docker.io",
    "docker-cli",
    "containerd",
    "runc",
    "libslirp0",
    "libglib2.0-0t64",
    "libseccomp2",
    "libpcre2-8-0",
    "libc6",
];

/// Programs of [`UNPACKED`] that need the unpacked C library, relative to the directory of the packages.
const WITH_OWN_LIBRARIES: &[&str] = &[
    "usr/bin/slirp4netns",
    "usr/bin/passt",
    "usr/bin/passt.avx2",
    "usr/bin/pasta",
    "usr/bin/pasta.avx2",
    "usr/bin/pesto",
    "usr/sbin/runc",
];

/// Programs that are linked into a directory of the cases' `PATH`, relative to the cache directory.
const BY_NAME: &[&str] = &[
    "debian/usr/bin/pasta",
    "debian/usr/bin/pasta.avx2",
    "debian/usr/bin/pesto",
    "debian/usr/bin/docker",
    "debian/usr/bin/containerd",
    "debian/usr/bin/containerd-shim-runc-v2",
    "debian/usr/bin/ctr",
    "debian/usr/sbin/dockerd",
    "debian/usr/sbin/docker-proxy",
    "debian/usr/sbin/runc",
    "debian/usr/share/docker.io/contrib/dockerd-rootless.sh",
    "buildkit/buildkitd",
    "buildkit/buildctl",
];

const ROOTLESSKIT_V2: &str = "v2.3.6";
const ROOTLESSKIT_V3: &str = "v3.3.0";
const BUILDKIT: &str = "v0.34.2";

pub(super) const DOWNLOAD: Duration = Duration::from_secs(300);
const BUILD: Duration = Duration::from_secs(15 * 60);

/// The built programs.
pub(crate) struct Programs {
    /// The cache directory.
    pub(crate) directory: PathBuf,
    /// Lines of package name and version.
    debian: String,
    podman: String,
    podman6: String,
    /// The version of passt's source.
    passt: String,
    /// Lines of package name and version.
    machine: String,
}

impl Programs {
    /// Downloads and builds the programs that the cache directory lacks; podman 6, those of passt's tests, and
    /// libvirt and QEMU if `clients` contains them.
    pub(crate) fn install(directory: &Path, clients: &[Client]) -> Result<Self> {
        fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
        let directory = directory.canonicalize()?;
        once(&directory, &format!("debian-{SUITE}"), "debian", |to| {
            unpack_packages(to, &[SUITE], UNPACKED, WITH_OWN_LIBRARIES, "/run/clients/debian")
        })?;
        once(&directory, &format!("source-{SUITE}"), "slirp4netns", |to| {
            unpack_source(to, "slirp4netns")
        })?;
        let go = go()?;
        for (link, version) in [
            ("rootlesskit-v2", ROOTLESSKIT_V2),
            ("rootlesskit-v3", ROOTLESSKIT_V3),
        ] {
            let name = format!("rootlesskit-{version}");
            once(&directory, &name, link, |to| {
                build_rootlesskit(&go, &directory, to, version)
            })?;
        }
        once(&directory, &format!("buildkit-{BUILDKIT}"), "buildkit", |to| {
            build_buildkit(&go, &directory, to)
        })?;
        let podman = podman::install(&directory, &go)?;
        let podman6 = match clients.contains(&Client::Podman6) {
            true => podman::install_6(&directory)?,
            false => String::new(),
        };
        let passt = match clients.contains(&Client::Passt) {
            true => passt::install(&directory)?,
            false => String::new(),
        };
        let starts_machines = |client: &Client| matches!(client, Client::Libvirt | Client::Qemu);
        let machine = match clients.iter().any(starts_machines) {
            true => machine::install(&directory)?,
            false => String::new(),
        };
        let bin = directory.join("bin");
        let _ = fs::remove_dir_all(&bin);
        fs::create_dir(&bin)?;
        for path in BY_NAME {
            let name = Path::new(path).file_name().context("a path without a name")?;
            ensure!(
                directory.join(path).exists(),
                "{} has no {path}",
                directory.display()
            );
            std::os::unix::fs::symlink(Path::new("..").join(path), bin.join(name))?;
        }
        let debian = fs::read_to_string(directory.join("debian/versions"))?;
        Ok(Self {
            directory,
            debian,
            podman,
            podman6,
            passt,
            machine,
        })
    }

    /// Returns the original programs that a client executes. `subject` replaces the first one.
    pub(crate) fn originals(&self, client: Client, subject: Option<&Path>) -> Vec<Link> {
        let debian = self.directory.join("debian/usr/bin");
        let mut links: Vec<Link> = client
            .links()
            .iter()
            .map(|name| (*name, debian.join(name)))
            .collect();
        if let Some(subject) = subject {
            links[0].1 = subject.to_path_buf();
        }
        links
    }

    /// Returns the version of a client for the table.
    pub(crate) fn version(&self, client: Client) -> String {
        match client {
            Client::RootlesskitV2 => ROOTLESSKIT_V2.to_owned(),
            Client::RootlesskitV3 => ROOTLESSKIT_V3.to_owned(),
            Client::Buildkit => BUILDKIT.to_owned(),
            Client::Slirp4netns => self.package("slirp4netns"),
            Client::Docker => self.package("docker.io"),
            Client::Podman => version_of(&self.podman, "podman"),
            Client::Podman6 => version_of(&self.podman6, "podman"),
            Client::Buildah => version_of(&self.podman, "buildah"),
            Client::Passt => self.passt.clone(),
            Client::Libvirt => version_of(&self.machine, "libvirt-daemon"),
            Client::Qemu => version_of(&self.machine, "qemu-system-x86"),
        }
    }

    /// Returns the version of an unpacked Debian package.
    pub(crate) fn package(&self, name: &str) -> String {
        version_of(&self.debian, name)
    }

    /// Returns the variables of a client's cases. Docker and BuildKit run with the newest version of rootlesskit.
    pub(crate) fn variables(&self, client: Client) -> Vec<String> {
        let (programs, source) = match client {
            Client::RootlesskitV2 => ("rootlesskit-v2", "rootlesskit-v2/source"),
            Client::Slirp4netns => ("rootlesskit-v3", "slirp4netns"),
            Client::Passt => ("rootlesskit-v3", "passt-source"),
            _ => ("rootlesskit-v3", "rootlesskit-v3/source"),
        };
        let podman = match client {
            Client::Podman6 => "podman-6",
            _ => "podman",
        };
        vec![
            format!("ROOTLESSKIT=/run/clients/{programs}"),
            format!("SOURCE=/run/clients/{source}"),
            format!("PODMAN_PACKAGES=/run/clients/{podman}"),
            "TESTS=/run/clients/podman-tests".to_owned(),
        ]
    }
}

/// Returns the version of a package in lines of package name and version.
pub(super) fn version_of(versions: &str, name: &str) -> String {
    let version = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(' ')?.to_owned());
    versions
        .lines()
        .find_map(version)
        .unwrap_or_else(|| "unknown".to_owned())
}

/// Calls `fill` for the directory `name` of the cache unless it exists, and makes `link` a link to it. If `fill` fails,
/// the directory is not created.
pub(super) fn once(
    cache: &Path,
    name: &str,
    link: &str,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<()> {
    let directory = cache.join(name);
    if !directory.is_dir() {
        let scratch = cache.join(format!("{name}.new"));
        let _ = fs::remove_dir_all(&scratch);
        fs::create_dir(&scratch)?;
        fill(&scratch)?;
        fs::rename(&scratch, &directory)?;
    }
    let link = cache.join(link);
    let _ = fs::remove_file(&link);
    Ok(std::os::unix::fs::symlink(name, link)?)
}

/// Unpacks Debian packages of `suites`, and lists their versions in the file `versions`. The programs `patched` use the
/// unpacked libraries, which the cases see below `seen`.
pub(super) fn unpack_packages(
    to: &Path,
    suites: &[&str],
    packages: &[&str],
    patched: &[&str],
    seen: &str,
) -> Result<()> {
    packages::configure_apt(&to.join("apt"), suites, &["deb"])?;
    let mut fetch = shell(
        "apt-get update
        apt-get download \"$@\"
        for package in *.deb; do
            dpkg-deb --extract \"$package\" ..
            dpkg-deb --show --showformat '${Package} ${Version}\\n' \"$package\" >>../versions
        done",
        packages,
    );
    fetch.env("APT_CONFIG", "apt.conf").current_dir(to.join("apt"));
    succeed("fetch Debian packages", &mut fetch, DOWNLOAD)?;
    fs::remove_dir_all(to.join("apt"))?;
    // The path is not a run path, so that it applies to the libraries of libraries, too.
    let mut patch = shell(
        "libraries=$SEEN/usr/lib/x86_64-linux-gnu
        for program in \"$@\"; do
            patchelf --set-interpreter $libraries/ld-linux-x86-64.so.2 --force-rpath --set-rpath $libraries \"$program\"
        done",
        patched,
    );
    patch.env("SEEN", seen).current_dir(to);
    succeed("set the libraries' paths", &mut patch, DOWNLOAD)
}

/// Unpacks a source package, which contains the tests of the project, and writes its version to the file `version`.
pub(super) fn unpack_source(to: &Path, package: &str) -> Result<()> {
    packages::configure_apt(&to.join("apt"), &[SUITE], &["deb-src"])?;
    let mut fetch = shell(
        "apt-get update
        apt-get source --download-only \"$1\"
        sed -n 's/^Version: //p' *.dsc >../version
        tar --directory .. --strip-components 1 --extract --file \"$1\"_*.orig.tar.*",
        &[package],
    );
    fetch.env("APT_CONFIG", "apt.conf").current_dir(to.join("apt"));
    succeed(&format!("fetch the tests of {package}"), &mut fetch, DOWNLOAD)?;
    Ok(fs::remove_dir_all(to.join("apt"))?)
}

/// Builds the programs of rootlesskit, and the tests of its packages: `tests/A_B.test` is the test of package `A/B`.
fn build_rootlesskit(go: &Path, cache: &Path, to: &Path, version: &str) -> Result<()> {
    let (major, _) = version.split_once('.').context("a version without a dot")?;
    let module = format!("github.com/rootless-containers/rootlesskit/{major}");
    let mut build = shell(
        "\"$GO\" install \"$1/cmd/rootlesskit@$2\"
        \"$GO\" install \"$1/cmd/rootlessctl@$2\"
        cp --recursive --no-preserve=mode \"$GOPATH/pkg/mod/$1@$2\" source
        cd source
        mkdir ../tests
        for package in $(\"$GO\" list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}' ./...); do
            package=${package#\"$PWD\"/}
            \"$GO\" test -c -o \"../tests/$(echo \"$package\" | tr / _).test\" \"./$package\"
        done",
        &[&module, version],
    );
    go_environment(&mut build, go, cache, to);
    succeed(&format!("build rootlesskit {version}"), &mut build, BUILD)
}

/// Builds BuildKit as a dependency of an empty module, because its module has `replace` directives, which `go install`
/// refuses.
fn build_buildkit(go: &Path, cache: &Path, to: &Path) -> Result<()> {
    let mut build = shell(
        "mkdir module
        cd module
        \"$GO\" mod init clients.invalid/buildkit
        \"$GO\" get \"github.com/moby/buildkit/cmd/buildkitd@$1\" \"github.com/moby/buildkit/cmd/buildctl@$1\"
        \"$GO\" build -o .. github.com/moby/buildkit/cmd/buildkitd github.com/moby/buildkit/cmd/buildctl",
        &[BUILDKIT],
    );
    go_environment(&mut build, go, cache, to);
    succeed(&format!("build BuildKit {BUILDKIT}"), &mut build, BUILD)
}

/// Sets Go's directories to the cache. Modules are verified by `sum.golang.org`, which is Go's default.
pub(super) fn go_environment(command: &mut Command, go: &Path, cache: &Path, to: &Path) {
    command
        .env("GO", go)
        .env("GOPATH", cache.join("go"))
        .env("GOBIN", to)
        .env("GOCACHE", cache.join("go-build"))
        .env("GOFLAGS", "-buildvcs=false -modcacherw")
        .env("CGO_ENABLED", "0")
        .current_dir(to);
}

/// Returns the path of the Go toolchain.
fn go() -> Result<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    path.split(':')
        .chain(["/usr/local/go/bin"])
        .map(|directory| Path::new(directory).join("go"))
        .find(|go| go.is_file())
        .context("no Go toolchain is in the search path (try: install Go 1.26)")
}

pub(super) fn shell(script: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-ec", script, "sh"]).args(arguments);
    command
}

pub(super) fn succeed(name: &str, command: &mut Command, deadline: Duration) -> Result<()> {
    if !step::run(name, command, deadline)? {
        bail!("{name}: failed");
    }
    Ok(())
}
