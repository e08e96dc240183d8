//! The environment variable `PONTOON_DISABLE`: kernel features that the program does not use although the kernel has
//! them, so that tests can force the fallback for each.

use std::io;

/// Name of the environment variable, a comma-separated list of features.
pub const VARIABLE: &str = "PONTOON_DISABLE";

/// Kernel features that `PONTOON_DISABLE` disables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disabled {
    /// `SO_PEEK_OFF` on TCP sockets of the host.
    pub peek_off: bool,
    /// UDP segmentation offload on the tap (`TUN_F_USO4`, `TUN_F_USO6`).
    pub uso: bool,
    /// TCP segmentation offload on the tap (`TUN_F_TSO4`, `TUN_F_TSO6`).
    pub tso: bool,
    /// The socket option `UDP_SEGMENT` (GSO) on host sockets.
    pub udp_gso: bool,
    /// The socket option `UDP_GRO` on host sockets.
    pub udp_gro: bool,
    /// The tap's flag `IFF_VNET_HDR`, and with it all offloads of the tap.
    pub vnet_hdr: bool,
    /// The device `/dev/vhost-net` for the frames of a tap.
    pub vhost_net: bool,
    /// Packet sockets (`AF_PACKET`) with a receive ring, which the relay uses.
    pub packet: bool,
    /// Namespaces of the sandbox that the engine process runs in.
    pub namespaces: bool,
    /// Landlock rules of the sandbox.
    pub landlock: bool,
    /// Seccomp filter of the engine process, which limits its system calls.
    pub seccomp: bool,
    /// Limits on the memory and threads of the engine process; sanitizers do not run within these limits.
    pub limits: bool,
}

impl Disabled {
    /// Reads and parses the environment variable. It must be called before the process has a second thread.
    ///
    /// # Errors
    /// `InvalidInput`: the list contains an unknown feature; the text names it.
    pub fn from_env() -> io::Result<Self> {
        std::env::var_os(VARIABLE).map_or(Ok(Self::default()), |list| Self::parse(&list.to_string_lossy()))
    }

    /// Parses a comma-separated list of features; empty items are ignored.
    ///
    /// # Errors
    /// `InvalidInput`: the list contains an unknown feature; the text names it.
    pub fn parse(list: &str) -> io::Result<Self> {
        let mut disabled = Self::default();
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            *match word {
                "peek_off" => &mut disabled.peek_off,
                "uso" => &mut disabled.uso,
                "tso" => &mut disabled.tso,
                "udp_gso" => &mut disabled.udp_gso,
                "udp_gro" => &mut disabled.udp_gro,
                "vnet_hdr" => &mut disabled.vnet_hdr,
                "vhost_net" => &mut disabled.vhost_net,
                "packet" => &mut disabled.packet,
                "namespaces" => &mut disabled.namespaces,
                "landlock" => &mut disabled.landlock,
                "seccomp" => &mut disabled.seccomp,
                "limits" => &mut disabled.limits,
                _ => {
                    let text = format!("{VARIABLE}: unknown feature {word:?}");
                    return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
                }
            } = true;
        }
        Ok(disabled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_feature_is_parsed() {
        let all = Disabled::parse(
            "peek_off,uso,tso,udp_gso,udp_gro,vnet_hdr,vhost_net,packet,namespaces,landlock,seccomp,limits",
        )
        .unwrap();
        let expected = Disabled {
            peek_off: true,
            uso: true,
            tso: true,
            udp_gso: true,
            udp_gro: true,
            vnet_hdr: true,
            vhost_net: true,
            packet: true,
            namespaces: true,
            landlock: true,
            seccomp: true,
            limits: true,
        };
        assert_eq!(all, expected);
    }

    #[test]
    fn empty_items_are_ignored() {
        assert_eq!(Disabled::parse("").unwrap(), Disabled::default());
        let uso = Disabled {
            uso: true,
            ..Disabled::default()
        };
        assert_eq!(Disabled::parse(" uso, ").unwrap(), uso);
    }

    #[test]
    fn unknown_features_are_refused() {
        let error = Disabled::parse("uso,warp").unwrap_err();
        assert_eq!(error.to_string(), "PONTOON_DISABLE: unknown feature \"warp\"");
    }
}
