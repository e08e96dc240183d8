//! Route `/v1/openapi.json`: the OpenAPI document of the control socket.

use std::time::Instant;

use pontoon_control::http::{HttpRequest, HttpResponse};
use pontoon_control::server::Answer;

use super::Api;

pub(in crate::control) const DOCUMENT: &str = include_str!("../openapi.json");

pub(super) fn get(_: &mut Api, _: &HttpRequest, _: Instant) -> Answer<Api> {
    Answer::Now(HttpResponse::document(DOCUMENT))
}
