//! Tests of the audit file: change of files, a disk that is full for some time, and files that are refused.

use std::collections::VecDeque;

use serde_json::Value;

use super::*;

fn options(path: &Path, size: u64, keep: u32) -> Audit {
    Audit {
        file: path.to_owned(),
        size,
        keep,
    }
}

fn record(number: u64) -> String {
    format!("{{\"n\":{number}}}\n")
}

/// Returns the numbers of the records in a text.
fn numbers(text: &str) -> Vec<u64> {
    let number = |line: &str| serde_json::from_str::<Value>(line).expect(line)["n"].as_u64();
    text.lines().filter_map(number).collect()
}

#[test]
fn full_files_are_renamed_and_have_whole_records() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    let mut audit = AuditFile::open(&options(&path, 4096, 3)).unwrap();
    for number in 1..=2000 {
        audit.push(record(number).as_bytes());
        if number % 100 == 0 {
            audit.write().unwrap();
        }
    }
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let files: Vec<String> = (1..=4)
        .rev()
        .map(|number| read(&numbered(&path, number)))
        .chain([read(&path)])
        .collect();
    assert_eq!(files[0], "", "three files are kept");
    let all: Vec<u64> = files.iter().flat_map(|file| numbers(file)).collect();
    let expected: Vec<u64> = (2001 - all.len() as u64..=2000).collect();
    assert_eq!(all, expected);
    for file in &files[1..4] {
        assert!((4000..=4096).contains(&file.len()), "{}", file.len());
    }
}

#[test]
fn records_are_appended_to_a_file_of_an_earlier_process() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    fs::write(&path, "{\"n\":1}\n{\"n\":").unwrap();
    let mut audit = AuditFile::open(&options(&path, 1 << 20, 1)).unwrap();
    audit.push(record(1).as_bytes());
    audit.write().unwrap();
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "{\"n\":1}\n{\"n\":\n{\"n\":1}\n"
    );
}

#[test]
fn file_that_another_program_has_renamed_stays_as_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    let mut audit = AuditFile::open(&options(&path, 4096, 2)).unwrap();
    fs::rename(&path, directory.path().join("moved")).unwrap();
    fs::write(&path, "{\"n\":0}\n").unwrap();
    for number in 1..=1000 {
        audit.push(record(number).as_bytes());
    }
    audit.write().unwrap();
    assert!(fs::read_to_string(&path).unwrap().contains("{\"n\":1000}"));
    let renamed = numbers(&fs::read_to_string(numbered(&path, 1)).unwrap());
    assert_eq!(renamed.first(), Some(&0), "the file with the name was continued");
}

#[test]
fn repeated_attempts_to_rename_a_file_remove_one_earlier_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    for number in 1..=3 {
        fs::write(numbered(&path, number), record(number.into())).unwrap();
    }
    for _ in 0..3 {
        free_first(&path, 3).unwrap();
    }
    let files = [1, 2, 3].map(|number| fs::read_to_string(numbered(&path, number)).ok());
    assert_eq!(files, [None, Some(record(1)), Some(record(2))]);
}

#[test]
fn file_that_another_program_has_truncated_gets_no_longer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    let mut audit = AuditFile::open(&options(&path, 4096, 2)).unwrap();
    audit.push("{\"n\":1}\n".repeat(100).as_bytes());
    audit.write().unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(0)
        .unwrap();
    let mut file = audit.file.unwrap();
    file.append(b"{\"n\":2}\n{\"n").unwrap();
    file.remove_end(3).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"{\"n\":2}\n");
}

#[test]
fn links_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    std::os::unix::fs::symlink(directory.path().join("target"), &path).unwrap();
    let error = AuditFile::open(&options(&path, 4096, 1)).unwrap_err().to_string();
    assert_eq!(
        error,
        format!("cannot write {}: it is a symbolic link", path.display())
    );
}

/// A disk with limited room, whose results of the next writes may be given.
#[derive(Debug, Default)]
struct Disk {
    text: Vec<u8>,
    room: usize,
    script: VecDeque<usize>,
    cannot_truncate: bool,
}

impl Append for Disk {
    fn append(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let most = self.script.pop_front().unwrap_or(usize::MAX);
        let len = bytes.len().min(self.room - self.text.len()).min(most);
        if len == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.text.extend_from_slice(&bytes[..len]);
        Ok(len)
    }

    fn remove_end(&mut self, count: u64) -> io::Result<()> {
        if self.cannot_truncate {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let len = self.text.len() - usize::try_from(count).unwrap();
        self.text.truncate(len);
        Ok(())
    }
}

fn on_disk(disk: Disk) -> AuditFile<Disk> {
    AuditFile::new(
        "audit".into(),
        &options(Path::new("audit"), 1 << 30, 1),
        Some(disk),
        0,
    )
}

fn write(audit: &mut AuditFile<Disk>) -> io::Result<()> {
    audit.write_with(|_| unreachable!("the file is not full"))
}

fn text(audit: &AuditFile<Disk>) -> &str {
    str::from_utf8(&audit.file.as_ref().unwrap().text).unwrap()
}

#[test]
fn records_wait_while_the_disk_is_full_and_the_file_ends_with_a_whole_one() {
    let mut audit = on_disk(Disk {
        room: 20,
        ..Disk::default()
    });
    for number in 1..=9 {
        audit.push(record(number).as_bytes());
    }
    assert_eq!(write(&mut audit).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(text(&audit), "{\"n\":1}\n{\"n\":2}\n");
    audit.file.as_mut().unwrap().room = 1 << 20;
    write(&mut audit).unwrap();
    assert_eq!(numbers(text(&audit)), (1..=9).collect::<Vec<_>>());
}

#[test]
fn incomplete_record_is_written_when_its_end_is_added() {
    let mut audit = on_disk(Disk {
        room: 1 << 20,
        ..Disk::default()
    });
    for (part, written) in [
        ("{\"n\"", ""),
        (":1}\n{", "{\"n\":1}\n"),
        ("\"n\":2}\n", "{\"n\":1}\n{\"n\":2}\n"),
    ] {
        audit.push(part.as_bytes());
        write(&mut audit).unwrap();
        assert_eq!(text(&audit), written);
    }
}

#[test]
fn rest_of_a_record_follows_if_the_file_cannot_be_shortened() {
    let mut audit = on_disk(Disk {
        room: 1 << 20,
        script: [10, 3, 0].into(),
        cannot_truncate: true,
        ..Disk::default()
    });
    for number in 1..=3 {
        audit.push(record(number).as_bytes());
    }
    write(&mut audit).unwrap_err();
    assert_eq!(text(&audit), "{\"n\":1}\n{\"");
    for is_last in [false, false, true] {
        assert_eq!(write(&mut audit).is_ok(), is_last);
    }
    assert_eq!(text(&audit), "{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n");
}
