//! The description of all this, for programs.

use std::time::Instant;

use super::Api;
use crate::control::http::{Request, Response};
use crate::control::server::Answer;

pub(in crate::control) const DOCUMENT: &str = include_str!("../openapi.json");

pub(super) fn get(_: &mut Api, _: &Request, _: Instant) -> Answer<Api> {
    Answer::Now(Response::document(DOCUMENT))
}
