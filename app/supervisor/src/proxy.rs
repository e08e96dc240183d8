//! The upstream proxy of the guest's TCP connections (`--proxy`): its addresses, and the credentials.

use std::fs::File;
use std::io::{self, Read};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipnet::IpNet;
use pontoon_engine::address_plan::AddressPlan;
use pontoon_engine::egress::Match;
use pontoon_engine::proxy::{NETWORKS, Proxy, ProxyDestinations, ProxyNames};
use pontoon_process::error::{Context as _, Error};
pub use pontoon_proxy::{Credentials, Host, ProxyUrl, UrlError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Options of the upstream proxy.
#[derive(Clone, Debug)]
pub struct ProxyOptions {
    /// Address of the proxy.
    pub url: ProxyUrl,
    /// File with the user name and password.
    pub credentials: Option<PathBuf>,
    /// Destinations that the guest reaches through the proxy; if empty, all.
    pub through: Vec<Match>,
    /// Destinations that the guest reaches without the proxy.
    pub direct: Vec<Match>,
    /// True if the proxy resolves the names of its destinations.
    pub resolves_names: bool,
}

impl ProxyOptions {
    /// Resolves the proxy's name, and reads the credentials.
    ///
    /// # Errors
    /// The name has no address, the file contains no credentials, or the guest's subnet contains addresses that stand for
    /// names.
    pub(crate) fn open(&self, plan: &AddressPlan) -> Result<Arc<Proxy>, Error> {
        if self.resolves_names {
            check_subnets(plan)?;
        }
        Ok(Arc::new(Proxy {
            protocol: self.url.protocol,
            addresses: addresses(&self.url)?,
            credentials: self.credentials.as_deref().map(read).transpose()?,
            destinations: ProxyDestinations::new(&self.through, &self.direct),
            names: self.resolves_names.then(ProxyNames::default),
        }))
    }
}

/// Returns the addresses of the proxy, at most [`MOST_ADDRESSES`].
fn addresses(url: &ProxyUrl) -> Result<Vec<SocketAddr>, Error> {
    let name = match &url.host {
        Host::Address(address) => return Ok(vec![(*address, url.port).into()]),
        Host::Name(name) => name,
    };
    let cannot = format!("cannot resolve the name of the proxy {url}");
    let resolved = (name.as_str(), url.port).to_socket_addrs().context(&cannot)?;
    let addresses: Vec<_> = resolved.take(MOST_ADDRESSES).collect();
    match addresses.is_empty() {
        true => Err(Error::new(cannot)),
        false => Ok(addresses),
    }
}

/// Reads credentials from a file, which may be a pipe. Errors contain no part of it.
fn read(file: &Path) -> Result<Credentials, Error> {
    let cannot = format!("cannot read the credentials of the proxy from {}", file.display());
    forbid_core_dumps().context(&cannot)?;
    let mut content = Vec::new();
    let opened = File::open(file).context(&cannot)?;
    opened
        .take(MOST_BYTES)
        .read_to_end(&mut content)
        .context(&cannot)?;
    Credentials::parse(&content).map_err(|why| Error::new(format!("{}: {why}", file.display())))
}

/// Prevents that the kernel writes a core dump of this process, which would contain the credentials. A limit of 0 would not
/// apply to a program that receives core dumps (core(5)); one of 1 byte does. The guest's processes keep their limits.
fn forbid_core_dumps() -> io::Result<()> {
    let maximum = getrlimit(Resource::Core).maximum.map_or(1, |now| now.min(1));
    let limit = Rlimit {
        current: Some(maximum),
        maximum: Some(maximum),
    };
    Ok(setrlimit(Resource::Core, limit)?)
}

/// Checks that no subnet of the guest contains addresses that stand for names.
fn check_subnets(plan: &AddressPlan) -> Result<(), Error> {
    let v4 = plan.v4.iter().flat_map(|v4| v4.addresses().map(IpNet::V4));
    let v6 = plan.v6.iter().flat_map(|v6| v6.addresses().map(IpNet::V6));
    let overlaps = |subnet: &IpNet, network: &IpNet| {
        subnet.contains(&network.addr()) || network.contains(&subnet.addr())
    };
    for subnet in v4.chain(v6) {
        if let Some(network) = NETWORKS.iter().find(|network| overlaps(&subnet, network)) {
            let what =
                format!("--proxy-dns uses the addresses of {network}, and the guest's subnet is {subnet}");
            return Err(Error::new(what).advise("another --ipv4 or --ipv6").with_status(2));
        }
    }
    Ok(())
}

/// Maximum number of addresses of the proxy. A connection tries one after another.
const MOST_ADDRESSES: usize = 8;

/// More bytes than credentials may have: two parts of 255 bytes, a colon, and the end of the line.
const MOST_BYTES: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn options(url: &str) -> ProxyOptions {
        ProxyOptions {
            url: url.parse().unwrap(),
            credentials: None,
            through: Vec::new(),
            direct: Vec::new(),
            resolves_names: true,
        }
    }

    #[test]
    fn credentials_are_read_and_not_repeated_in_errors() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("credentials");
        let with = || ProxyOptions {
            credentials: Some(file.clone()),
            ..options("http://192.0.2.1:3128")
        };
        let plan = AddressPlan::usual(true);
        assert!(
            with()
                .open(&plan)
                .unwrap_err()
                .to_string()
                .contains("cannot read")
        );
        for wrong in ["hunter2", "hunter2:\u{1}", &"hunter2:".repeat(200)] {
            std::fs::write(&file, wrong).unwrap();
            let error = with().open(&plan).unwrap_err().to_string();
            assert!(
                error.contains("credentials") && !error.contains("hunter2"),
                "{error}"
            );
        }
        std::fs::write(&file, "user:hunter2\n").unwrap();
        let proxy = with().open(&plan).unwrap();
        assert!(proxy.credentials.is_some());
        assert!(!format!("{proxy:?}").contains("hunter2"));
    }

    #[test]
    fn subnet_with_addresses_that_stand_for_names_is_refused() {
        let mut plan = AddressPlan::usual(true);
        plan.v4.as_mut().unwrap().address = "198.19.1.15/24".parse().unwrap();
        let error = options("socks5://[::1]:1080").open(&plan).unwrap_err();
        assert!(error.to_string().contains("198.18.0.0/15"), "{error}");
    }

    #[test]
    fn name_of_the_proxy_is_resolved() {
        let addresses = addresses(&"http://localhost:3128".parse().unwrap()).unwrap();
        assert!(
            addresses
                .iter()
                .all(|address| address.ip().is_loopback() && address.port() == 3128)
        );
    }
}
