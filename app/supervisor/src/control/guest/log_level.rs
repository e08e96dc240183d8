//! The log level of the supervisor and the engine.

use std::time::Instant;

use pontoon_worker::Update;
use tracing::level_filters::LevelFilter;

use super::Api;
use crate::control::http::{Request, Response};
use crate::control::reply::{Level, LogLevel};
use crate::control::server::Answer;

pub(super) fn get(api: &mut Api, _: &Request, _: Instant) -> Answer<Api> {
    Answer::Now(show(api))
}

/// Another level, which every process goes by once there is an answer.
pub(super) fn put(api: &mut Api, request: &Request, now: Instant) -> Answer<Api> {
    let wish: LogLevel = match request.json() {
        Ok(wish) => wish,
        Err(why) => return Answer::Now(Response::problem(400, why)),
    };
    api.level = wish.level;
    let level = filter(wish.level);
    (api.set_log_level)(level);
    api.outbox.push(Update::LogLevel(level));
    api.confirm(now, |api, _| show(api))
}

/// The level at the start.
pub(super) fn now() -> Level {
    let now = LevelFilter::current();
    let said = Level::ALL.into_iter().rfind(|level| filter(*level) <= now);
    said.unwrap_or(Level::Error)
}

fn show(api: &Api) -> Response {
    Response::json(&LogLevel { level: api.level })
}

fn filter(level: Level) -> LevelFilter {
    match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    }
}
