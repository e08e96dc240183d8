//! Diagnosis of the host (`pontoon doctor`): the features that Pontoon uses, the consequence of each missing one, and its
//! remedy.
//!
//! Each check tries its step in a short-lived child process with a deadline (`trial`), by the code that `run` and `vm` use,
//! and a function without side effects makes a [`Check`] of the result.

use std::time::Duration;

use pontoon_process::error::Error;
use pontoon_process::log::panics;
use pontoon_sys::disabled::Disabled;

mod check;
mod confinement;
mod features;
mod guest;
mod ids;
mod limits;
mod namespaces;
mod network;
mod resolvers;
mod sandbox;
mod trial;

pub use check::{Check, Report, Status};

/// Returns the error of an incomplete sandbox that is required, if the host refuses a user namespace to this process.
pub(crate) fn refused_user_namespace() -> Option<Error> {
    let reason = sandbox::refusal()?;
    let error = Error::new(format!("the sandbox is incomplete: {}", reason.what()));
    let other = "without --require-sandbox";
    Some(match reason.fix() {
        Some(fix) => error.with_fix(&fix.or(other)),
        None => error.advise(other),
    })
}

/// Limit on the time of a check.
const DEADLINE: Duration = Duration::from_secs(10);

/// Checks the host. The caller's process has one thread only.
#[must_use]
pub fn examine(disabled: &Disabled) -> Vec<Check> {
    panics::set_hook();
    let mut checks = vec![features::kernel(), confinement::check()];
    checks.extend(namespaces::checks());
    checks.push(guest::device());
    let mut failed = checks.iter().filter(|check| check.status == Status::Failure);
    let rest = match failed.next() {
        Some(cause) => guest::skipped(cause.name),
        None => guest::checks(disabled),
    };
    checks.extend(rest);
    checks.push(features::vhost_net(disabled));
    checks.extend(features::sockets(disabled));
    checks.push(features::ping());
    checks.extend(sandbox::checks(disabled));
    checks.push(limits::descriptors());
    checks.push(limits::pipes());
    checks.push(resolvers::check());
    checks.push(network::ipv6());
    checks
}
