//! Options of the log file: `FILE[,size=N][,title=TEXT]`.

use std::path::PathBuf;
use std::str::FromStr;

use pontoon_process::error::{Context as _, Error};
use pontoon_process::log::file::{self, LogFile};
use pontoon_process::log::output;

use crate::capture::size;

/// File to which the log is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTo {
    /// Path of the file: a regular file of this user, which is truncated, or a new file.
    pub file: PathBuf,
    /// Size in bytes that the file does not exceed: its oldest lines are removed.
    pub size: u64,
    /// Beginning of the first line, which then names the program and its process.
    pub title: String,
}

impl FromStr for LogTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut to = Self {
            file: PathBuf::new(),
            size: file::SIZE,
            title: concat!("pontoon ", env!("CARGO_PKG_VERSION")).to_owned(),
        };
        let mut path = text;
        // A file name may contain commas: a part that is not an option belongs to the file name.
        while let Some((rest, part)) = path.rsplit_once(',') {
            if let Some(value) = part.strip_prefix("size=") {
                let wrong = || format!("invalid option '{part}': expected size=N[k|M|G]");
                to.size = size(value).ok_or_else(wrong)?;
            } else if let Some(value) = part.strip_prefix("title=") {
                value.clone_into(&mut to.title);
            } else {
                break;
            }
            path = rest;
        }
        if path.is_empty() {
            return Err("missing file name".to_owned());
        }
        if !(file::LEAST_SIZE..=file::MOST_SIZE).contains(&to.size) {
            let (least, most) = (file::LEAST_SIZE, file::MOST_SIZE);
            return Err(format!("size={}: {least} to {most} bytes", to.size));
        }
        to.file = path.into();
        Ok(to)
    }
}

impl LogTo {
    /// Opens the file and writes all further log lines to it. If `timed`, each line begins with the time since now.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub(crate) fn begin(&self, timed: bool) -> Result<(), Error> {
        let program = std::env::current_exe().unwrap_or_default();
        let header = format!("{}: {} ({})", self.title, program.display(), std::process::id());
        let shown = self.file.display();
        let log = LogFile::create(&self.file, self.size, timed, &header)
            .context(format_args!("cannot write log file {shown}"))?;
        // A line beyond the limit on the size of files is lost, and does not end the program.
        crate::events::ignore_file_size_signal();
        output::add_file(log);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_may_contain_commas() {
        let parsed = |text: &str| text.parse::<LogTo>().map(|to| (to.file, to.size));
        assert_eq!(parsed("x"), Ok(("x".into(), 1 << 20)));
        assert_eq!(parsed("a,b=1"), Ok(("a,b=1".into(), 1 << 20)));
        assert_eq!(parsed("a,size=2M"), Ok(("a".into(), 2_000_000)));
        assert_eq!(parsed("a,title=x,b"), Ok(("a,title=x,b".into(), 1 << 20)));
        let title = |text: &str| text.parse::<LogTo>().map(|to| to.title);
        assert_eq!(title("a,size=2M,title=x 1"), Ok("x 1".to_owned()));
        assert!(title("a").unwrap().starts_with("pontoon "));
        for wrong in [
            "",
            ",size=1M",
            "a,size=",
            "a,size=1x",
            "a,size=40959",
            "a,size=2G",
        ] {
            parsed(wrong).unwrap_err();
        }
    }
}
