//! Log file of limited size (`--log-file`): when it is full, its oldest lines are removed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Instant;

use crate::file;

/// Log file whose first line names the program and the process.
#[derive(Debug)]
pub struct LogFile {
    file: File,
    /// First line, without its newline.
    header: String,
    /// Limit on the size of the file, in bytes.
    size: u64,
    written: u64,
    /// Time to which the times of the lines are relative; `None` if lines are written without a time.
    begin: Option<Instant>,
}

/// Smallest permitted limit on the size: the part that is removed is longer than the first line.
pub const LEAST_SIZE: u64 = 40_960;

/// Largest permitted limit on the size: the whole file is rewritten each time when it is full.
pub const MOST_SIZE: u64 = 1 << 30;

/// Default limit on the size.
pub const SIZE: u64 = 1 << 20;

/// Share of a full file that is removed, in per cent.
const REMOVED: u64 = 30;

/// Size of one read while lines are moved, in bytes.
const CHUNK: usize = 64 << 10;

/// Limit on the length of the first line, in bytes; the path of the program may be as long as 4096 bytes.
const LONGEST_HEADER: usize = 8192;

impl LogFile {
    /// Opens a regular file of this user, truncates it, and writes the first line. `size` is at least [`LEAST_SIZE`]. If
    /// `timed`, each line begins with the time since the call, in seconds.
    ///
    /// # Errors
    /// The file cannot be opened or written, or [`file::open_to_write`] would refuse it.
    pub fn create(path: &Path, size: u64, timed: bool, header: &str) -> io::Result<Self> {
        let mut header = header.to_owned();
        header.truncate(header.floor_char_boundary(LONGEST_HEADER));
        let mut log = Self {
            file: file::open_to_rewrite(path, 0o600)?,
            size: size.max(LEAST_SIZE),
            written: 0,
            begin: timed.then(Instant::now),
            header,
        };
        let first = format!("{}\n", log.header);
        log.append(first.as_bytes())?;
        Ok(log)
    }

    /// Writes a line, which ends with a newline. A line that cannot be written is lost.
    pub fn put(&mut self, line: &[u8], now: Instant) {
        let mut text = match self.begin {
            Some(begin) => format!("{}: ", seconds(begin, now)).into_bytes(),
            None => Vec::new(),
        };
        text.extend_from_slice(line);
        let len = text.len() as u64;
        while self.written + len > self.size {
            let before = self.written;
            if self.cut(now).is_err() {
                return;
            }
            // Only the first line is left.
            if self.written >= before {
                break;
            }
        }
        let _ = self.append(&text);
    }

    fn append(&mut self, text: &[u8]) -> io::Result<()> {
        self.file.write_all_at(text, self.written)?;
        self.written += text.len() as u64;
        Ok(())
    }

    /// Removes the oldest lines behind the first line, which then contains the time of the removal.
    fn cut(&mut self, now: Instant) -> io::Result<()> {
        let header = match self.begin {
            Some(begin) => format!("{} - log truncated at {}\n", self.header, seconds(begin, now)),
            None => format!("{} - log truncated\n", self.header),
        };
        let mut from = self.line_after(self.written * REMOVED / 100)?;
        let mut to = header.len() as u64;
        self.file.write_all_at(header.as_bytes(), 0)?;
        let mut buffer = vec![0; CHUNK];
        while from < self.written {
            let room = usize::try_from(self.written - from).unwrap_or(CHUNK).min(CHUNK);
            let len = self.file.read_at(&mut buffer[..room], from)?;
            if len == 0 {
                break;
            }
            self.file.write_all_at(&buffer[..len], to)?;
            from += len as u64;
            to += len as u64;
        }
        self.file.set_len(to)?;
        self.written = to;
        Ok(())
    }

    /// Returns the begin of the first line at or behind an offset; the end of the file if there is none.
    fn line_after(&self, mut offset: u64) -> io::Result<u64> {
        let mut buffer = vec![0; CHUNK];
        while offset < self.written {
            let len = self.file.read_at(&mut buffer, offset)?;
            if let Some(place) = buffer[..len].iter().position(|byte| *byte == b'\n') {
                return Ok(offset + place as u64 + 1);
            }
            if len == 0 {
                break;
            }
            offset += len as u64;
        }
        Ok(self.written)
    }
}

fn seconds(begin: Instant, now: Instant) -> String {
    format!("{:.4}", now.saturating_duration_since(begin).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn oldest_lines_of_a_full_file_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = LogFile::create(&path, LEAST_SIZE, true, "pontoon 1: /bin/pontoon (17)").unwrap();
        let now = Instant::now();
        for number in 0..5_000 {
            log.put(format!("info: line {number}\n").as_bytes(), now);
            assert!(fs::metadata(&path).unwrap().len() <= LEAST_SIZE);
        }
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines[0].starts_with("pontoon 1: /bin/pontoon (17) - log truncated at 0.0"),
            "{}",
            lines[0]
        );
        assert!(text.len() as u64 > LEAST_SIZE / 2, "{}", text.len());
        // The other lines are whole, consecutive and the latest ones.
        let first = 5_000 - (lines.len() - 1);
        for (line, number) in lines[1..].iter().zip(first..) {
            let (time, line) = line.split_once(": ").unwrap();
            time.parse::<f64>().unwrap();
            assert_eq!(line, format!("info: line {number}"));
        }
    }

    #[test]
    fn long_line_behind_short_ones_does_not_exceed_the_limit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = LogFile::create(&path, LEAST_SIZE, true, "header").unwrap();
        for number in 0..2_000 {
            log.put(format!("line {number}\n").as_bytes(), Instant::now());
        }
        let long = format!("{}\n", "x".repeat(30_000));
        log.put(long.as_bytes(), Instant::now());
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.len() as u64 <= LEAST_SIZE, "{} bytes", text.len());
        assert!(text.ends_with(&long) && text.contains("line 1999\n"));
    }

    #[test]
    fn one_long_line_is_kept_or_removed_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = LogFile::create(&path, LEAST_SIZE, false, "header").unwrap();
        let long = format!("{}\n", "x".repeat(30_000));
        log.put(long.as_bytes(), Instant::now());
        log.put(long.as_bytes(), Instant::now());
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, format!("header - log truncated\n{long}"));
    }

    #[test]
    fn a_link_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (path, target) = (directory.path().join("log"), directory.path().join("target"));
        fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let error = LogFile::create(&path, LEAST_SIZE, true, "header").unwrap_err();
        assert_eq!(error.to_string(), "it is a symbolic link");
        assert_eq!(fs::read(&target).unwrap(), b"precious");
    }
}
