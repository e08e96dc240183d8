//! Messages of the vhost-user session by which an interface is attached.

use pontoon_ring::Features;
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use super::AttachError;
use super::mapping::Mapping;

/// The front-end side of a vhost-user session.
pub(super) struct FrontendSession {
    frontend: Frontend,
    features: u64,
}

/// Feature bit VIRTIO_F_EVENT_IDX.
const EVENT_IDX: u64 = 1 << 29;
/// Feature bit VHOST_USER_F_PROTOCOL_FEATURES.
const PROTOCOL: u64 = 1 << 30;
/// Feature bit VIRTIO_F_VERSION_1.
const VERSION_1: u64 = 1 << 32;

impl FrontendSession {
    /// Negotiates the features that the interface uses. No offload is among them: frames are whole, with complete
    /// checksums.
    pub(super) fn negotiate(mut frontend: Frontend) -> Result<Self, AttachError> {
        frontend.set_owner()?;
        let features = frontend.get_features()? & (VERSION_1 | PROTOCOL | EVENT_IDX);
        if features & VERSION_1 == 0 {
            return Err(AttachError::Legacy);
        }
        if features & PROTOCOL != 0 {
            // With replies, a refusal by the device is noticed at once, and not by lost frames.
            let protocol = frontend.get_protocol_features()? & VhostUserProtocolFeatures::REPLY_ACK;
            frontend.set_protocol_features(protocol)?;
            if !protocol.is_empty() {
                frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
            }
        }
        frontend.set_features(features)?;
        Ok(Self { frontend, features })
    }

    /// Returns the negotiated features that concern the rings.
    pub(super) fn features(&self) -> Features {
        Features {
            event_idx: self.features & EVENT_IDX != 0,
            indirect: false,
        }
    }

    /// Sends the memory of the interface to the device.
    pub(super) fn share_memory(&self, mapping: &Mapping) -> Result<(), AttachError> {
        self.frontend.set_mem_table(&mapping.regions()?)?;
        Ok(())
    }

    /// Sends size, addresses and descriptors of a ring to the device.
    pub(super) fn configure_ring(
        &self,
        number: usize,
        place: &VringConfigData,
        kick: &EventFd,
        call: &EventFd,
    ) -> Result<(), AttachError> {
        self.frontend.set_vring_num(number, place.queue_size)?;
        self.frontend.set_vring_base(number, 0)?;
        self.frontend.set_vring_addr(number, place)?;
        self.frontend.set_vring_call(number, call)?;
        self.frontend.set_vring_kick(number, kick)?;
        Ok(())
    }

    /// Enables both rings of the device (SET_VRING_ENABLE).
    pub(super) fn enable(&mut self) -> Result<(), AttachError> {
        // Without protocol features, rings are enabled when they start.
        if self.features & PROTOCOL != 0 {
            self.frontend.set_vring_enable(0, true)?;
            self.frontend.set_vring_enable(1, true)?;
        }
        Ok(())
    }
}
