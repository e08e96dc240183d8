//! Checks of a guest's network: `/dev/net/tun`, and the start of a guest up to its command.

use std::os::unix::fs::MetadataExt as _;

use pontoon_process::Fix;
use pontoon_process::error::{Error, reason};
use pontoon_process::netlink::Netlink;
use pontoon_sys::disabled::Disabled;
use pontoon_sys::tun::{self, TapOffload};
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use super::check::remedy;
use super::{Check, DEADLINE, Status, features, trial};
use crate::config::{GUEST_MAC, MOST_MTU};
use crate::guest::{command, init, tap};
use crate::host::address_plan;
use crate::host::network::HostNetwork;
use crate::host::resolv::render;
use crate::options::Addressing;

const DEVICE: &str = "tun-device";
const NETWORK: &str = "guest-network";
const PROC: &str = "guest-proc";
const OFFLOADS: &str = "tap-offloads";

/// Command line whose trace shows the failed step.
const TRACED: &str = "run true";

/// Error of a step, and its advice.
type Advised = (String, Option<String>);

/// Guest that was started up to its command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Prepared {
    /// True for each of the header with metadata, TSO and USO that the tap has.
    offload: [bool; 3],
    /// True if the guest has its own `/proc`; `None` if this process may not inspect it.
    own_proc: Option<bool>,
}

/// Checks that `/dev/net/tun` can be opened.
pub(super) fn device() -> Check {
    let tried = trial::run(DEADLINE, || {
        tun::probe().map_err(|error| advised(&tap::refused(&error, 1)))
    });
    match tried {
        Ok(result) => judge_device(result),
        Err(error) => Check::incomplete(DEVICE, &error),
    }
}

fn judge_device(result: Result<(), Advised>) -> Check {
    match result {
        Ok(()) => Check::ok(DEVICE, "/dev/net/tun can be opened"),
        Err((found, advice)) => {
            let consequence = "pontoon run does not start; pontoon vm does not use the device";
            let remedy = remedy(&found, advice.as_deref(), TRACED);
            Check::finding(Status::Failure, DEVICE, found, consequence, remedy)
        }
    }
}

/// Returns the results of [`checks`] if they are not tried because the check `cause` has failed.
pub(super) fn skipped(cause: &str) -> Vec<Check> {
    let names = [NETWORK, PROC, OFFLOADS];
    names
        .into_iter()
        .map(|name| Check::skipped(name, cause))
        .collect()
}

/// Starts a guest up to its command, as `pontoon run` does.
pub(super) fn checks(disabled: &Disabled) -> Vec<Check> {
    let tried = trial::run(DEADLINE, || prepare(disabled).map_err(|error| advised(&error)));
    match tried {
        Ok(result) => judge(result, disabled),
        Err(error) => vec![Check::incomplete(NETWORK, &error)],
    }
}

fn judge(result: Result<Prepared, Advised>, disabled: &Disabled) -> Vec<Check> {
    match result {
        Err((found, advice)) => {
            let remedy = remedy(&found, advice.as_deref(), TRACED);
            let found = Check::finding(
                Status::Failure,
                NETWORK,
                found,
                "pontoon run does not start",
                remedy,
            );
            let rest = skipped(NETWORK).into_iter().skip(1);
            [found].into_iter().chain(rest).collect()
        }
        Ok(prepared) => {
            let proc = match prepared.own_proc {
                Some(false) => Check::finding(
                    Status::Loss,
                    PROC,
                    "the kernel refuses to mount /proc, as parts of the host's are covered",
                    "the guest of pontoon run sees the processes of the host in /proc",
                    Fix::user(
                        "the container option --security-opt systempaths=unconfined (podman: unmask=ALL)",
                    ),
                ),
                Some(true) => Check::ok(PROC, "the guest has its own /proc"),
                None => Check::ok(PROC, "not known: this process may not inspect the guest"),
            };
            let network = Check::ok(NETWORK, "a guest's tap, addresses, routes and mounts can be made");
            vec![network, proc, offloads(prepared.offload, disabled)]
        }
    }
}

fn offloads([header, tso, uso]: [bool; 3], disabled: &Disabled) -> Check {
    let names = [("checksums", header), ("TSO", tso), ("USO", uso)];
    let list = |has: bool| {
        let names = names.into_iter().filter(|(_, is)| *is == has);
        names.map(|(name, _)| name).collect::<Vec<_>>().join(", ")
    };
    if header && tso && uso {
        return Check::ok(OFFLOADS, list(true));
    }
    let is_disabled = disabled.vnet_hdr || disabled.tso || disabled.uso;
    let consequence = match (header, tso) {
        (false, _) | (_, false) => {
            "bulk transfers are slower: the guest sends packets of the size of its MTU"
        }
        _ => "UDP bulk transfers are slower: the guest sends datagrams one by one",
    };
    let fix = features::newer(is_disabled, "6.2");
    Check::finding(
        Status::Loss,
        OFFLOADS,
        format!("the tap lacks {}", list(false)),
        consequence,
        fix,
    )
}

fn prepare(disabled: &Disabled) -> Result<Prepared, Error> {
    let cannot = |what: &str, error: &std::io::Error| Error::new(format!("{what}: {}", reason(error)));
    let mut netlink = Netlink::open().map_err(|error| cannot("cannot open a netlink socket", &error))?;
    let network = HostNetwork::read(&mut netlink)
        .map_err(|error| cannot("cannot read the host's addresses", &error))?;
    let plan = address_plan::choose(&Addressing::default(), &network, &mut netlink)?.plan;
    let resolvers: Vec<_> = plan.dns().map(|dns| dns.to_string()).collect();
    let config = init::InitConfig {
        tap: tap::TapConfig {
            ifname: "tap0".to_owned(),
            mac: GUEST_MAC,
            mtu: MOST_MTU,
            plan,
            offload: TapOffload::all_but(disabled),
            queues: 1,
            configure: true,
            loopback: true,
        },
        resolv_conf: Some(render(&resolvers, &[])),
        hostname: None,
        argv: Vec::new(),
        descriptors: getrlimit(Resource::Nofile),
        keep_capabilities: false,
        filter: !disabled.seccomp,
        require_sandbox: false,
    };
    let (guest, tap) = command::start(&config)?;
    guest.prepared()?;
    let device = |path: &str| std::fs::metadata(path).map(|file| file.dev());
    let theirs = device(&format!("/proc/{}/root/proc", guest.pid().as_raw_nonzero()));
    Ok(Prepared {
        offload: [tap.offload.vnet_hdr, tap.offload.tso, tap.offload.uso],
        own_proc: theirs
            .ok()
            .zip(device("/proc").ok())
            .map(|(theirs, ours)| theirs != ours),
    })
}

fn advised(error: &Error) -> Advised {
    let (what, advice, _) = error.parts();
    (what.to_owned(), advice.map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn each_error_of_the_device_has_its_command() {
        let fix = |number| {
            let error = io::Error::from_raw_os_error(number);
            let text = format!("cannot open /dev/net/tun: {error}");
            let error = io::Error::new(error.kind(), text);
            let check = judge_device(Err(advised(&tap::refused(&error, 1))));
            assert_eq!(check.status, Status::Failure);
            check.fix.unwrap()
        };
        let node = Fix::root("mkdir -p /dev/net && mknod -m 666 /dev/net/tun c 10 200");
        assert_eq!(fix(libc::ENOENT), node);
        assert_eq!(fix(libc::EACCES), Fix::root("chmod 666 /dev/net/tun"));
        assert_eq!(
            fix(libc::EPERM),
            Fix::user("the container option --device /dev/net/tun")
        );
        assert_eq!(fix(libc::ENODEV), Fix::root("modprobe tun"));
        assert_eq!(judge_device(Ok(())).status, Status::Ok);
    }

    #[test]
    fn failed_start_is_a_failure_with_its_advice() {
        let failed = ("cannot set addresses".to_owned(), Some("--no-ipv6".to_owned()));
        let checks = judge(Err(failed), &Disabled::default());
        let statuses: Vec<_> = checks.iter().map(|check| check.status).collect();
        assert_eq!(statuses, [Status::Failure, Status::Skipped, Status::Skipped]);
        assert_eq!(checks[0].fix, Some(Fix::user("--no-ipv6")));
        assert_eq!(checks[1].found, "not tried because of guest-network");
    }

    #[test]
    fn missing_offloads_and_a_foreign_proc_are_losses() {
        let prepared = |offload, own_proc| judge(Ok(Prepared { offload, own_proc }), &Disabled::default());
        let good = prepared([true; 3], Some(true));
        assert!(good.iter().all(|check| check.status == Status::Ok), "{good:?}");
        let old = prepared([true, true, false], Some(false));
        assert_eq!(old[1].status, Status::Loss);
        assert_eq!(old[2].found, "the tap lacks USO");
        assert!(old[2].consequence.as_ref().unwrap().starts_with("UDP bulk"));
        let none = prepared([false; 3], None);
        assert_eq!(none[1].status, Status::Ok);
        assert_eq!(none[2].found, "the tap lacks checksums, TSO, USO");
        assert_eq!(skipped("tun-device").len(), good.len());
    }
}
