//! Fuzz target of the control socket: arbitrary client input and engine reports. No request changes the host.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Debug;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use httparse::Status;
use pontoon_control::http::{self, HttpRequest, HttpResponse, Parsed};
use pontoon_control::reply::{self, Problem};
use pontoon_control::role::Role;
use pontoon_control::server::{self, Answer};
use pontoon_engine::address_plan::AddressPlan;
use pontoon_engine::egress::Action;
use pontoon_engine::flow_dump::Page;
use pontoon_worker::Update;
use pontoon_worker::messages::{Confirmation, FlowPage, Report};
use pontoon_worker::stats::StatsTable;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::ControlSetup;
use super::api::{self, Api, capture, decisions, end_flows, guest_forward, pesto, policy, publish};
use crate::forward::Forwards;
use crate::publish::Ports;
use crate::statistics::Statistics;

/// Parses the bytes as the input of a client of the control socket, and as the body of each kind of request.
pub(crate) fn client(bytes: &[u8]) {
    let parse = ParsedInput::of([bytes]);
    // The input is split into single bytes, or into longer pieces if it is long.
    let piece = 1.max(bytes.len() / 256);
    assert_eq!(ParsedInput::of(bytes.chunks(piece)), parse);
    let mut api = api();
    for request in &parse.requests {
        let response = answer(&mut api, request);
        assert!(matches!(response.status, 200..=299 | 400..=499), "{response:?}");
        check(&response, request.close, request.method == "HEAD");
    }
    if let Some(response) = &parse.refused {
        // RFC 9112 section 6.1 requires status 501 for an unknown transfer coding.
        assert!(matches!(response.status, 400..=499 | 501), "{response:?}");
        check(response, true, false);
    }
    decisions::check(bytes);
    pesto::check(bytes);
    for (method, path) in WITH_BODIES {
        let response = answer(&mut api, &request(method, path, bytes));
        assert!(matches!(response.status, 200 | 400), "{response:?}");
        check(&response, false, false);
    }
}

/// Replies to all queries with `report`, as an engine with two workers, and checks that the responses are valid HTTP.
pub(crate) fn engine(report: &Report) {
    let mut api = api();
    let response = ask(&mut api, &request("GET", "/v1/flows", b""), report);
    assert_eq!(response.status, 200, "{response:?}");
    check(&response, false, false);
    drop(read::<reply::Flows>(&response));
    lines(report);
}

/// Checks that the lines which the decider receives are valid JSON, one for each token.
fn lines(report: &Report) {
    let Report::Decide(requests) = report else {
        return;
    };
    let mut api = api();
    api.require_decider(Duration::from_secs(2), true);
    api.take_report(report.clone(), Instant::now());
    let lines = std::iter::from_fn(|| api.next_decision());
    let count = lines.map(|line| serde_json::from_slice::<reply::Decision>(&line).expect("a line"));
    let tokens: BTreeSet<u64> = requests.iter().map(|request| request.token).collect();
    assert_eq!(count.count(), tokens.len());
}

/// Lets engines with two workers write these bytes, again and again, to the memory of their statistics. The responses are valid,
/// and no total decreases when an engine is replaced.
pub(crate) fn statistics(bytes: &[u8]) {
    let table = StatsTable::private(2, 2);
    let rules = ["deny 10.0.0.0/8", "allow *.example.org"].map(|rule| rule.parse().expect("a rule"));
    let statistics = Statistics::new(table.clone(), rules.to_vec());
    let mut api = Api::new(ControlSetup {
        statistics: statistics.clone(),
        ..served()
    });
    let word = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let words = bytes.chunks(8).map(word).cycle();
    for (word, value) in table.words().iter().zip(words) {
        word.store(value, Ordering::Relaxed);
    }
    let before = total(&mut api);
    statistics.end_engine();
    let after = total(&mut api);
    assert_eq!((after.flows, after.pool_bytes), (0, 0));
    for (name, count) in before.counters {
        assert!(
            name.starts_with("sandbox_layer_") || after.counters[&name] >= count,
            "{name}"
        );
    }
}

/// Checks all statistics; returns the sum of those of the workers.
fn total(api: &mut Api) -> reply::WorkerStats {
    let mut get = |path| {
        let response = ask(api, &request("GET", path, b""), &Report::Ready);
        assert_eq!(response.status, 200, "{response:?}");
        check(&response, false, false);
        response
    };
    drop(read::<reply::Policy>(&get("/v1/policy")));
    let metrics = String::from_utf8(get("/metrics").body).unwrap_or_default();
    assert!(!metrics.is_empty());
    for line in metrics.lines().filter(|line| !line.starts_with("# ")) {
        let number = line.rsplit(' ').next().map(str::parse::<f64>);
        assert!(
            line.starts_with("pontoon_") && matches!(number, Some(Ok(_))),
            "{line}"
        );
    }
    read::<reply::EngineStats>(&get("/v1/stats")).total
}

/// Methods and targets of requests that have bodies.
const WITH_BODIES: [(&str, &str); 6] = [
    ("PUT", "/v1/policy"),
    ("PUT", "/v1/log-level"),
    ("POST", "/v1/publish"),
    ("POST", "/v1/guest-forward"),
    ("POST", "/v1/capture"),
    ("POST", "/v1/flows/kill"),
];

fn request(method: &str, path: &str, body: &[u8]) -> HttpRequest {
    HttpRequest {
        host: None,
        method: method.to_owned(),
        path: path.to_owned(),
        query: String::new(),
        body: body.to_vec(),
        close: false,
        role: Role::Operate,
    }
}

fn api() -> Api {
    Api::new(served())
}

fn served() -> ControlSetup {
    ControlSetup {
        statistics: Statistics::new(StatsTable::private(2, 0), vec![]),
        forwarder: true,
        ports: Ports::new(AddressPlan::usual(true)),
        forwards: Forwards::new(AddressPlan::usual(true)),
        events: None,
        set_log_level: |_| {},
    }
}

/// Requests that were parsed from the input of a client.
#[derive(Debug, Default, PartialEq, Eq)]
struct ParsedInput {
    requests: Vec<HttpRequest>,
    /// Error response after which no more input is parsed.
    refused: Option<HttpResponse>,
}

impl ParsedInput {
    fn of<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut parse = Self::default();
        let mut received = Vec::new();
        for piece in pieces {
            received.extend(piece);
            while parse.refused.is_none() {
                match http::parse(&received) {
                    Parsed::Partial { .. } => break,
                    Parsed::Whole(request, len) => {
                        received.drain(..len);
                        parse.requests.push(request);
                    }
                    Parsed::Wrong(response) => parse.refused = Some(response),
                }
            }
        }
        parse
    }
}

/// Returns the response to a request. Requests that would change the host are parsed only.
fn answer(api: &mut Api, request: &HttpRequest) -> HttpResponse {
    match (request.method.as_str(), request.path.as_str()) {
        ("PUT", "/v1/policy") => {
            parse_twice(
                request,
                |request| policy::parse(request, true),
                |(rules, refused)| {
                    let of = |action: Action| -> Vec<String> {
                        let rules = rules.iter().filter(|rule| rule.action == action);
                        rules.map(|rule| rule.to.to_string()).collect()
                    };
                    json!({"allow": of(Action::Allow), "deny": of(Action::Deny), "flows": refused.to_string()})
                },
            );
            ask(api, request, &Report::Ready)
        }
        ("POST", "/v1/flows/kill") => {
            parse_twice(
                request,
                end_flows::parse,
                |what| json!({"rule": what.to_string()}),
            );
            ask(api, request, &Report::Ready)
        }
        ("POST", "/v1/publish") => parse_twice(
            request,
            publish::parse,
            |(add, remove)| json!({"add": texts(add), "remove": texts(remove)}),
        ),
        ("POST", "/v1/guest-forward") => parse_twice(
            request,
            guest_forward::parse,
            |(add, remove)| json!({"add": texts(add), "remove": texts(remove)}),
        ),
        ("POST", "/v1/capture") => parse_twice(request, capture::parse, |capture| {
            assert!(
                capture.file.is_absolute() && capture.check().is_ok(),
                "{capture:?}"
            );
            let time = capture.time.map(|time| u64::try_from(time.as_millis()).ok());
            json!({"file": capture.file, "snap": capture.snap, "size": capture.size, "time_ms": time})
        }),
        _ => ask(api, request, &Report::Ready),
    }
}

fn texts(list: &[impl ToString]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

/// Checks that a parsed body is the same after it has been serialized and parsed again.
fn parse_twice<T: Debug + PartialEq>(
    request: &HttpRequest,
    read: impl Fn(&HttpRequest) -> Result<T, String>,
    write: impl Fn(&T) -> Value,
) -> HttpResponse {
    match read(request) {
        Ok(meant) => {
            let written = write(&meant);
            let again = self::request(&request.method, &request.path, written.to_string().as_bytes());
            assert_eq!(read(&again), Ok(meant));
            HttpResponse::json(&written)
        }
        Err(why) => HttpResponse::problem(400, why),
    }
}

/// Handles a request; the engine replies to its queries with `report`, or with empty reports.
fn ask(api: &mut Api, request: &HttpRequest, report: &Report) -> HttpResponse {
    let now = Instant::now();
    let mut look = match server::dispatch(api::ROUTES, Role::Operate, api, request, now) {
        Answer::Now(response) => return response,
        Answer::Later(look) => look,
        Answer::Stream(mut source) => {
            let mut body = Vec::new();
            source(api, &mut body, now);
            return HttpResponse::document(&String::from_utf8_lossy(&body));
        }
    };
    for _ in 0..10 {
        for update in api.take_outbox() {
            for report in reports(&update, report) {
                api.take_report(report, now);
            }
        }
        if let Some(response) = look(api) {
            return response;
        }
    }
    panic!("no answer to {request:?}");
}

/// Returns the reports of the workers in reply to `update`.
fn reports(update: &Update, report: &Report) -> Vec<Report> {
    match (update, report) {
        (Update::Confirm(round), report) => {
            let confirmation = match report {
                Report::Confirmed(confirmation) => confirmation.clone(),
                _ => Confirmation::default(),
            };
            let of = |worker| {
                Report::Confirmed(Confirmation {
                    round: *round,
                    worker,
                    ..confirmation.clone()
                })
            };
            vec![of(0), of(1)]
        }
        (Update::Flows(request), Report::Flows(flows)) => vec![Report::Flows(FlowPage {
            number: request.number,
            page: Page {
                flows: flows.page.flows.clone(),
                next: None,
            },
        })],
        (Update::Flows(request), _) => vec![Report::Flows(FlowPage {
            number: request.number,
            page: Page::default(),
        })],
        _ => Vec::new(),
    }
}

/// Checks that a response is valid HTTP, and that an error is one line.
fn check(response: &HttpResponse, close: bool, head_only: bool) {
    let mut bytes = VecDeque::new();
    response.write(&mut bytes, close, head_only);
    let bytes = Vec::from(bytes);
    let mut fields = [httparse::EMPTY_HEADER; 8];
    let mut head = httparse::Response::new(&mut fields);
    let Ok(Status::Complete(len)) = head.parse(&bytes) else {
        panic!("{response:?}");
    };
    assert_eq!(head.code, Some(response.status));
    assert_eq!(
        &bytes[len..],
        if head_only { &[] } else { response.body.as_slice() }
    );
    if response.status != 200 {
        let problem: Problem = read(response);
        assert!(!problem.error.contains(char::is_control), "{problem:?}");
    }
}

fn read<T: DeserializeOwned>(response: &HttpResponse) -> T {
    serde_json::from_slice(&response.body).unwrap_or_else(|error| panic!("{error}: {response:?}"))
}
