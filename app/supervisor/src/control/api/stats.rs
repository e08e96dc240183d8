//! Route `/v1/stats`: the counters and gauges of the workers.

use std::collections::BTreeMap;
use std::time::Instant;

use pontoon_control::http::{HttpRequest, HttpResponse};
use pontoon_control::reply;
use pontoon_control::server::Answer;
use pontoon_worker::stats::Row;

use super::{Api, LAYER};

pub(super) fn get(api: &mut Api, _: &HttpRequest, _: Instant) -> Answer<Api> {
    let rows = api.statistics.rows();
    let mut total = Row::default();
    rows.iter().for_each(|row| total.add(row));
    Answer::Now(HttpResponse::json(&reply::EngineStats {
        workers: rows
            .iter()
            .enumerate()
            .map(|(worker, row)| of(row, worker == 0))
            .collect(),
        total: of(&total, true),
    }))
}

/// Returns the statistics of a row, which has those of the process in the first worker and the sum.
fn of(row: &Row, has_process: bool) -> reply::WorkerStats {
    let gauges = row.gauges();
    let mut counters: BTreeMap<String, u64> = row
        .counters()
        .map(|(name, count)| (name.to_owned(), count))
        .collect();
    if has_process {
        let process = row.process().iter().map(|(name, count)| (name.to_owned(), count));
        let layers = row
            .layers()
            .map(|(name, active)| (format!("{LAYER}{name}"), active));
        counters.extend(process.chain(layers));
    }
    reply::WorkerStats {
        flows: gauges.flows,
        pool_bytes: gauges.pool_bytes,
        counters,
    }
}
