//! Options and output file of a capture.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use pontoon_process::error::Error;
use pontoon_process::file;

/// Options of a capture: `FILE[,snap=N][,size=N][,time=T]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// Path of the capture's file: a regular file of this user, which is truncated, or a new file.
    pub file: PathBuf,
    /// Limit on the bytes that are captured of each frame.
    pub snap: u32,
    /// Limit on the size of the capture's file in bytes.
    pub size: Option<u64>,
    /// Limit on the duration of the capture, a multiple of one millisecond.
    pub time: Option<Duration>,
}

/// Default limit on the bytes that are captured of each frame: more than any frame has, and tcpdump's default.
pub const SNAP: u32 = 262_144;

/// Smallest permitted limit on the size of a capture's file, in bytes; the file's headers fit.
pub const LEAST_SIZE: u64 = 4096;

/// Largest size of a file (`loff_t`).
const MOST_SIZE: u64 = i64::MAX.cast_unsigned();

impl FromStr for Capture {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut capture = Self {
            file: PathBuf::new(),
            snap: SNAP,
            size: None,
            time: None,
        };
        let mut file = text;
        // A file name may contain commas: a part that is not a limit belongs to the file name.
        while let Some((rest, part)) = file.rsplit_once(',')
            && let Some((name @ ("snap" | "size" | "time"), value)) = part.split_once('=')
        {
            let wrong =
                || format!("invalid limit '{part}': expected snap=N, size=N[k|M|G] or time=N[ms|s|m]");
            match name {
                "snap" => capture.snap = value.parse().map_err(|_| wrong())?,
                "size" => capture.size = Some(size(value).ok_or_else(wrong)?),
                _ => capture.time = Some(time(value).ok_or_else(wrong)?),
            }
            file = rest;
        }
        if file.is_empty() {
            return Err("missing file name".to_owned());
        }
        capture.file = file.into();
        capture.check()?;
        Ok(capture)
    }
}

impl Capture {
    /// Checks that the limits of the capture are in range.
    ///
    /// # Errors
    /// A limit is out of range; the text is one line.
    pub fn check(&self) -> Result<(), String> {
        if self.snap > SNAP {
            return Err(format!("snap={}: at most {SNAP} bytes of a frame", self.snap));
        }
        match self.size {
            Some(size) if size < LEAST_SIZE => Err(format!("size={size}: at least {LEAST_SIZE} bytes")),
            Some(size) if size > MOST_SIZE => Err(format!("size={size}: at most {MOST_SIZE} bytes")),
            _ if self.time == Some(Duration::ZERO) => Err("time=0: must be greater than zero".to_owned()),
            _ => Ok(()),
        }
    }

    /// Opens the capture's file and truncates it; a new file is accessible by this user only.
    ///
    /// # Errors
    /// The file cannot be opened, or [`file::open_to_write`] refuses it.
    pub(crate) fn open(&self) -> Result<OwnedFd, Error> {
        file::open_to_write(&self.file, 0o600)
            .map(OwnedFd::from)
            .map_err(|error| Error::io(format_args!("cannot write {}", self.file.display()), &error))
    }
}

impl fmt::Display for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())
    }
}

/// Parses a number of bytes with an optional suffix k, M or G.
pub(crate) fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn time(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1,
        "" | "s" => 1_000,
        "m" => 60_000,
        _ => return None,
    };
    let time = digits.parse::<u64>().ok()?.checked_mul(unit)?;
    Some(Duration::from_millis(time))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn capture_limits_follow_the_file_name() {
        let parse = |text: &str| text.parse::<Capture>();
        let plain = parse("/tmp/x.pcapng").unwrap();
        assert_eq!((plain.snap, plain.size, plain.time), (SNAP, None, None));
        let limited = parse("x,snap=96,size=10M,time=1500ms").unwrap();
        assert_eq!(limited.file, PathBuf::from("x"));
        assert_eq!(
            (limited.snap, limited.size, limited.time),
            (96, Some(10_000_000), Some(Duration::from_millis(1500)))
        );
        assert_eq!(parse("x,time=2m").unwrap().time, Some(Duration::from_secs(120)));
        for (text, file) in [
            ("/tmp/a,b", "/tmp/a,b"),
            ("a,b,snap=96", "a,b"),
            ("a,snap=96,b,time=1", "a,snap=96,b"),
            ("a,snap", "a,snap"),
            ("a,rotate=2", "a,rotate=2"),
        ] {
            assert_eq!(parse(text).unwrap().file, PathBuf::from(file), "{text}");
        }
        for wrong in [
            "",
            ",snap=1",
            "x,snap=",
            "x,snap=262145",
            "x,size=4095",
            "x,size=1T",
            "x,size=9223372036854775808",
            "x,size=99999999999G",
            "x,time=0",
            "x,time=1h",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn links_are_not_written_through() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("target");
        std::fs::write(&target, "precious").unwrap();
        let path = directory.path().join("x");
        for link in [
            std::os::unix::fs::symlink::<&Path, &Path>,
            std::fs::hard_link::<&Path, &Path>,
        ] {
            link(&target, &path).unwrap();
            let capture: Capture = path.to_str().unwrap().parse().unwrap();
            let error = capture.open().unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("cannot write {}: it ", path.display())),
                "{error}"
            );
            assert_eq!(std::fs::read(&target).unwrap(), b"precious");
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn only_regular_files_are_written_and_they_are_emptied() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        std::fs::write(&path, "what was there").unwrap();
        let capture = |path: &str| path.parse::<Capture>().unwrap();
        capture(path.to_str().unwrap()).open().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        for other in ["/dev/null", directory.path().to_str().unwrap(), "/proc/none/x"] {
            let error = capture(other).open().unwrap_err().to_string();
            assert!(error.starts_with(&format!("cannot write {other}: ")), "{error}");
        }
    }
}
