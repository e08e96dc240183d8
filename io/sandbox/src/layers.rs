//! The layers of the sandbox, each of which is active, refused by the host or disabled.

use std::fmt;

/// One layer of the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layer {
    /// The layer is in force; the text describes it.
    Active(String),
    /// The host does not support it, or only in part; the text is the reason.
    Refused(String),
    /// Switched off for a test (`PONTOON_DISABLE`).
    Disabled,
}

/// The layers that a host may refuse. No capability, `no_new_privs` and not being dumpable are never missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layers {
    /// Namespaces of its own.
    pub namespaces: Layer,
    /// An empty root.
    pub root: Layer,
    /// Landlock, for files, signals and abstract sockets.
    pub landlock: Layer,
    /// The list of system calls.
    pub seccomp: Layer,
}

impl Layers {
    /// The names of the layers, in the order in which they are entered.
    pub const NAMES: [&'static str; 4] = ["namespaces", "root", "landlock", "seccomp"];

    /// Each layer by its name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Layer)> {
        Self::NAMES.into_iter().zip(self.all())
    }

    /// Returns the gauge of each layer: 1 if it is active, else 0.
    #[must_use]
    pub fn gauges(&self) -> [u64; Self::NAMES.len()] {
        self.all()
            .map(|layer| u64::from(matches!(layer, Layer::Active(_))))
    }

    fn all(&self) -> [&Layer; Self::NAMES.len()] {
        [&self.namespaces, &self.root, &self.landlock, &self.seccomp]
    }

    /// Returns true if every layer is in force.
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
