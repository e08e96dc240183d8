//! Opens what the options request on the host: published ports, the audit file, and the control sockets.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use pontoon_control::role::Role;
use pontoon_process::error::Error;

use crate::HostState;
use crate::control::{Control, ControlSetup};
use crate::events::Events;
use crate::host;
use crate::options::{Guest, GuestOptions};
use crate::publish::{self, Ports};
use crate::statistics::Statistics;

/// Opens the host sockets of the published ports, and checks that descriptors are left for flows.
pub(crate) fn open_ports(options: &GuestOptions, host: &HostState) -> Result<Ports, Error> {
    let has_namespace = !matches!(options.guest, Guest::Machine(_));
    let mut ports = Ports::new(host.chosen.plan.clone()).permitting_auto(has_namespace);
    ports.set_owned(host.watch.owned());
    let wait = if options.daemon {
        publish::RESTART_WAIT
    } else {
        Duration::ZERO
    };
    publish::open(&mut ports, &options.publish, wait)?;
    host::check_descriptors(ports.published().len(), options.workers)?;
    Ok(ports)
}

/// Opens the audit file, and allocates memory for events if there is one or a control socket.
pub(crate) fn open_events(
    options: &GuestOptions,
    flows: u32,
    statistics: &Statistics,
) -> Result<Option<Events>, Error> {
    let is_served = options.control.is_some() || options.control_read.is_some();
    if options.audit.is_none() && !is_served {
        return Ok(None);
    }
    let audit = options.audit.as_ref();
    Events::open(options.workers, flows, audit, statistics.clone()).map(Some)
}

/// Opens the control sockets and the metrics address, and begins the capture, if the options request them. A capture,
/// and values with `auto`, need the control API even if there is no control socket. `decider` is the descriptor of
/// `--decider-fd`.
pub(crate) fn open_control(
    options: &GuestOptions,
    served: ControlSetup,
    decider: Option<OwnedFd>,
) -> Result<Option<Control>, Error> {
    let needs_scan = served.ports.needs_scan() || served.forwards.needs_scan();
    let roles = [(&options.control_read, Role::Read)];
    let is_served = options.control.is_some()
        || options.metrics.is_some()
        || options.slirp_api.is_some()
        || options.pesto.is_some()
        || roles.iter().any(|(path, _)| path.is_some());
    if !is_served && !needs_scan && options.pcap.is_none() && !options.requires_decider() {
        return Ok(None);
    }
    let mut control = Control::open(options.control.as_deref(), options.metrics.as_ref(), served)?;
    for (path, role) in roles {
        if let Some(path) = path {
            control.open_role(path, role)?;
        }
    }
    if let Some(path) = &options.slirp_api {
        control.open_slirp_api(path)?;
    }
    if let Some(socket) = &options.pesto {
        control.open_pesto(socket, &options.publish)?;
    }
    if let Some(capture) = &options.pcap {
        control.capture(capture, Instant::now())?;
    }
    if options.requires_decider() {
        let deadline = options.decision_deadline();
        control.require_decider(options.control_decide.as_deref(), decider, deadline)?;
    }
    Ok(Some(control))
}
