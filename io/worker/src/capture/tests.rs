use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use pontoon_link::capturing::Way;
use pontoon_sys::seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::messages::SupervisorChannel;
use crate::stats::StatsTable;

/// Limit on the wait for a report.
const TIMEOUT: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// Returns type and body of each block of a pcapng file; checks that both lengths of a block are equal.
pub(super) fn blocks(mut file: &[u8]) -> Vec<(u32, &[u8])> {
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().unwrap());
    let mut blocks = Vec::new();
    while !file.is_empty() {
        let len = word(&file[4..]) as usize;
        assert_eq!(len % 4, 0);
        assert_eq!(word(&file[len - 4..]) as usize, len);
        blocks.push((word(file), &file[8..len - 4]));
        file = &file[len..];
    }
    blocks
}

/// Control of captures under test, and the supervisor's end of its channel.
struct Scene {
    capture_control: CaptureControl,
    table: StatsTable,
    reports: EngineChannel,
    supervisor: SupervisorChannel,
    file: File,
}

impl Scene {
    fn new() -> Self {
        let (supervisor, reports) = seqpacket::pair().unwrap();
        let table = StatsTable::private(1, 0);
        Self {
            capture_control: CaptureControl::new(table.process()),
            table,
            reports: EngineChannel::new(reports, 0).unwrap(),
            supervisor: SupervisorChannel::new(supervisor, 0).unwrap(),
            file: tempfile::tempfile().unwrap(),
        }
    }

    /// Frames and drops among the counters of the process.
    fn counted(&self) -> [u64; 2] {
        let process = self.table.read(0).process();
        [process.capture_frames, process.capture_dropped]
    }

    fn start(&self, size: Option<u64>, time: Option<Duration>) -> Arc<CaptureQueue> {
        self.begin(1, size, time).unwrap()
    }

    fn begin(&self, number: u64, size: Option<u64>, time: Option<Duration>) -> Option<Arc<CaptureQueue>> {
        let file: OwnedFd = self.file.try_clone().unwrap().into();
        let start = CaptureStart {
            number,
            file: Arc::new(file).into(),
            snap: 96,
            size,
            time,
        };
        self.capture_control
            .apply(CaptureCommand::Start(start), &self.reports)
    }

    /// Starts a capture whose writer blocks in a write until the returned sender is dropped.
    fn hang(&self, number: u64) -> mpsc::Sender<()> {
        let (sender, receiver) = mpsc::channel::<()>();
        let writer = thread::spawn(move || {
            let _ = receiver.recv_timeout(Duration::from_secs(5));
        });
        self.capture_control.lock().running = Some(RunningCapture {
            number,
            capture_queue: Arc::new(CaptureQueue::new(96)),
            writer,
        });
        sender
    }

    /// Waits for the report of the end of a capture.
    fn captured(&mut self) -> CaptureResult {
        poll(
            &mut [PollFd::new(&self.supervisor, PollFlags::IN)],
            Some(&TIMEOUT),
        )
        .unwrap();
        match self.supervisor.receive().unwrap() {
            Some(Report::Captured(captured)) => captured,
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the report of the end of a capture. Returns it and the numbers of statistics blocks and frames in the
    /// file.
    fn end(&mut self) -> (CaptureResult, usize, usize) {
        let captured = self.captured();
        let mut bytes = Vec::new();
        self.file.rewind().unwrap();
        self.file.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, captured.bytes);
        let kinds: Vec<u32> = blocks(&bytes).iter().map(|(kind, _)| *kind).collect();
        let count = |wanted| kinds.iter().filter(|kind| **kind == wanted).count();
        assert_eq!(kinds.last(), Some(&5), "statistics are last");
        (captured, count(5), count(6))
    }
}

fn put(capture_queue: &CaptureQueue, frames: usize, len: usize) {
    for _ in 0..frames {
        if let Some(mut record) = capture_queue.record(Way::Up, len) {
            record.fill(capture_queue.room(&record).min(len), |_| {});
            capture_queue.put(record);
        }
    }
}

#[test]
fn stopped_capture_has_all_frames_in_its_file() {
    let mut scene = Scene::new();
    let capture_queue = scene.start(None, None);
    put(&capture_queue, 1000, 60);
    assert!(
        scene
            .capture_control
            .apply(CaptureCommand::Stop(1), &scene.reports)
            .is_none()
    );
    let (captured, statistics, frames) = scene.end();
    assert_eq!((captured.frames, captured.dropped), (1000, 0));
    assert_eq!((statistics, frames), (1, 1000));
    assert_eq!(
        (captured.why.as_str(), captured.failed),
        ("it was stopped", false)
    );
    put(&capture_queue, 1, 60);
    scene.capture_control.finish();
    assert_eq!(scene.counted(), [1000, 0]);
}

#[test]
fn workers_share_the_queue_of_the_running_capture() {
    let scene = Scene::new();
    let capture_queue = scene.start(None, None);
    assert!(Arc::ptr_eq(&capture_queue, &scene.start(None, None)));
    // A capture that has ended has no queue.
    assert!(
        scene
            .capture_control
            .apply(CaptureCommand::Stop(7), &scene.reports)
            .is_none()
    );
    assert!(!capture_queue.is_closed());
    scene.capture_control.finish();
    assert!(capture_queue.is_closed());
}

#[test]
fn capture_ends_at_its_maximum_size() {
    let mut scene = Scene::new();
    let capture_queue = scene.start(Some(10_000), None);
    put(&capture_queue, 1000, 60);
    let (captured, statistics, frames) = scene.end();
    assert_eq!(captured.why, "the size limit was reached");
    assert_eq!(statistics, 1);
    assert_eq!(frames as u64, captured.frames);
    // Another frame of 104 bytes does not fit.
    assert!((9_896..=10_000).contains(&captured.bytes), "{captured:?}");
}

#[test]
fn capture_ends_after_its_maximum_time() {
    let mut scene = Scene::new();
    let begin = Instant::now();
    let capture_queue = scene.start(None, Some(Duration::from_millis(50)));
    put(&capture_queue, 3, 60);
    let (captured, ..) = scene.end();
    assert!(begin.elapsed() >= Duration::from_millis(50));
    assert_eq!(
        (captured.frames, captured.why.as_str()),
        (3, "the time limit was reached")
    );
}

#[test]
fn capture_ends_when_its_file_cannot_be_written() {
    let mut scene = Scene::new();
    scene.file = File::options().write(true).open("/dev/full").unwrap();
    let _tape = scene.start(None, None);
    let captured = scene.captured();
    assert_eq!((captured.frames, captured.bytes, captured.failed), (0, 0, true));
    assert!(captured.why.starts_with("cannot write: "), "{captured:?}");
}

/// A thread that writes nothing stands for a writer whose file system blocks.
#[test]
fn a_writer_that_hangs_delays_no_other_capture() {
    let mut scene = Scene::new();
    let begin = Instant::now();
    let mut hanging = vec![scene.hang(1)];
    let capture_queue = scene.begin(2, None, None).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(4), "it waited");
    put(&capture_queue, 10, 60);
    scene
        .capture_control
        .apply(CaptureCommand::Stop(2), &scene.reports);
    let (captured, ..) = scene.end();
    assert_eq!((captured.number, captured.frames), (2, 10));

    // As many captures may block as the limit permits, and no more.
    for number in 3..=4 {
        scene.capture_control.lock().stop();
        hanging.push(scene.hang(number));
    }
    assert!(scene.begin(5, None, None).is_none());
    let captured = scene.captured();
    assert_eq!(captured.number, 5);
    assert_eq!(
        captured.why,
        "cannot begin: earlier captures are still being written"
    );

    drop(hanging);
    scene.capture_control.finish();
    assert_eq!(scene.counted(), [10, 0]);
}

/// A supervisor that reads no reports represents one that is slow.
#[test]
fn failed_start_is_reported_later_if_the_supervisor_does_not_read() {
    let mut scene = Scene::new();
    let mut unread = 0;
    while scene.reports.try_send(&Report::Ready).is_ok() {
        unread += 1;
    }
    let _hanging: Vec<_> = (1..=3)
        .map(|number| {
            let hanging = scene.hang(number);
            scene.capture_control.lock().stop();
            hanging
        })
        .collect();
    let begin = Instant::now();
    assert!(scene.begin(4, None, None).is_none());
    // Another one, while the report of the first one waits.
    assert!(scene.begin(5, None, None).is_none());
    let waited = begin.elapsed();
    assert!(waited < Duration::from_millis(500), "it waited for {waited:?}");
    for _ in 0..unread {
        assert_eq!(scene.supervisor.receive().unwrap(), Some(Report::Ready));
    }
    assert_eq!(scene.captured().number, 4);
}
