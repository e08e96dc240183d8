//! Tests of the queue: a file system that does not respond, one that returns errors, and a writer that was killed.

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::super::audit_writer::testing::HeldWriter;
use super::*;

thread_local! {
    /// Writers of the test that have not begun to read.
    static HELD: RefCell<Vec<HeldWriter>> = const { RefCell::new(Vec::new()) };
    /// Number of writers that exit at once.
    static EXITING: Cell<u32> = const { Cell::new(0) };
}

/// Starts a writer that reads nothing until it is released.
fn held(file: AuditFile) -> io::Result<AuditWriter> {
    let (writer, held) = HeldWriter::start(file)?;
    HELD.with_borrow_mut(|all| all.push(held));
    Ok(writer)
}

/// Starts a writer, except for the first ones, which exit at once.
fn exiting(file: AuditFile) -> io::Result<AuditWriter> {
    let (writer, held) = HeldWriter::start(file)?;
    match EXITING.get().checked_sub(1) {
        Some(left) => EXITING.set(left),
        None => held.release(),
    }
    Ok(writer)
}

fn release() {
    HELD.take().into_iter().for_each(HeldWriter::release);
}

fn open(path: &Path, start: fn(AuditFile) -> io::Result<AuditWriter>) -> AuditQueue {
    let options = path.to_str().unwrap().parse().unwrap();
    AuditQueue::open_with(&options, start).unwrap()
}

fn push(queue: &mut AuditQueue, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        queue.push((number, number), &format!("{{\"n\":{number}}}\n"));
    }
}

/// Returns the numbers of the records in a file, and of those that a gap record names.
fn numbers(path: &Path) -> Vec<u64> {
    let mut all = Vec::new();
    for line in fs::read_to_string(path).unwrap().lines() {
        let record: Value = serde_json::from_str(line).expect(line);
        match record["n"].as_u64() {
            Some(number) => all.push(number),
            None => all.extend(record["from"].as_u64().unwrap()..=record["to"].as_u64().unwrap()),
        }
    }
    all
}

#[test]
fn file_system_that_does_not_respond_loses_records_and_blocks_nothing() {
    const RECORDS: u64 = 200_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    let mut queue = open(&path, held);
    let begin = Instant::now();
    for number in 1..=RECORDS {
        push(&mut queue, number..=number);
        queue.make_room();
        if number % 1000 == 0 {
            queue.serve(Instant::now());
        }
        assert!(queue.unsent.len() <= BUFFER);
    }
    // All waits together are limited, because no record was accepted meanwhile.
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    let [errors, lost] = queue.counts();
    assert!(errors == 0 && lost > 0, "{errors} {lost}");
    release();
    while !queue.unsent.is_empty() {
        queue.serve(Instant::now());
        std::thread::yield_now();
    }
    push(&mut queue, RECORDS + 1..=RECORDS + 3);
    queue.finish(Instant::now());
    assert_eq!(numbers(&path), (1..=RECORDS + 3).collect::<Vec<_>>());
    let text = fs::read_to_string(&path).unwrap();
    let gaps: Vec<&str> = text.lines().filter(|line| line.contains("\"gap\"")).collect();
    let [gap] = gaps[..] else {
        panic!("{gaps:?}");
    };
    let gap: Value = serde_json::from_str(gap).unwrap();
    assert_eq!(gap["reason"], "file");
    assert_eq!(
        gap["to"].as_u64().unwrap() - gap["from"].as_u64().unwrap() + 1,
        lost
    );
}

#[test]
fn records_that_are_made_at_once_wait_for_a_file_system_that_responds() {
    const RECORDS: u64 = 400_000;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    let mut queue = open(&path, AuditWriter::start_thread);
    for number in 1..=RECORDS {
        push(&mut queue, number..=number);
        queue.make_room();
    }
    queue.finish(Instant::now());
    assert_eq!(queue.counts(), [0, 0]);
    assert_eq!(numbers(&path), (1..=RECORDS).collect::<Vec<_>>());
}

#[test]
fn end_does_not_wait_for_a_file_system_that_does_not_respond() {
    let directory = tempfile::tempdir().unwrap();
    let mut queue = open(&directory.path().join("audit"), held);
    // Each record has 8 bytes or more, so that some do not fit into the pipe.
    push(&mut queue, 1..=20_000);
    let begin = Instant::now();
    queue.finish(begin);
    assert!(begin.elapsed() < AT_THE_END + Duration::from_secs(1));
    let [errors, lost] = queue.counts();
    assert!(errors == 1 && (1..20_000).contains(&lost), "{errors} {lost}");
    // The writer still writes the records in the pipe.
    release();
}

#[test]
fn errors_are_counted_and_records_are_written_later() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("place");
    fs::create_dir(&place).unwrap();
    let path = place.join("audit");
    let mut queue = open(&path, |file| AuditWriter::start_thread(file.reopened()));
    fs::remove_dir_all(&place).unwrap();
    push(&mut queue, 1..=3);
    let wait_for = |queue: &mut AuditQueue, done: &dyn Fn(&AuditQueue) -> bool| {
        let begin = Instant::now();
        while !done(queue) {
            assert!(begin.elapsed() < Duration::from_secs(10), "{queue:?}");
            queue.serve(Instant::now());
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait_for(&mut queue, &|queue| queue.counts()[0] > 0);
    fs::create_dir(&place).unwrap();
    wait_for(&mut queue, &|_| path.exists());
    queue.finish(Instant::now());
    assert_eq!(numbers(&path), [1, 2, 3]);
}

#[test]
fn writer_that_was_killed_is_replaced_after_a_pause() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    EXITING.set(2);
    let mut queue = open(&path, exiting);
    let mut now = Instant::now();
    for errors in 1..=2 {
        while queue.counts()[0] < errors {
            queue.serve(now);
            std::thread::yield_now();
        }
        assert_eq!(
            (queue.counts(), queue.deadline()),
            ([errors, 0], Some(now + RETRY))
        );
        assert!(queue.pipes().is_empty());
        now += RETRY;
        queue.serve(now);
    }
    // The first writer has received a part of the first record.
    queue.unsent.extend(b"1}\n");
    queue.writer = None;
    queue.cut = true;
    queue.start_at = Some(now);
    push(&mut queue, 2..=3);
    queue.serve(now);
    queue.finish(now);
    assert_eq!(numbers(&path), [2, 3]);
}
