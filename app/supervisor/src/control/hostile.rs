//! Fuzz target of the control socket: arbitrary client input and engine reports. No request changes the host.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::time::Instant;

use httparse::Status;
use pontoon_control::http::{self, HttpRequest, HttpResponse, Parsed};
use pontoon_control::reply::{self, Problem};
use pontoon_control::server::{self, Answer};
use pontoon_engine::egress::Action;
use pontoon_engine::flow_dump::Page;
use pontoon_worker::Update;
use pontoon_worker::messages::{FlowPage, Report, Stats};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::ControlSetup;
use super::api::{self, Api, capture, policy, publish};
use crate::publish::{Families, Ports};

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
    for (method, path) in WITH_BODIES {
        let response = answer(&mut api, &request(method, path, bytes));
        assert!(matches!(response.status, 200 | 400), "{response:?}");
        check(&response, false, false);
    }
}

/// Replies to all queries with `report`, as an engine with two workers, and checks that the responses are valid HTTP.
pub(crate) fn engine(report: &Report) {
    let mut api = api();
    for path in ["/v1/stats", "/v1/policy", "/v1/flows"] {
        let response = ask(&mut api, &request("GET", path, b""), report);
        assert_eq!(response.status, 200, "{response:?}");
        check(&response, false, false);
        match path {
            "/v1/stats" => drop(read::<reply::EngineStats>(&response)),
            "/v1/policy" => drop(read::<reply::Policy>(&response)),
            _ => drop(read::<reply::Flows>(&response)),
        }
    }
    let response = ask(&mut api, &request("GET", "/metrics", b""), report);
    let metrics = String::from_utf8(response.body).unwrap_or_default();
    assert!(response.status == 200 && !metrics.is_empty());
    for line in metrics.lines().filter(|line| !line.starts_with("# ")) {
        let number = line.rsplit(' ').next().map(str::parse::<f64>);
        assert!(
            line.starts_with("pontoon_") && matches!(number, Some(Ok(_))),
            "{line}"
        );
    }
}

/// Methods and targets of requests that have bodies.
const WITH_BODIES: [(&str, &str); 4] = [
    ("PUT", "/v1/policy"),
    ("PUT", "/v1/log-level"),
    ("POST", "/v1/publish"),
    ("POST", "/v1/capture"),
];

fn request(method: &str, path: &str, body: &[u8]) -> HttpRequest {
    HttpRequest {
        host: None,
        method: method.to_owned(),
        path: path.to_owned(),
        body: body.to_vec(),
        close: false,
    }
}

fn api() -> Api {
    Api::new(ControlSetup {
        rules: vec![],
        forwarder: true,
        workers: 2,
        ports: Ports::new(Families::Both),
        set_log_level: |_| {},
    })
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
                |rules| {
                    let of = |action: Action| -> Vec<String> {
                        let rules = rules.iter().filter(|rule| rule.action == action);
                        rules.map(|rule| rule.to.to_string()).collect()
                    };
                    json!({"allow": of(Action::Allow), "deny": of(Action::Deny)})
                },
            );
            ask(api, request, &Report::Ready)
        }
        ("POST", "/v1/publish") => parse_twice(
            request,
            publish::parse,
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
    let mut look = match server::dispatch(api::ROUTES, api, request, now) {
        Answer::Now(response) => return response,
        Answer::Later(look) => look,
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
        (Update::Ask(round), report) => {
            let stats = match report {
                Report::Stats(stats) => stats.clone(),
                _ => Stats::default(),
            };
            let of = |worker| {
                Report::Stats(Stats {
                    round: *round,
                    worker,
                    ..stats.clone()
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
