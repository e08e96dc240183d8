//! Debian packages that are downloaded and unpacked in the build directory. They are not installed, and this machine's apt
//! configuration is not changed.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::{packages, step};

const FETCH: Duration = Duration::from_secs(600);

/// A release and an architecture of Debian.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Debian {
    pub(crate) suite: &'static str,
    pub(crate) architecture: &'static str,
}

/// Release of Debian 12.
pub(crate) const DEBIAN_12: Debian = Debian {
    suite: "bookworm",
    architecture: "amd64",
};

/// Release of Debian 12 for aarch64.
pub(crate) const DEBIAN_12_AARCH64: Debian = Debian {
    architecture: "arm64",
    ..DEBIAN_12
};

/// Release of Debian 13.
pub(crate) const DEBIAN_13: Debian = Debian {
    suite: "trixie",
    ..DEBIAN_12
};

impl Debian {
    /// Creates the directory `at` with an apt configuration of its own, `apt.conf`, by which no package is installed.
    pub(crate) fn configure(self, at: &Path) -> Result<()> {
        let Self { suite, architecture } = self;
        packages::configure_apt(at, &[suite], &["deb"])?;
        fs::write(at.join("status"), "")?;
        let mut configuration = OpenOptions::new().append(true).open(at.join("apt.conf"))?;
        write!(
            configuration,
            " Dir::State::status \"{}/status\"; APT::Architecture \"{architecture}\"; \
             APT::Architectures {{ \"{architecture}\"; }};",
            at.display()
        )?;
        Ok(())
    }

    /// Unpacks `names` and all packages that they depend on in `directory` unless it exists. It is created completely or not
    /// at all. Scripts of the packages are not executed. The file `versions` lists the packages.
    pub(crate) fn unpack(self, directory: &Path, names: &[&str]) -> Result<()> {
        if directory.is_dir() {
            return Ok(());
        }
        let scratch = directory.with_extension("download");
        let _ = fs::remove_dir_all(&scratch);
        fs::create_dir_all(&scratch).with_context(|| format!("cannot create {}", scratch.display()))?;
        let scratch = scratch.canonicalize()?;
        self.configure(&scratch)?;
        let root = scratch.join("root");
        for name in ["bin", "sbin", "lib", "lib64"] {
            fs::create_dir_all(root.join("usr").join(name))?;
            symlink(format!("usr/{name}"), root.join(name))?;
        }
        let what = format!("fetch {} of {}", names.join(" "), self.suite);
        let mut fetch = Command::new("sh");
        fetch
            .args([
                "-ec",
                "apt-get update
                apt-get install --download-only --yes --no-install-recommends \"$@\"
                for package in cache/archives/*.deb; do
                    dpkg-deb --fsys-tarfile \"$package\" | tar --extract --keep-directory-symlink --directory root
                    dpkg-deb --show --showformat '${Package} ${Version}\\n' \"$package\" >>root/versions
                done",
                "sh",
            ])
            .args(names)
            .env("APT_CONFIG", "apt.conf")
            .current_dir(&scratch);
        ensure!(step::run(&what, &mut fetch, FETCH)?, "cannot {what}");
        fs::rename(root, directory)?;
        Ok(fs::remove_dir_all(&scratch)?)
    }
}
