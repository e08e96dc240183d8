//! Verb `pontoon relay`: converts its arguments and runs the relay supervisor.

use std::process::ExitCode;

use pontoon_control::Metrics;
use pontoon_relay_supervisor::RelayOptions;

use crate::args::RelayArgs;
use crate::log;

pub(crate) fn run(arguments: RelayArgs) -> ExitCode {
    log::start(
        arguments.report.log_format,
        log::level(arguments.report.quiet, arguments.report.verbose),
    );
    let options = RelayOptions {
        rules: arguments.rules,
        config: arguments.config,
        workers: arguments.workers,
        max_delay: arguments.max_delay,
        require_sandbox: arguments.require_sandbox,
        proxies: arguments.proxies,
        follow_kernel_routes: arguments.follow_kernel_routes,
        control: arguments.control,
        metrics: arguments.metrics.map(|at| Metrics {
            at,
            hosts: arguments.metrics_host,
        }),
        ready_fd: arguments.report.ready_fd,
        pid_file: arguments.report.pid_file(),
    };
    log::end(pontoon_relay_supervisor::run(&options))
}
