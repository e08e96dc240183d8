//! Route `/v1/stats`: the counters and gauges of the workers.

use std::time::Instant;

use pontoon_control::http::{HttpRequest, HttpResponse};
use pontoon_control::reply;
use pontoon_control::server::Answer;
use pontoon_worker::messages::Stats;

use super::Api;

pub(super) fn get(api: &mut Api, _: &HttpRequest, now: Instant) -> Answer<Api> {
    api.report(now, |_, reports| {
        let worker = |stats: &Stats| reply::WorkerStats {
            flows: stats.flows,
            pool_bytes: stats.pool_bytes,
            counters: stats.counters.iter().cloned().collect(),
        };
        HttpResponse::json(&reply::EngineStats {
            workers: reports.iter().map(worker).collect(),
            total: worker(&reports.into_iter().sum()),
        })
    })
}
