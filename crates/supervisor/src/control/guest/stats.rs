//! What happened, and what there is.

use std::time::Instant;

use pontoon_runtime::messages::Stats;

use super::Api;
use crate::control::http::{Request, Response};
use crate::control::reply;
use crate::control::server::Answer;

pub(super) fn get(api: &mut Api, _: &Request, now: Instant) -> Answer<Api> {
    api.report(now, |_, said| {
        let worker = |stats: Stats| reply::Worker {
            flows: stats.flows,
            pool_bytes: stats.pool_bytes,
            counters: stats.counters.into_iter().collect(),
        };
        let workers: Vec<reply::Worker> = said.into_iter().map(worker).collect();
        let mut total = reply::Worker::default();
        for worker in &workers {
            total.flows = total.flows.saturating_add(worker.flows);
            total.pool_bytes = total.pool_bytes.saturating_add(worker.pool_bytes);
            for (name, count) in &worker.counters {
                let sum = total.counters.entry(name.clone()).or_default();
                *sum = sum.saturating_add(*count);
            }
        }
        Response::json(&reply::Stats { workers, total })
    })
}
