//! What is said over the socket.

use pontoon_ring::Features;
use vhost::vhost_user::message::VhostUserHeaderFlag;
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use super::AttachError;
use super::mapping::Mapping;

/// A vhost-user session, from the front-end's side.
pub(super) struct Session {
    frontend: Frontend,
    features: u64,
}

/// VIRTIO_F_EVENT_IDX.
const EVENT_IDX: u64 = 1 << 29;
/// VHOST_USER_F_PROTOCOL_FEATURES.
const PROTOCOL: u64 = 1 << 30;
/// VIRTIO_F_VERSION_1.
const VERSION_1: u64 = 1 << 32;

impl Session {
    /// Takes the features that the interface has a use for: frames are whole, and their checksums finished.
    pub(super) fn negotiate(mut frontend: Frontend) -> Result<Self, AttachError> {
        frontend.set_owner()?;
        let features = frontend.get_features()? & (VERSION_1 | PROTOCOL | EVENT_IDX);
        if features & VERSION_1 == 0 {
            return Err(AttachError::Legacy);
        }
        if features & PROTOCOL != 0 {
            // With answers, what the device refuses is known before a frame is lost.
            let protocol = frontend.get_protocol_features()? & VhostUserProtocolFeatures::REPLY_ACK;
            frontend.set_protocol_features(protocol)?;
            if !protocol.is_empty() {
                frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
            }
        }
        frontend.set_features(features)?;
        Ok(Self { frontend, features })
    }

    /// What the rings have to know.
    pub(super) fn features(&self) -> Features {
        Features {
            event_idx: self.features & EVENT_IDX != 0,
            indirect: false,
        }
    }

    /// Tells the device of the memory.
    pub(super) fn share(&self, mapping: &Mapping) -> Result<(), AttachError> {
        self.frontend.set_mem_table(&mapping.regions()?)?;
        Ok(())
    }

    /// Tells the device of a ring.
    pub(super) fn set_up(
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

    /// Tells the device to begin with both rings.
    pub(super) fn enable(&mut self) -> Result<(), AttachError> {
        // Without the feature a ring is enabled from its first kick on.
        if self.features & PROTOCOL != 0 {
            self.frontend.set_vring_enable(0, true)?;
            self.frontend.set_vring_enable(1, true)?;
        }
        Ok(())
    }
}
