//! What is said over the control socket, in JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// `GET /v1/stats`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// Of each worker.
    pub workers: Vec<Worker>,
    /// Of all together.
    pub total: Worker,
}

/// What happened in a worker since its engine's start, and what it has now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Flows that there are.
    pub flows: u64,
    /// Bytes that hosts have not taken yet, and what came out of order, in blocks of 64 KiB.
    pub pool_bytes: u64,
    /// Counts, by name.
    pub counters: BTreeMap<String, u64>,
}

/// `GET /v1/policy`, and what `PUT /v1/policy` answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The rules, in order.
    pub rules: Vec<Rule>,
    /// Destinations refused as no allow rule names them.
    pub unlisted: u64,
    /// Other resolvers refused as rules name domains.
    pub resolvers: u64,
}

/// An egress rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// `allow` or `deny`.
    pub action: String,
    /// What, as the options `--allow` and `--deny` take it.
    pub to: String,
    /// How often it was met.
    pub hits: u64,
}

/// What every status but 200 has for a body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// What is wrong, in one line.
    pub error: String,
}
