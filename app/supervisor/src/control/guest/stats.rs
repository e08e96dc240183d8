//! Counters and gauges of the workers.

use std::time::Instant;

use pontoon_worker::messages::Stats;

use super::Api;
use crate::control::http::{Request, Response};
use crate::control::reply;
use crate::control::server::Answer;

pub(super) fn get(api: &mut Api, _: &Request, now: Instant) -> Answer<Api> {
    api.report(now, |_, said| {
        let worker = |stats: &Stats| reply::Worker {
            flows: stats.flows,
            pool_bytes: stats.pool_bytes,
            counters: stats.counters.iter().cloned().collect(),
        };
        Response::json(&reply::Stats {
            workers: said.iter().map(worker).collect(),
            total: worker(&said.into_iter().sum()),
        })
    })
}
