//! Route `/v1/log-level`: the log level of the supervisor and the engine.

use std::time::Instant;

use pontoon_control::http::{HttpRequest, HttpResponse};
use pontoon_control::reply::{Level, LogLevel};
use pontoon_control::server::Answer;
use pontoon_worker::Update;
use tracing::level_filters::LevelFilter;

use super::Api;

pub(super) fn get(api: &mut Api, _: &HttpRequest, _: Instant) -> Answer<Api> {
    Answer::Now(show(api))
}

/// Handles `PUT /v1/log-level`. All workers use the new level when the response is sent.
pub(super) fn put(api: &mut Api, request: &HttpRequest, now: Instant) -> Answer<Api> {
    let requested: LogLevel = match request.json() {
        Ok(requested) => requested,
        Err(why) => return Answer::Now(HttpResponse::problem(400, why)),
    };
    api.level = requested.level;
    let level = filter(requested.level);
    (api.set_log_level)(level);
    api.outbox.push(Update::LogLevel(level));
    api.confirm(now, |api, _| show(api))
}

/// Returns the current level of this process.
pub(super) fn now() -> Level {
    let now = LevelFilter::current();
    let level = Level::ALL.into_iter().rfind(|level| filter(*level) <= now);
    level.unwrap_or(Level::Error)
}

fn show(api: &Api) -> HttpResponse {
    HttpResponse::json(&LogLevel { level: api.level })
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
