//! IP header fields of the datagrams that a host socket sends: TTL, traffic class, DF.

use std::os::fd::AsFd;

use pontoon_engine::host::DatagramMeta;
use pontoon_sys::{Family, udp};
use rustix::io::Errno;

/// The header fields that most guests' datagrams have.
pub(super) const USUAL: DatagramMeta = DatagramMeta {
    hop_limit: 64,
    traffic_class: 0,
    dont_fragment: true,
};

/// Header fields that are set as options of a host socket now; `None` if they are not known. Setting an option when the
/// value changes is cheaper than a control message with every send: the fields of a flow practically never change, and
/// DF has no control message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DatagramOptions(Option<DatagramMeta>);

impl DatagramOptions {
    /// Sets the options of the socket so that the next datagrams have the header fields in `meta`.
    pub(super) fn apply(
        &mut self,
        socket: impl AsFd,
        family: Family,
        meta: DatagramMeta,
    ) -> Result<(), Errno> {
        let now = self.0;
        if now == Some(meta) {
            return Ok(());
        }
        // If an option cannot be set, the current values are unknown.
        self.0 = None;
        if now.is_none_or(|now| now.hop_limit != meta.hop_limit) {
            udp::set_hop_limit(&socket, family, meta.hop_limit)?;
        }
        if now.is_none_or(|now| now.traffic_class != meta.traffic_class) {
            udp::set_traffic_class(&socket, family, meta.traffic_class)?;
        }
        if now.is_none_or(|now| now.dont_fragment != meta.dont_fragment) {
            udp::set_dont_fragment(&socket, family, meta.dont_fragment)?;
        }
        self.0 = Some(meta);
        Ok(())
    }
}

/// Returns the header fields of a received datagram from its control messages. The kernel does not report DF.
pub(super) fn received(beside: &udp::Ancillary) -> DatagramMeta {
    DatagramMeta {
        hop_limit: beside.hop_limit.unwrap_or(64),
        traffic_class: beside.traffic_class.unwrap_or(0),
        dont_fragment: false,
    }
}
