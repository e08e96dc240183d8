//! Captures of the link.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pontoon_runtime::Update;
use pontoon_runtime::messages::{Captured, Order, Start};
use serde::Deserialize;

use super::Api;
use crate::capture::{Capture, SNAP};
use crate::control::http::{Request, Response};
use crate::control::server::Answer;
use crate::control::{ENGINE, reply};
use crate::error::Error;

/// The capture that runs, or ran last.
#[derive(Debug, Default)]
pub(super) struct Captures {
    /// Of the last one.
    number: u64,
    /// Where it is to be stopped: since when.
    stopping: Option<Instant>,
    shown: reply::Capture,
}

/// What a capture is to be, as [`Capture`] has it.
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

    /// Begins one; none runs.
    ///
    /// # Errors
    /// The file cannot be had.
    pub(super) fn start(&mut self, capture: &Capture, outbox: &mut Vec<Update>) -> Result<(), Error> {
        let file = capture.open()?;
        self.number += 1;
        self.stopping = None;
        self.shown = reply::Capture {
            running: true,
            file: Some(capture.to_string()),
            ..reply::Capture::default()
        };
        outbox.push(Update::Capture(Order::Start(Start {
            number: self.number,
            file: Arc::new(file).into(),
            snap: capture.snap,
            size: capture.size,
            time: capture.time,
        })));
        Ok(())
    }

    /// Notes that it has ended; true if that is news.
    pub(super) fn hear(&mut self, captured: Captured, outbox: &mut Vec<Update>) -> bool {
        if !self.runs() || captured.number != self.number {
            return false;
        }
        self.shown = reply::Capture {
            running: false,
            file: self.shown.file.take(),
            frames: captured.frames,
            dropped: captured.dropped,
            bytes: captured.bytes,
            ended: Some(captured.why),
        };
        tracing::info!("{}", told(&self.shown));
        // It may have ended by itself; now the workers forget it, too.
        outbox.push(Update::Capture(Order::Stop(self.number)));
        true
    }

    /// The engine that captured is no more.
    pub(super) fn lost(&mut self) {
        if self.runs() {
            self.give_up("the engine died");
        }
    }

    /// Until when the engine has time to end it.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.stopping.filter(|_| self.runs()).map(|since| since + ENGINE)
    }

    pub(super) fn expire(&mut self, now: Instant) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.give_up("the engine does not answer");
        }
    }

    fn give_up(&mut self, why: &str) {
        self.shown.running = false;
        self.shown.ended = Some(why.to_owned());
        tracing::warn!("{}", told(&self.shown));
    }
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
        return Answer::Now(Response::problem(409, "a capture runs already"));
    }
    if let Err(error) = api.captures.start(&capture, &mut api.outbox) {
        return Answer::Now(Response::problem(409, error));
    }
    // Who hears the answer finds every worker at it.
    api.report(now, |api, _| Response::json(&api.captures.shown))
}

/// Ends it, and answers when the file is whole.
pub(super) fn delete(api: &mut Api, _: &Request, now: Instant) -> Answer<Api> {
    if !api.captures.runs() {
        return Answer::Now(Response::problem(409, "no capture runs"));
    }
    let number = api.captures.number;
    api.captures.stopping.get_or_insert(now);
    api.outbox.push(Update::Capture(Order::Stop(number)));
    Answer::Later(Box::new(|api| {
        let captures = &api.captures;
        (!captures.runs()).then(|| Response::json(&captures.shown))
    }))
}

fn parse(request: &Request) -> Result<Capture, String> {
    let wish: Wish = request.json()?;
    if !wish.file.is_absolute() {
        return Err(format!("'{}' is no absolute path", wish.file.display()));
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
