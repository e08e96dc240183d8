//! Feature bits of virtio-net and vhost-user, and their effect on frames.

use std::ops::BitOr;

use pontoon_engine::Limits;

/// A set of virtio feature bits (virtio 1.2, sections 5.1.3 and 6), with the two bits that vhost-user adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Features(pub(crate) u64);

impl Features {
    pub(crate) const CSUM: Self = Self::bit(0);
    pub(crate) const GUEST_CSUM: Self = Self::bit(1);
    pub(crate) const MTU: Self = Self::bit(3);
    pub(crate) const GUEST_TSO4: Self = Self::bit(7);
    pub(crate) const GUEST_TSO6: Self = Self::bit(8);
    pub(crate) const HOST_TSO4: Self = Self::bit(11);
    pub(crate) const HOST_TSO6: Self = Self::bit(12);
    pub(crate) const MRG_RXBUF: Self = Self::bit(15);
    pub(crate) const MQ: Self = Self::bit(22);
    /// VHOST_F_LOG_ALL: writes to guest memory are recorded in the dirty log.
    pub(crate) const LOG_ALL: Self = Self::bit(26);
    pub(crate) const INDIRECT_DESC: Self = Self::bit(28);
    pub(crate) const EVENT_IDX: Self = Self::bit(29);
    /// VHOST_USER_F_PROTOCOL_FEATURES: the protocol features of [`ProtocolFeatures`] are negotiated.
    pub(crate) const PROTOCOL: Self = Self::bit(30);
    pub(crate) const VERSION_1: Self = Self::bit(32);
    pub(crate) const GUEST_USO4: Self = Self::bit(54);
    pub(crate) const GUEST_USO6: Self = Self::bit(55);
    pub(crate) const HOST_USO: Self = Self::bit(56);

    const fn bit(bit: u32) -> Self {
        Self(1 << bit)
    }

    /// Returns the features that the device offers with this number of queue pairs.
    pub(crate) fn offered(queue_pairs: usize) -> Self {
        let multiqueue = if queue_pairs > 1 { Self::MQ } else { Self(0) };
        Self::CSUM
            | Self::GUEST_CSUM
            | Self::MTU
            | Self::GUEST_TSO4
            | Self::GUEST_TSO6
            | Self::HOST_TSO4
            | Self::HOST_TSO6
            | Self::MRG_RXBUF
            | Self::LOG_ALL
            | Self::INDIRECT_DESC
            | Self::EVENT_IDX
            | Self::PROTOCOL
            | Self::VERSION_1
            | Self::GUEST_USO4
            | Self::GUEST_USO6
            | Self::HOST_USO
            | multiqueue
    }

    /// Returns the features that an in-process device, with one queue pair, offers to its VMM.
    pub(crate) fn offered_in_process() -> Self {
        Self(Self::offered(1).0 & !(Self::LOG_ALL | Self::PROTOCOL).0)
    }

    /// Returns true if all features of `other` are in this set.
    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub(crate) fn ring(self) -> pontoon_ring::Features {
        pontoon_ring::Features {
            event_idx: self.has(Self::EVENT_IDX),
            indirect: self.has(Self::INDIRECT_DESC),
        }
    }

    /// Returns the size in bytes of the `virtio_net_hdr` in front of each frame. It contains `num_buffers` with
    /// VIRTIO_F_VERSION_1 or mergeable buffers (virtio 1.2, section 5.1.6.1).
    pub(crate) fn header_len(self) -> usize {
        if self.has(Self::VERSION_1) || self.has(Self::MRG_RXBUF) {
            12
        } else {
            10
        }
    }

    /// Returns the limits on frames to a guest with these features, whose receive queue has `size` entries.
    pub(crate) fn limits(self, mtu: usize, size: u16) -> Limits {
        // All of these features require VIRTIO_NET_F_GUEST_CSUM (virtio 1.2, section 5.1.3.1).
        let takes = |feature| self.has(Self::GUEST_CSUM | feature);
        Limits {
            mtu,
            max_gso: (usize::from(size) / 2 * BUFFER).clamp(mtu, MAX_PACKET),
            tso4: takes(Self::GUEST_TSO4),
            tso6: takes(Self::GUEST_TSO6),
            uso: takes(Self::GUEST_USO4 | Self::GUEST_USO6),
        }
    }
}

impl BitOr for Features {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A set of vhost-user protocol features (VHOST_USER_PROTOCOL_F_*).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProtocolFeatures(pub(crate) u64);

impl ProtocolFeatures {
    pub(crate) const MQ: Self = Self(1);
    pub(crate) const LOG_SHMFD: Self = Self(1 << 1);
    pub(crate) const REPLY_ACK: Self = Self(1 << 3);
    pub(crate) const NET_MTU: Self = Self(1 << 4);
    pub(crate) const CONFIGURE_MEM_SLOTS: Self = Self(1 << 15);

    /// Returns the protocol features that the device offers with this number of queue pairs.
    ///
    /// MQ is not offered with one queue pair, because front-ends disagree about the reply to GET_QUEUE_NUM: QEMU and
    /// DPDK take it as a number of pairs, Cloud Hypervisor as a number of queues, of which it requires two.
    pub(crate) fn offered(queue_pairs: usize) -> Self {
        let multiqueue = if queue_pairs > 1 { Self::MQ.0 } else { 0 };
        Self(
            Self::LOG_SHMFD.0
                | Self::REPLY_ACK.0
                | Self::NET_MTU.0
                | Self::CONFIGURE_MEM_SLOTS.0
                | multiqueue,
        )
    }

    /// Returns true if all features of `other` are in this set.
    pub(crate) fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Size in bytes of the largest IP packet, also if it will be segmented.
pub(crate) const MAX_PACKET: usize = 65_535;

/// Size in bytes of the smallest receive buffer that drivers offer. A frame may occupy at most half of the queue's
/// buffers, because one larger than the whole queue would wait forever.
const BUFFER: usize = 1536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segmentation_requires_guest_csum() {
        let all = Features::offered(1);
        let limits = all.limits(1500, 256);
        assert!(limits.tso4 && limits.tso6 && limits.uso);
        assert_eq!((limits.mtu, limits.max_gso), (1500, 65_535));

        let limits = Features(all.0 & !Features::GUEST_CSUM.0).limits(1500, 256);
        assert!(!limits.tso4 && !limits.tso6 && !limits.uso);
        let limits = Features(all.0 & !Features::GUEST_USO6.0).limits(1500, 256);
        assert!(limits.tso4 && !limits.uso);
    }

    #[test]
    fn max_gso_fits_small_queues() {
        let limits = |size| Features::offered(1).limits(1500, size).max_gso;
        assert_eq!([1, 16, 64, 128].map(limits), [1500, 12_288, 49_152, 65_535]);
    }

    #[test]
    fn header_length_depends_on_features() {
        assert_eq!(Features(0).header_len(), 10);
        assert_eq!(Features::MRG_RXBUF.header_len(), 12);
        assert_eq!(Features::VERSION_1.header_len(), 12);
    }
}
