//! resolv.conf(5): the host's, read and followed; the guest's, written.

use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::inotify;
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

/// Where it is.
pub(crate) const PATH: &str = "/etc/resolv.conf";

/// What a resolv.conf says.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Resolv {
    /// Name servers, in order of preference.
    pub(crate) servers: Vec<SocketAddr>,
    /// Search domains.
    pub(crate) search: Vec<String>,
}

impl Resolv {
    /// Reads the host's. A file that is not there says what an empty one says.
    #[must_use]
    pub(crate) fn host() -> Self {
        let text = std::fs::read(PATH).unwrap_or_default();
        Self::parse(&String::from_utf8_lossy(&text), interface_index)
    }

    /// `index_of` turns the name of an interface, behind a `%`, into its number.
    pub(crate) fn parse(text: &str, index_of: impl Fn(&str) -> Option<u32>) -> Self {
        let mut resolv = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let server = words.next().and_then(|word| parse_server(word, &index_of));
                    resolv.servers.extend(server);
                }
                // The last of these lines counts.
                Some("search") => resolv.search = words.map(str::to_owned).collect(),
                Some("domain") => resolv.search = words.take(1).map(str::to_owned).collect(),
                _ => {}
            }
        }
        if resolv.servers.is_empty() {
            resolv.servers.push((Ipv4Addr::LOCALHOST, DNS).into());
        }
        resolv
    }
}

fn parse_server(word: &str, index_of: impl Fn(&str) -> Option<u32>) -> Option<SocketAddr> {
    let (address, scope) = match word.split_once('%') {
        None => (word, 0),
        Some((address, name)) => (address, name.parse().ok().or_else(|| index_of(name))?),
    };
    Some(match address.parse().ok()? {
        IpAddr::V4(address) => (address, DNS).into(),
        IpAddr::V6(address) => SocketAddrV6::new(address, DNS, 0, scope).into(),
    })
}

fn interface_index(name: &str) -> Option<u32> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    netdevice::name_to_index(&socket, name).ok()
}

/// The guest's file.
#[must_use]
pub(crate) fn render(servers: &[IpAddr], search: &[String]) -> String {
    let mut text: String = servers
        .iter()
        .map(|server| format!("nameserver {server}\n"))
        .collect();
    if !search.is_empty() {
        text.push_str(&format!("search {}\n", search.join(" ")));
    }
    text
}

/// Follows the host's resolvers by inotify(7).
#[derive(Debug)]
pub(crate) struct ResolvWatch {
    inotify: OwnedFd,
    last: Vec<SocketAddr>,
}

impl ResolvWatch {
    /// Starts watching, then reads, so that no change falls between.
    ///
    /// # Errors
    /// No inotify instance is left (`fs.inotify.max_user_instances`).
    pub(crate) fn start() -> io::Result<(Self, Resolv)> {
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        let mut watch = Self {
            inotify,
            last: Vec::new(),
        };
        watch.arm();
        let now = Resolv::host();
        watch.last.clone_from(&now.servers);
        Ok((watch, now))
    }

    /// What to poll for reading.
    #[must_use]
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// Call it when readable: the host's resolvers, if they changed.
    ///
    /// # Errors
    /// inotify's.
    pub(crate) fn changed(&mut self) -> io::Result<Option<Vec<SocketAddr>>> {
        drain(self.inotify.as_fd())?;
        self.arm();
        let now = Resolv::host().servers;
        if now == self.last {
            return Ok(None);
        }
        self.last.clone_from(&now);
        Ok(Some(now))
    }

    /// Watches the directory (programs replace the file), the directory of what it links to, and the file itself
    /// (which may be a mount of a file elsewhere). Adding a watch again changes nothing.
    fn arm(&self) {
        let target = std::fs::canonicalize(PATH).ok();
        let parent = |path: &Path| path.parent().map(Path::to_path_buf);
        let places = [
            parent(Path::new(PATH)),
            target.as_deref().and_then(parent),
            target,
        ];
        for place in places.into_iter().flatten() {
            watch(self.inotify.as_fd(), &place);
        }
    }
}

fn watch(inotify: BorrowedFd<'_>, place: &PathBuf) {
    let events = inotify::WatchFlags::CLOSE_WRITE
        | inotify::WatchFlags::MOVED_TO
        | inotify::WatchFlags::CREATE
        | inotify::WatchFlags::DELETE;
    if let Err(error) = inotify::add_watch(inotify, place, events) {
        tracing::debug!(place = %place.display(), %error, "not watched");
    }
}

/// Takes every waiting event.
pub(crate) fn drain(inotify: BorrowedFd<'_>) -> io::Result<()> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(inotify, &mut buffer);
    loop {
        match reader.next() {
            Ok(_) => {}
            Err(rustix::io::Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

const DNS: u16 = 53;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Resolv {
        Resolv::parse(text, |name| (name == "eth0").then_some(7))
    }

    #[test]
    fn reads_servers_in_order() {
        let resolv = parse(
            "# by hand\nnameserver 192.0.2.1\nnameserver 2001:db8::1 # second\n nameserver 127.0.0.53\n",
        );
        let servers: Vec<_> = resolv.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["192.0.2.1:53", "[2001:db8::1]:53", "127.0.0.53:53"]);
    }

    #[test]
    fn reads_scopes() {
        let resolv = parse("nameserver fe80::1%eth0\nnameserver fe80::2%3\nnameserver fe80::3%gone\n");
        let servers: Vec<_> = resolv.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["[fe80::1%7]:53", "[fe80::2%3]:53"]);
    }

    #[test]
    fn the_last_search_line_counts() {
        assert_eq!(
            parse("search a.test\nsearch b.test c.test\n").search,
            ["b.test", "c.test"]
        );
        assert_eq!(parse("search a.test b.test\ndomain c.test\n").search, ["c.test"]);
    }

    #[test]
    fn nothing_means_the_local_machine() {
        for text in ["", "options ndots:2\n", "nameserver nonsense\nnameserver\n"] {
            assert_eq!(parse(text).servers, ["127.0.0.1:53".parse().unwrap()]);
        }
    }

    #[test]
    fn writes_what_it_reads() {
        let text = render(
            &["10.0.2.3".parse().unwrap(), "fd70:6f6e:746f::3".parse().unwrap()],
            &["a.test".into(), "b.test".into()],
        );
        assert_eq!(
            text,
            "nameserver 10.0.2.3\nnameserver fd70:6f6e:746f::3\nsearch a.test b.test\n"
        );
        assert_eq!(parse(&text).search, ["a.test", "b.test"]);
        assert_eq!(render(&[], &[]), "");
    }
}
