//! State of the sandbox's layers, each of which is active, refused by the host or disabled.

use std::error::Error;
use std::{fmt, io, iter};

/// State of one layer of the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layer {
    /// The layer is active; the text lists details, for example the types of namespaces.
    Active(String),
    /// The host does not support the layer, or only in part; the text is the reason.
    Refused(String),
    /// The layer was disabled by `PONTOON_DISABLE`, for a test.
    Disabled,
}

/// States of the layers that a host may refuse. The other layers (no capability, `no_new_privs`, not dumpable) are
/// always active.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layers {
    /// Namespaces of the process's own, other than the network namespace.
    pub namespaces: Layer,
    /// Empty root directory in the mount namespace.
    pub root: Layer,
    /// Landlock, which restricts files, signals and abstract Unix sockets.
    pub landlock: Layer,
    /// Seccomp filters with the list of permitted system calls.
    pub seccomp: Layer,
}

impl Layer {
    /// Returns the layer that `error` prevented.
    ///
    /// # Errors
    /// There was no free memory or descriptor. The process must not run without the layer for that reason, because the
    /// shortage may be temporary. ENOMEM of seccomp(2) may also be permanent: the filters that the process has
    /// inherited and this one together have more than 32,768 instructions (`MAX_INSNS_PER_PATH`). The two cases cannot
    /// be distinguished, so the process does not start in either.
    pub(crate) fn refused(error: &(dyn Error + 'static)) -> io::Result<Self> {
        let causes = iter::successors(Some(error), |&error| error.source());
        let short = causes
            .filter_map(|cause| cause.downcast_ref::<io::Error>()?.raw_os_error())
            .find(|number| matches!(*number, libc::ENOMEM | libc::EAGAIN | libc::EMFILE | libc::ENFILE));
        match short {
            Some(number) => Err(io::Error::from_raw_os_error(number)),
            None => Ok(Self::Refused(error.to_string())),
        }
    }
}

impl Layers {
    /// The names of the layers, in the order in which they are entered.
    pub const NAMES: [&'static str; 4] = ["namespaces", "root", "landlock", "seccomp"];

    /// Each layer by its name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Layer)> {
        Self::NAMES.into_iter().zip(self.all())
    }

    /// Returns the value of each layer's gauge in the metrics, in the order of [`Self::NAMES`]: 1 if the layer is active, else 0.
    #[must_use]
    pub fn gauges(&self) -> [u64; Self::NAMES.len()] {
        self.all()
            .map(|layer| u64::from(matches!(layer, Layer::Active(_))))
    }

    fn all(&self) -> [&Layer; Self::NAMES.len()] {
        [&self.namespaces, &self.root, &self.landlock, &self.seccomp]
    }

    /// Returns true if all layers are active.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.missing().is_empty()
    }

    /// Returns true if the host refused a layer.
    #[must_use]
    pub fn any_refused(&self) -> bool {
        self.iter().any(|(_, layer)| matches!(layer, Layer::Refused(_)))
    }

    /// Returns the layers that are not active, with reasons; empty if all are active.
    #[must_use]
    pub fn missing(&self) -> String {
        let missing = self
            .iter()
            .filter(|(_, layer)| !matches!(layer, Layer::Active(_)));
        let named: Vec<String> = missing.map(|(name, layer)| format!("{name}: {layer}")).collect();
        named.join("; ")
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Active(form) => f.write_str(form),
            Self::Refused(why) => write!(f, "refused, {why}"),
            Self::Disabled => f.write_str("disabled"),
        }
    }
}

impl fmt::Display for Layers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (name, layer)) in self.iter().enumerate() {
            let separator = if place == 0 { "" } else { "; " };
            write!(f, "{separator}{name}: {layer}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortage_is_not_taken_for_a_refusal() {
        let failed = |number| {
            let error = seccompiler::Error::Seccomp(io::Error::from_raw_os_error(number));
            Layer::refused(&error)
        };
        for number in [libc::EPERM, libc::ENOSYS, libc::EINVAL, libc::EOPNOTSUPP] {
            assert!(matches!(failed(number), Ok(Layer::Refused(_))), "{number}");
        }
        for number in [libc::ENOMEM, libc::EAGAIN, libc::EMFILE, libc::ENFILE] {
            assert_eq!(failed(number).unwrap_err().raw_os_error(), Some(number));
        }
    }

    #[test]
    fn layers_in_force_and_refused_layers_are_listed() {
        let active = |form: &str| Layer::Active(form.to_owned());
        let mut layers = Layers {
            namespaces: active("user, mount"),
            root: active("empty"),
            landlock: active("version 7"),
            seccomp: active("60 calls"),
        };
        assert!(layers.complete() && !layers.any_refused());
        assert_eq!(layers.gauges(), [1; 4]);
        layers.landlock = Layer::Refused("no such system call".to_owned());
        assert!(!layers.complete() && layers.any_refused());
        assert_eq!((Layers::NAMES[2], layers.gauges()), ("landlock", [1, 1, 0, 1]));
        layers.seccomp = Layer::Disabled;
        assert_eq!(
            layers.to_string(),
            "namespaces: user, mount; root: empty; landlock: refused, no such system call; seccomp: disabled"
        );
        assert_eq!(
            layers.missing(),
            "landlock: refused, no such system call; seccomp: disabled"
        );
        layers.landlock = active("version 7");
        assert!(!layers.complete() && !layers.any_refused());
    }
}
