//! Tests that the OpenAPI document describes the routes and responses of the control socket.

use pontoon_test_support::openapi::{check_routes, conform, parse, resolve};
use serde_json::Value;

use super::*;
use crate::control::api::{DOCUMENT, ROUTES};

#[test]
fn document_describes_every_route_and_no_other() {
    let routes = ROUTES.iter().map(|route| (route.method, route.path));
    check_routes(&parse(DOCUMENT), routes);
}

#[test]
fn responses_match_their_schemas() {
    let document = parse(DOCUMENT);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("capture");
    for (request, silent) in [
        (STATS.to_owned(), false),
        ("GET /v1/policy HTTP/1.1\r\n\r\n".to_owned(), false),
        (put(r#"{"allow": ["*"], "deny": ["a.test"]}"#), false),
        (put("{}"), false),
        (put(r#"{"deny": [""]}"#), false),
        (put(r#"{"flows": "keep"}"#), false),
        (post("/v1/flows/kill", r#"{"rule": "192.0.2.1:443/tcp"}"#), false),
        (post("/v1/flows/kill", r#"{"rule": "example.org"}"#), false),
        (post("/v1/flows/kill", r#"{"rule": "*"}"#), true),
        ("GET /v1/openapi.json HTTP/1.1\r\n\r\n".to_owned(), false),
        ("GET /v1/events HTTP/1.1\r\n\r\n".to_owned(), false),
        ("GET /v1/publish HTTP/1.1\r\n\r\n".to_owned(), false),
        (post("/v1/publish", r#"{"add": ["127.0.0.1:0:80"]}"#), false),
        (
            post("/v1/publish", r#"{"add": [], "remove": ["127.0.0.1:1:80"]}"#),
            false,
        ),
        ("GET /v1/guest-forward HTTP/1.1\r\n\r\n".to_owned(), false),
        (post("/v1/guest-forward", r#"{"add": ["5432", "auto"]}"#), false),
        (post("/v1/guest-forward", r#"{"add": ["all"]}"#), false),
        (post("/v1/guest-forward", r#"{"add": ["10.0.2.15:1"]}"#), false),
        ("GET /v1/capture HTTP/1.1\r\n\r\n".to_owned(), false),
        (
            post("/v1/capture", &format!("{{\"file\": \"{}\"}}", file.display())),
            false,
        ),
        (post("/v1/capture", r#"{"file": "relative"}"#), false),
        ("GET /v1/log-level HTTP/1.1\r\n\r\n".to_owned(), false),
        (put_level("trace"), false),
        (put_level("trace"), true),
        (put_level("loud"), false),
        ("DELETE /v1/capture HTTP/1.1\r\n\r\n".to_owned(), false),
    ] {
        let mut fixture = Fixture::new(2);
        let client = fixture.client();
        send(&client, &request);
        fixture.serve();
        if silent {
            fixture.wait(REPORT_TIMEOUT);
        } else if fixture.control.is_asking() {
            fixture.confirm(2);
        }
        let (answer, _) = received(&client);
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let mut words = request.split_whitespace();
        let (method, path) = (words.next().unwrap().to_lowercase(), words.next().unwrap());
        let described = resolve(
            &document,
            &document["paths"][path][method]["responses"][status(head)],
        );
        let schema = &described["content"]["application/json"]["schema"];
        assert!(
            schema.is_object(),
            "{request}: status {} is not described",
            status(head)
        );
        let value = serde_json::from_str(body).unwrap();
        conform(&document, schema, &value).unwrap_or_else(|why| panic!("{request}: {why}"));
    }
}

fn put_level(level: &str) -> String {
    put(&format!("{{\"level\": \"{level}\"}}")).replace("/v1/policy", "/v1/log-level")
}

#[test]
fn value_that_violates_its_schema_is_detected() {
    let document = parse(DOCUMENT);
    let schema = &document["components"]["schemas"]["Rule"];
    let rule = serde_json::json!({"action": "allow", "to": "*", "hits": 3});
    conform(&document, schema, &rule).unwrap();
    for (key, value) in [
        ("action", serde_json::json!("permit")),
        ("to", serde_json::json!(7)),
        ("hits", serde_json::json!(-1)),
        ("more", serde_json::json!(1)),
    ] {
        let mut other = rule.clone();
        other[key] = value;
        conform(&document, schema, &other).unwrap_err();
    }
    conform(
        &document,
        schema,
        &serde_json::json!({"action": "allow", "to": "*"}),
    )
    .unwrap_err();
    let nullable = serde_json::json!({"type": ["string", "null"]});
    conform(&document, &nullable, &Value::Null).unwrap();
    conform(&document, &nullable, &serde_json::json!(7)).unwrap_err();
}
