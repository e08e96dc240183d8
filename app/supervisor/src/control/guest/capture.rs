//! Captures of the link.

use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pontoon_worker::Update;
use pontoon_worker::messages::{Captured, Order, Start};
use serde::Deserialize;

use super::{Api, silent};
use crate::capture::{Capture, SNAP};
use crate::control::http::{Request, Response};
use crate::control::server::Answer;
use crate::control::{REPORT_TIMEOUT, reply};
use crate::error::{Error, one_line};

/// The capture that runs, or ran last.
#[derive(Debug, Default)]
pub(super) struct Captures {
    /// Of the last one.
    number: u64,
    /// The start order of the capture whose end the engine has yet to report, and its time.
    began: Option<(Start, Instant)>,
    /// The time of the stop order, if one was sent.
    stopping: Option<Instant>,
    /// A stop order was sent, and the engine did not confirm it in time.
    late: bool,
    shown: reply::Capture,
}

/// The body of a request: the fields of [`Capture`].
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wish {
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

    /// Returns true if the end of a capture has not been reported, even if the report is late.
    pub(super) fn is_awaited(&self) -> bool {
        self.began.is_some()
    }

    /// Begins a capture. None may be running.
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
        let start = Start {
            number: self.number,
            file: Arc::new(file).into(),
            snap: capture.snap,
            size: capture.size,
            time: capture.time,
        };
        self.began = Some((start.clone(), now));
        outbox.push(Update::Capture(Order::Start(start)));
        Ok(())
    }

    /// Notes that it has ended; true if that is news.
    pub(super) fn hear(&mut self, captured: Captured, outbox: &mut Vec<Update>) -> bool {
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
            true => tracing::warn!("{}", told(&self.shown)),
            false => tracing::info!("{}", told(&self.shown)),
        }
        if let Err(error) = cut {
            tracing::warn!("cannot truncate the capture file; its last packet is incomplete: {error}");
        }
        // It may have ended by itself; now the workers forget it, too.
        outbox.push(Update::Capture(Order::Stop(self.number)));
        true
    }

    /// Another engine is to go on with it, behind what the one before it has left whole.
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
            return self.give_up("it was to take no longer");
        }
        outbox.push(Update::Capture(Order::Start(Start {
            time: left,
            ..start.clone()
        })));
    }

    /// Until when the engine has time to end it.
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
        tracing::warn!("{}", told(&self.shown));
    }
}

/// Takes what is behind a file's offset off it.
fn cut_off(file: impl AsFd) -> io::Result<()> {
    let whole = rustix::fs::tell(&file)?;
    let len = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or_default();
    Ok(rustix::fs::ftruncate(&file, whole.min(len))?)
}

fn told(capture: &reply::Capture) -> String {
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

pub(super) fn get(api: &mut Api, _: &Request, _: Instant) -> Answer<Api> {
    Answer::Now(Response::json(&api.captures.shown))
}

/// Begins a capture.
pub(super) fn post(api: &mut Api, request: &Request, now: Instant) -> Answer<Api> {
    let capture = match parse(request) {
        Ok(capture) => capture,
        Err(why) => return Answer::Now(Response::problem(400, why)),
    };
    if api.captures.runs() {
        return Answer::Now(Response::problem(409, "a capture is already running"));
    }
    if let Err(error) = api.captures.start(&capture, &mut api.outbox, now) {
        return Answer::Now(Response::problem(409, error));
    }
    // Who hears the answer finds every worker at it.
    api.confirm(now, |api, _| Response::json(&api.captures.shown))
}

/// Ends it, and answers when the file is whole.
pub(super) fn delete(api: &mut Api, _: &Request, now: Instant) -> Answer<Api> {
    if !api.captures.runs() {
        return Answer::Now(Response::problem(409, "no capture is running"));
    }
    let number = api.captures.number;
    api.captures.stopping.get_or_insert(now);
    api.outbox.push(Update::Capture(Order::Stop(number)));
    Answer::Later(Box::new(|api| {
        let captures = &api.captures;
        (!captures.runs()).then(|| match captures.late {
            true => silent(),
            false => Response::json(&captures.shown),
        })
    }))
}

/// Parses the body of a request.
pub(in crate::control) fn parse(request: &Request) -> Result<Capture, String> {
    let wish: Wish = request.json()?;
    if !wish.file.is_absolute() {
        return Err(format!("'{}' is not an absolute path", wish.file.display()));
    }
    let capture = Capture {
        file: wish.file,
        snap: wish.snap,
        size: wish.size,
        time: wish.time_ms.map(Duration::from_millis),
    };
    capture.check()?;
    Ok(capture)
}
