//! Route `/v1/capture`: starts, stops and shows captures of the link.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pontoon_control::http::{HttpRequest, HttpResponse};
use pontoon_control::reply;
use pontoon_control::server::Answer;
use pontoon_ipc::Descriptor;
use pontoon_process::error::{Error, one_line};
use pontoon_worker::Update;
use pontoon_worker::messages::{CaptureCommand, CaptureResult, CaptureStart};
use serde::Deserialize;

use super::{Api, no_reply};
use crate::capture::{Capture, SNAP};
use crate::control::REPORT_TIMEOUT;

/// State of the capture that runs, or ran last.
#[derive(Debug, Default)]
pub(super) struct Captures {
    /// Number of the last capture.
    number: u64,
    /// Start message of the capture whose end the engine has not reported, and the time at which it was sent.
    began: Option<(CaptureStart, Instant)>,
    /// Time at which the stop message was sent, if it was.
    stopping: Option<Instant>,
    /// True if the engine did not confirm the stop message in time.
    late: bool,
    shown: reply::Capture,
}

/// Body of a request that starts a capture: the fields of [`Capture`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CaptureRequest {
    file: PathBuf,
    #[serde(default = "all")]
    snap: u32,
    size: Option<u64>,
    time_ms: Option<u64>,
}

fn all() -> u32 {
    SNAP
}

impl Captures {
    pub(super) fn runs(&self) -> bool {
        self.shown.running
    }

    /// Returns true if the engine has not reported the end of the capture, even if its timeout has expired.
    pub(super) fn is_awaited(&self) -> bool {
        self.began.is_some()
    }

    /// Begins a capture; the caller has checked that none runs.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(super) fn start(
        &mut self,
        capture: &Capture,
        outbox: &mut Vec<Update>,
        now: Instant,
    ) -> Result<(), Error> {
        let file = capture.open()?;
        self.number += 1;
        self.stopping = None;
        self.late = false;
        self.shown = reply::Capture {
            running: true,
            file: Some(capture.to_string()),
            ..reply::Capture::default()
        };
        let start = CaptureStart {
            number: self.number,
            file: Arc::new(file).into(),
            snap: capture.snap,
            size: capture.size,
            time: capture.time,
        };
        self.began = Some((start.clone(), now));
        outbox.push(Update::Capture(CaptureCommand::Start(start)));
        Ok(())
    }

    /// Handles a report that a capture has ended; returns true if it is the current one.
    pub(super) fn take_report(&mut self, captured: CaptureResult, outbox: &mut Vec<Update>) -> bool {
        let Some((start, _)) = self.began.take_if(|(start, _)| start.number == captured.number) else {
            return false;
        };
        let cut = match captured.failed {
            true => cut_off(&start.file),
            false => Ok(()),
        };
        self.late = false;
        self.shown = reply::Capture {
            running: false,
            file: self.shown.file.take(),
            frames: captured.frames,
            dropped: captured.dropped,
            bytes: captured.bytes,
            ended: Some(one_line(&captured.why)),
        };
        match captured.failed {
            true => tracing::warn!("{}", summary(&self.shown)),
            false => tracing::info!("{}", summary(&self.shown)),
        }
        if let Err(error) = cut {
            tracing::warn!("cannot truncate the capture file; its last packet is incomplete: {error}");
        }
        // The worker may have ended the capture at a limit; the other workers are still capturing then.
        outbox.push(Update::Capture(CaptureCommand::Stop(self.number)));
        true
    }

    /// Continues the capture in a restarted engine, after the last complete packet in the file.
    pub(super) fn go_on(&mut self, outbox: &mut Vec<Update>, now: Instant) {
        let Some((start, since)) = &self.began else {
            return;
        };
        if let Err(error) = cut_off(&start.file) {
            return self.give_up(&format!(
                "the engine crashed, and the file cannot be truncated: {error}"
            ));
        }
        if self.stopping.is_some() {
            return self.give_up("the engine crashed");
        }
        let left = start.time.map(|time| time.saturating_sub(now - *since));
        if left == Some(Duration::ZERO) {
            return self.give_up("the time limit was reached");
        }
        outbox.push(Update::Capture(CaptureCommand::Start(CaptureStart {
            time: left,
            ..start.clone()
        })));
    }

    /// Returns the time by which the engine must confirm the end of the capture.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.stopping
            .filter(|_| self.runs())
            .map(|since| since + REPORT_TIMEOUT)
    }

    pub(super) fn expire(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.late = true;
            self.end("the engine does not respond");
        }
    }

    fn give_up(&mut self, why: &str) {
        self.began = None;
        self.late = false;
        self.end(why);
    }

    fn end(&mut self, why: &str) {
        self.shown.running = false;
        self.shown.ended = Some(why.to_owned());
        tracing::warn!("{}", summary(&self.shown));
    }
}

/// Truncates a file to its current offset.
fn cut_off(file: &Descriptor) -> io::Result<()> {
    let file = file.borrow().ok_or(io::ErrorKind::InvalidInput)?;
    let whole = rustix::fs::seek(file, rustix::fs::SeekFrom::Current(0))?;
    let len = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or_default();
    Ok(rustix::fs::ftruncate(file, whole.min(len))?)
}

fn summary(capture: &reply::Capture) -> String {
    let reply::Capture {
        file,
        frames,
        dropped,
        bytes,
        ended,
        ..
    } = capture;
    format!(
        "captured {frames} frames into {}, {bytes} bytes, {dropped} dropped: {}",
        file.as_deref().unwrap_or_default(),
        ended.as_deref().unwrap_or_default()
    )
}

pub(super) fn get(api: &mut Api, _: &HttpRequest, _: Instant) -> Answer<Api> {
    Answer::Now(HttpResponse::json(&api.captures.shown))
}

/// Handles `POST /v1/capture`, which begins a capture.
pub(super) fn post(api: &mut Api, request: &HttpRequest, now: Instant) -> Answer<Api> {
    let capture = match parse(request) {
        Ok(capture) => capture,
        Err(why) => return Answer::Now(HttpResponse::problem(400, why)),
    };
    if api.captures.runs() {
        return Answer::Now(HttpResponse::problem(409, "a capture is already running"));
    }
    if let Some(refused) = api.refuse_unread(now) {
        return refused;
    }
    if let Err(error) = api.captures.start(&capture, &mut api.outbox, now) {
        return Answer::Now(HttpResponse::problem(409, error));
    }
    // The response waits until every worker captures, so that the client can rely on it.
    api.confirm(now, |api, _| HttpResponse::json(&api.captures.shown))
}

/// Handles `DELETE /v1/capture`, which ends the capture; the response is sent when the file is complete.
pub(super) fn delete(api: &mut Api, _: &HttpRequest, now: Instant) -> Answer<Api> {
    if !api.captures.runs() {
        return Answer::Now(HttpResponse::problem(409, "no capture is running"));
    }
    let number = api.captures.number;
    if api.captures.stopping.is_none() {
        api.captures.stopping = Some(now);
        api.outbox.push(Update::Capture(CaptureCommand::Stop(number)));
    }
    Answer::Later(Box::new(|api| {
        let captures = &api.captures;
        (!captures.runs()).then(|| match captures.late {
            true => no_reply(),
            false => HttpResponse::json(&captures.shown),
        })
    }))
}

/// Parses the body of a request that starts a capture.
pub(in crate::control) fn parse(request: &HttpRequest) -> Result<Capture, String> {
    let parsed: CaptureRequest = request.json()?;
    if !parsed.file.is_absolute() {
        return Err(format!("'{}' is not an absolute path", parsed.file.display()));
    }
    let capture = Capture {
        file: parsed.file,
        snap: parsed.snap,
        size: parsed.size,
        time: parsed.time_ms.map(Duration::from_millis),
    };
    capture.check()?;
    Ok(capture)
}
