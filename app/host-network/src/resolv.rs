//! Parser and watch of the host's resolv.conf(5), and the text of the guest's.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::inotify;
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use crate::file_watch::{FileWatch, LOOK_AGAIN};

/// Path of the host's resolv.conf.
pub const PATH: &str = "/etc/resolv.conf";

/// Parsed content of a resolv.conf.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Resolv {
    /// Addresses and ports of the name servers, in order of preference.
    pub servers: Vec<SocketAddr>,
    /// DNS search domains.
    pub search: Vec<String>,
}

impl Resolv {
    /// Reads the host's resolv.conf. A missing file is treated as an empty one.
    #[must_use]
    pub fn host() -> Self {
        Self::read(Path::new(PATH))
    }

    fn read(path: &Path) -> Self {
        let text = std::fs::read(path).unwrap_or_default();
        Self::parse(&String::from_utf8_lossy(&text), interface_index)
    }

    /// Parses the text of a resolv.conf. `index_of` returns the index of an interface by its name, the IPv6 scope that
    /// follows a `%`.
    pub fn parse(text: &str, index_of: impl Fn(&str) -> Option<u32>) -> Self {
        let mut resolv = Self::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let server = words.next().and_then(|word| parse_server(word, &index_of));
                    resolv.servers.extend(server);
                }
                // The last `search` or `domain` line replaces earlier ones.
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

/// Returns the content of a resolv.conf for the guest.
#[must_use]
pub fn render(servers: &[impl Display], search: &[String]) -> String {
    let mut text: String = servers
        .iter()
        .map(|server| format!("nameserver {server}\n"))
        .collect();
    if !search.is_empty() {
        text.push_str(&format!("search {}\n", search.join(" ")));
    }
    text
}

/// Watch of the host's resolvers.
#[derive(Debug)]
pub struct ResolvWatch {
    path: PathBuf,
    last: Vec<SocketAddr>,
    /// Attributes of the file to which the path led at the last check.
    seen: Option<FileStat>,
    /// Time of the next check without an event: inotify does not report that the target of a dangling symbolic link was
    /// created.
    due: Option<Instant>,
}

/// Attributes of a file that change when it is written or replaced (stat(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStat {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// Result of a check of the host's resolv.conf.
#[derive(Debug, Default)]
pub struct ResolvCheck {
    /// True if the file was replaced or written since the last check.
    pub touched: bool,
    /// Resolvers of the host, if they changed since the last check.
    pub servers: Option<Vec<SocketAddr>>,
}

impl ResolvWatch {
    /// Adds the watches to `files`, then reads the file, so that no change is missed.
    pub fn start(files: &mut FileWatch) -> (Self, Resolv) {
        Self::at(Path::new(PATH), files)
    }

    fn at(path: &Path, files: &mut FileWatch) -> (Self, Resolv) {
        let mut watch = Self {
            path: path.to_path_buf(),
            last: Vec::new(),
            seen: None,
            due: None,
        };
        watch.arm(files);
        watch.seen = state(path);
        let now = Resolv::read(path);
        watch.last.clone_from(&now.servers);
        (watch, now)
    }

    /// Returns the resolvers at the last check.
    #[must_use]
    pub fn servers(&self) -> &[SocketAddr] {
        &self.last
    }

    /// Returns the time to call [`Self::look`] if no event comes earlier.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.due
    }

    /// Checks if the file has changed. It is called after the events of `files` were read, and at the deadline.
    pub fn look(&mut self, files: &mut FileWatch) -> ResolvCheck {
        self.arm(files);
        let seen = state(&self.path);
        let touched = seen != self.seen;
        self.seen = seen;
        let now = Resolv::read(&self.path).servers;
        let servers = (now != self.last).then(|| now.clone());
        self.last = now;
        ResolvCheck { touched, servers }
    }

    /// Watches the directory of the file (programs replace the file), the directory of the symbolic link's target, and the
    /// file itself (which may be a mount of another file). Adding a watch again changes nothing.
    fn arm(&mut self, files: &mut FileWatch) {
        let target = std::fs::canonicalize(&self.path).ok();
        // If the symbolic link does not exist either, the creation of the file is an event of the watched directory.
        let missing = target.is_none() && self.path.is_symlink();
        let parent = |path: &Path| path.parent().map(Path::to_path_buf);
        let places = [parent(&self.path), target.as_deref().and_then(parent), target];
        let mut is_absent = false;
        for place in places.into_iter().flatten() {
            is_absent |= !watch(files, &place);
        }
        self.due = (missing || is_absent).then(|| Instant::now() + LOOK_AGAIN);
    }
}

fn state(path: &Path) -> Option<FileStat> {
    let metadata = std::fs::metadata(path).ok()?;
    Some(FileStat {
        file: (metadata.dev(), metadata.ino()),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

/// Watches the file or directory `place`; returns true if it exists.
fn watch(files: &mut FileWatch, place: &Path) -> bool {
    let events = inotify::WatchFlags::CLOSE_WRITE
        | inotify::WatchFlags::MOVED_TO
        | inotify::WatchFlags::MOVE_SELF
        | inotify::WatchFlags::CREATE
        | inotify::WatchFlags::DELETE;
    match files.add(place, events) {
        Ok(()) => true,
        Err(error) => {
            tracing::debug!(place = %place.display(), %error, "not watched");
            error != rustix::io::Errno::NOENT
        }
    }
}

const DNS: u16 = 53;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parse(text: &str) -> Resolv {
        Resolv::parse(text, |name| (name == "eth0").then_some(7))
    }

    #[test]
    fn servers_are_parsed_in_order() {
        let resolv = parse(
            "# by hand\nnameserver 192.0.2.1\nnameserver 2001:db8::1 # second\n nameserver 127.0.0.53\n",
        );
        let servers: Vec<_> = resolv.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["192.0.2.1:53", "[2001:db8::1]:53", "127.0.0.53:53"]);
    }

    #[test]
    fn scopes_of_servers_are_parsed() {
        let resolv = parse("nameserver fe80::1%eth0\nnameserver fe80::2%3\nnameserver fe80::3%gone\n");
        let servers: Vec<_> = resolv.servers.iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["[fe80::1%7]:53", "[fe80::2%3]:53"]);
    }

    #[test]
    fn last_search_line_is_used() {
        assert_eq!(
            parse("search a.test\nsearch b.test c.test\n").search,
            ["b.test", "c.test"]
        );
        assert_eq!(parse("search a.test b.test\ndomain c.test\n").search, ["c.test"]);
    }

    #[test]
    fn file_without_servers_means_the_loopback() {
        for text in ["", "options ndots:2\n", "nameserver nonsense\nnameserver\n"] {
            assert_eq!(parse(text).servers, ["127.0.0.1:53".parse().unwrap()]);
        }
    }

    /// Symbolic link to a resolv.conf in another directory, which may be missing.
    struct Linked {
        watch: ResolvWatch,
        files: FileWatch,
        target: PathBuf,
        _directory: tempfile::TempDir,
    }

    impl Linked {
        fn new(there: bool) -> Self {
            Self::by(FileWatch::default(), there)
        }

        fn by(mut files: FileWatch, there: bool) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let (path, target) = (
                directory.path().join("etc/resolv.conf"),
                directory.path().join("run/resolved/resolv.conf"),
            );
            std::fs::create_dir(directory.path().join("etc")).unwrap();
            std::os::unix::fs::symlink("../run/resolved/resolv.conf", &path).unwrap();
            if there {
                write(&target, "nameserver 192.0.2.1\n");
            }
            let (watch, now) = ResolvWatch::at(&path, &mut files);
            assert_eq!(
                now.servers,
                [server(if there { "192.0.2.1" } else { "127.0.0.1" })]
            );
            Self {
                watch,
                files,
                target,
                _directory: directory,
            }
        }

        fn deadline(&self) -> Option<Instant> {
            self.watch
                .deadline()
                .into_iter()
                .chain(self.files.deadline())
                .min()
        }

        /// Waits for a change as the supervisor does, for at most three seconds; returns the resolvers if they changed.
        fn next(&mut self) -> Option<Vec<SocketAddr>> {
            let end = Instant::now() + Duration::from_secs(3);
            while Instant::now() < end {
                let due = self.deadline();
                let until = due.map_or(end, |due| due.min(end));
                let left = until.saturating_duration_since(Instant::now());
                let mut fds: Vec<_> = self
                    .files
                    .fd()
                    .map(|fd| rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::IN))
                    .into_iter()
                    .collect();
                let is_ready = rustix::event::poll(&mut fds, Some(&left.try_into().unwrap())).unwrap() > 0;
                if is_ready || due.is_some_and(|due| due <= Instant::now()) {
                    self.files.drain().unwrap();
                    let found = self.watch.look(&mut self.files);
                    if found.servers.is_some() {
                        assert!(found.touched);
                        return found.servers;
                    }
                }
            }
            None
        }
    }

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn server(address: &str) -> SocketAddr {
        (address.parse::<IpAddr>().unwrap(), DNS).into()
    }

    #[test]
    fn target_of_a_dangling_link_is_found_when_created() {
        let mut linked = Linked::new(false);
        write(&linked.target, "nameserver 192.0.2.2\n");
        assert_eq!(linked.next(), Some(vec![server("192.0.2.2")]));
        // From here on each change causes an event.
        assert_eq!(linked.deadline(), None);
        write(&linked.target, "nameserver 192.0.2.3\n");
        assert_eq!(linked.next(), Some(vec![server("192.0.2.3")]));
    }

    #[test]
    fn recreated_directory_is_watched_again() {
        let mut linked = Linked::new(true);
        assert_eq!(linked.deadline(), None);
        let run = linked.target.parent().unwrap().to_path_buf();
        std::fs::remove_dir_all(&run).unwrap();
        assert_eq!(linked.next(), Some(vec![server("127.0.0.1")]));
        write(&linked.target, "nameserver 192.0.2.2\n");
        assert_eq!(linked.next(), Some(vec![server("192.0.2.2")]));
        assert_eq!(linked.deadline(), None);

        // The directory is also recreated after it was moved away together with its watch.
        std::fs::rename(&run, run.with_file_name("old")).unwrap();
        assert_eq!(linked.next(), Some(vec![server("127.0.0.1")]));
        write(&linked.target, "nameserver 192.0.2.3\n");
        assert_eq!(linked.next(), Some(vec![server("192.0.2.3")]));
    }

    #[test]
    fn without_inotify_changes_are_found_by_periodic_checks() {
        let mut linked = Linked::by(FileWatch::without_inotify(), true);
        assert!(linked.files.fd().is_none());
        write(&linked.target, "nameserver 192.0.2.2\n");
        assert_eq!(linked.next(), Some(vec![server("192.0.2.2")]));
        let found = linked.watch.look(&mut linked.files);
        assert!(!found.touched && found.servers.is_none(), "{found:?}");
        std::fs::remove_file(&linked.target).unwrap();
        assert_eq!(linked.next(), Some(vec![server("127.0.0.1")]));
    }

    #[test]
    fn missing_file_without_a_link_needs_no_periodic_check() {
        let directory = tempfile::tempdir().unwrap();
        let mut files = FileWatch::default();
        let (watch, _) = ResolvWatch::at(&directory.path().join("resolv.conf"), &mut files);
        assert_eq!((watch.deadline(), files.deadline()), (None, None));
    }

    #[test]
    fn rendered_file_is_parsed_to_the_same_domains() {
        let text = render(
            &["10.0.2.3", "fd70:6f6e:746f::3"],
            &["a.test".into(), "b.test".into()],
        );
        assert_eq!(
            text,
            "nameserver 10.0.2.3\nnameserver fd70:6f6e:746f::3\nsearch a.test b.test\n"
        );
        assert_eq!(parse(&text).search, ["a.test", "b.test"]);
        assert_eq!(render(&[] as &[IpAddr], &[]), "");
    }
}
