//! What a state contains about the upstream proxy: the addresses that stand for names, and the learned addresses of its rules.

use pontoon_names::HostName;

use super::names::{MOST_NAMES, ProxyNames};
use super::{Proxy, ProxyDestinations};
use crate::Instant;
use crate::state::{Reader, StateError, Writer, check};

impl Proxy {
    /// Appends what the guest has learned, if `is_first` is true: all workers share it.
    pub(crate) fn save(&self, to: &mut Writer<'_>, is_first: bool) {
        let Self {
            // The configuration.
            protocol: _,
            addresses: _,
            credentials: _,
            destinations: ProxyDestinations { through, direct },
            names,
        } = self;
        to.put(&through.is_some());
        for rules in through.iter().chain([direct]) {
            rules.save(to, is_first);
        }
        let entries = names.as_ref().filter(|_| is_first).map(ProxyNames::entries);
        let entries = entries.unwrap_or_default();
        to.count(entries.len());
        for (name, used) in entries {
            to.put(&name.as_str().as_bytes().to_vec());
            to.put(&used);
        }
    }

    /// Reads what [`Self::save`] has written.
    pub(crate) fn load(&self, from: &mut Reader<'_>) -> Result<(), StateError> {
        let ProxyDestinations { through, direct } = &self.destinations;
        check(from.get::<bool>()? == through.is_some())?;
        for rules in through.iter().chain([direct]) {
            rules.load_shared(from)?;
        }
        for _ in 0..from.count(MOST_NAMES as usize)? {
            let name = HostName::from_octets(&from.get::<Vec<u8>>()?);
            let name = name.map_err(|_| StateError::Malformed)?;
            let used: Instant = from.get()?;
            if let Some(names) = &self.names {
                check(names.restore(name, used))?;
            }
        }
        Ok(())
    }
}
