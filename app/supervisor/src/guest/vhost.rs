//! Use of `/dev/vhost-net`, a faster path between the engine and the tap.

use std::io;

use pontoon_process::error::{Error, reason};
use pontoon_sys::disabled::Disabled;
use pontoon_sys::tun::TapOffload;
use pontoon_sys::vhost::{self, PATH};
use pontoon_worker::Vhost;

use crate::options::VhostNet;

/// Returns whether and how vhost-net is used for a tap with these offloads. If `--vhost-net auto` finds it unavailable, the
/// reason is logged.
///
/// # Errors
/// `--vhost-net on` was given, and vhost-net is not available.
pub(crate) fn choose(
    mode: VhostNet,
    offload: TapOffload,
    disabled: &Disabled,
) -> Result<Option<Vhost>, Error> {
    let vhost = match mode {
        VhostNet::Off => return Ok(None),
        VhostNet::Auto => Vhost::Wanted,
        VhostNet::On => Vhost::Required,
    };
    match usable(offload, disabled) {
        Ok(()) => Ok(Some(vhost)),
        Err(error) if vhost == Vhost::Required => Err(error),
        Err(error) => {
            tracing::info!("vhost-net is not available, using the tap: {error}");
            Ok(None)
        }
    }
}

/// Checks that vhost-net can be used for a tap with these offloads.
///
/// # Errors
/// The reason why not.
pub(crate) fn usable(offload: TapOffload, disabled: &Disabled) -> Result<(), Error> {
    if disabled.vhost_net {
        return Err(Error::new("disabled by PONTOON_DISABLE"));
    }
    if !offload.vnet_hdr {
        return Err(Error::new("vhost-net needs offloads").advise("without --no-offload"));
    }
    vhost::check().map_err(|error| unavailable(&error))
}

fn unavailable(error: &io::Error) -> Error {
    let plain = Error::new(format!("cannot open {PATH}: {}", reason(error)));
    match error.kind() {
        io::ErrorKind::NotFound => plain.advise("as root: modprobe vhost_net"),
        io::ErrorKind::PermissionDenied => {
            plain.advise("as a member of the device's group, or --vhost-net off")
        }
        _ => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: TapOffload = TapOffload {
        vnet_hdr: true,
        tso: true,
        uso: true,
    };

    fn disabled() -> Disabled {
        Disabled {
            vhost_net: true,
            ..Disabled::default()
        }
    }

    #[test]
    fn missing_device_is_an_error_with_on_only() {
        assert!(matches!(choose(VhostNet::Auto, METADATA, &disabled()), Ok(None)));
        assert!(choose(VhostNet::On, METADATA, &disabled()).is_err());
        assert!(matches!(
            choose(VhostNet::Auto, TapOffload::NONE, &Disabled::default()),
            Ok(None)
        ));
        let error = choose(VhostNet::On, TapOffload::NONE, &Disabled::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "vhost-net needs offloads (try: without --no-offload)"
        );
    }

    #[test]
    fn off_does_not_use_the_device() {
        assert!(matches!(
            choose(VhostNet::Off, METADATA, &Disabled::default()),
            Ok(None)
        ));
    }

    #[test]
    fn errors_of_the_device_have_advice() {
        let text = |errno| unavailable(&io::Error::from_raw_os_error(errno)).to_string();
        assert_eq!(
            text(libc::ENOENT),
            "cannot open /dev/vhost-net: no such file or directory (try: as root: modprobe vhost_net)"
        );
        assert_eq!(
            text(libc::EACCES),
            "cannot open /dev/vhost-net: permission denied (try: as a member of the device's group, or --vhost-net off)"
        );
    }
}
