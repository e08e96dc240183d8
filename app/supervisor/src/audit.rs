//! Options of the audit file: `FILE[,size=N][,keep=N]`.

use std::path::PathBuf;
use std::str::FromStr;

use crate::capture::size;

/// File to which the events of all flows are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audit {
    /// Path of the file: a regular file of this user, to which records are appended, or a new file.
    pub file: PathBuf,
    /// Size in bytes at which the file is renamed and a new one begun.
    pub size: u64,
    /// Number of renamed files that are kept, `FILE.1` (the latest) to `FILE.keep`.
    pub keep: u32,
}

/// Default size at which the file is renamed.
pub const SIZE: u64 = 64_000_000;

/// Smallest permitted size; the longest record fits.
pub const LEAST_SIZE: u64 = 4096;

/// Default number of renamed files.
pub const KEEP: u32 = 5;

/// Greatest permitted number of renamed files: each change of files renames all of them.
pub const MOST_KEPT: u32 = 999;

impl FromStr for Audit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut audit = Self {
            file: PathBuf::new(),
            size: SIZE,
            keep: KEEP,
        };
        let mut file = text;
        // A file name may contain commas: a part that is not an option belongs to the file name.
        while let Some((rest, part)) = file.rsplit_once(',')
            && let Some((name @ ("size" | "keep"), value)) = part.split_once('=')
        {
            let wrong = || format!("invalid option '{part}': expected size=N[k|M|G] or keep=N");
            match name {
                "size" => audit.size = size(value).ok_or_else(wrong)?,
                _ => audit.keep = value.parse().map_err(|_| wrong())?,
            }
            file = rest;
        }
        if file.is_empty() {
            return Err("missing file name".to_owned());
        }
        audit.file = file.into();
        if audit.size < LEAST_SIZE {
            return Err(format!("size={}: at least {LEAST_SIZE} bytes", audit.size));
        }
        if !(1..=MOST_KEPT).contains(&audit.keep) {
            return Err(format!("keep={}: 1 to {MOST_KEPT} files", audit.keep));
        }
        Ok(audit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_follow_the_file_name() {
        let parse = |text: &str| text.parse::<Audit>();
        let plain = parse("/var/log/a,b").unwrap();
        assert_eq!(
            (plain.file, plain.size, plain.keep),
            ("/var/log/a,b".into(), SIZE, KEEP)
        );
        let limited = parse("x,size=10M,keep=2").unwrap();
        assert_eq!(
            (limited.file, limited.size, limited.keep),
            ("x".into(), 10_000_000, 2)
        );
        for wrong in [
            "",
            ",size=1M",
            "x,size=4095",
            "x,size=",
            "x,keep=0",
            "x,keep=1000",
            "x,keep=-1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
