//! Groups received datagrams with the same output and length into bursts, each of which is sent by one system call.
//!
//! Each call costs one pass through the kernel's stack, whatever the number of datagrams in it (`UDP_SEGMENT`), so
//! fewer bursts are better; but no flow may be reordered. Bursts are sent in the order in which they were started. A
//! datagram may join any open burst with its key, unless a later burst already has a datagram of its flow.

use rustc_hash::FxHashMap;

#[cfg(test)]
mod tests;

/// Maximum number of datagrams that one `UDP_SEGMENT` send may contain (`UDP_MAX_SEGMENTS`, which later kernels have
/// raised).
pub const MAX_DATAGRAMS: usize = 64;

/// Maximum number of payload bytes of one send: the longest UDP packet minus the longest headers.
pub const MAX_BYTES: usize = 65_000;

/// Groups the datagrams of one batch into bursts. Datagrams with equal keys `K` can be sent by one call; `P` is the
/// location of a payload in the receive ring.
#[derive(Debug)]
pub struct BurstGather<K, P> {
    bursts: Vec<OpenBurst<K>>,
    pieces: Vec<LinkedPayload<P>>,
    /// Index in `bursts` of the open burst of each key and datagram size.
    open: FxHashMap<(K, usize), usize>,
    /// Index of the burst that the previous datagram joined; the next datagram often joins it, too.
    last: usize,
    /// For each flow hash, one more than the index of the latest burst that contains a datagram of the flow; 0 if there
    /// is none.
    latest: [usize; FLOWS],
}

/// Number of flow hashes that are distinguished. Flows with equal hashes share fewer bursts, and are not reordered
/// either.
const FLOWS: usize = 256;

/// A burst to which datagrams are added, unless it is sealed.
#[derive(Debug)]
struct OpenBurst<K> {
    key: K,
    /// Bytes of payload in each datagram of the burst except the last.
    size: usize,
    datagrams: usize,
    bytes: usize,
    sealed: bool,
    first: usize,
    last: usize,
}

/// Location of a payload, with the index of the next payload of the same burst.
#[derive(Debug)]
struct LinkedPayload<P> {
    location: P,
    next: usize,
}

/// Index that marks the end of a burst's list of payloads.
const NONE: usize = usize::MAX;

/// The datagrams of one burst, which are sent by one system call.
#[derive(Debug)]
pub struct DatagramBatch<'a, K, P> {
    /// Key that the datagrams have in common, such as their rule.
    pub key: K,
    /// Bytes of each datagram except the last, which may be shorter.
    pub size: usize,
    /// Number of datagrams in the burst.
    pub datagrams: usize,
    /// Total bytes of payload in the burst.
    pub bytes: usize,
    pieces: &'a [LinkedPayload<P>],
    first: usize,
}

impl<K: Copy + Eq + std::hash::Hash, P: Copy> BurstGather<K, P> {
    /// Allocates memory for batches of up to `batch` packets.
    #[must_use]
    pub fn new(batch: usize) -> Self {
        Self {
            bursts: Vec::with_capacity(batch),
            pieces: Vec::with_capacity(batch),
            open: FxHashMap::with_capacity_and_hasher(batch, Default::default()),
            last: NONE,
            latest: [0; FLOWS],
        }
    }

    /// Adds a datagram of `bytes` bytes to a burst; `flow` is a hash of its source and destination.
    pub fn push(&mut self, key: K, flow: usize, bytes: usize, location: P) {
        let piece = self.piece(location);
        let flow = flow % FLOWS;
        if let Some(burst) = self.find_burst(key, bytes, self.latest[flow]) {
            let open = &mut self.bursts[burst];
            self.pieces[open.last].next = piece;
            open.last = piece;
            open.datagrams += 1;
            open.bytes += bytes;
            open.sealed = bytes < open.size || open.datagrams == MAX_DATAGRAMS;
            (self.last, self.latest[flow]) = (burst, burst + 1);
            return;
        }
        // The kernel would drop an empty datagram at the end of a `UDP_SEGMENT` send.
        let sealed = bytes == 0;
        let burst = self.start_burst(key, (bytes, 1, bytes), sealed, piece);
        if !sealed {
            self.open.insert((key, bytes), burst);
        }
        (self.last, self.latest[flow]) = (burst, burst + 1);
    }

    /// Adds datagrams of one flow that were received as one packet: `bytes` bytes in datagrams of `size` bytes, the
    /// last one possibly shorter.
    pub fn push_coalesced(&mut self, key: K, flow: usize, bytes: usize, size: usize, location: P) {
        let piece = self.piece(location);
        let datagrams = bytes.div_ceil(size.max(1)).max(1);
        let burst = self.start_burst(key, (size, datagrams, bytes), true, piece);
        self.latest[flow % FLOWS] = burst + 1;
    }

    /// Returns the bursts in the order in which they are sent.
    pub fn bursts(&self) -> impl Iterator<Item = DatagramBatch<'_, K, P>> {
        self.bursts.iter().map(|open| DatagramBatch {
            key: open.key,
            size: open.size,
            datagrams: open.datagrams,
            bytes: open.bytes,
            pieces: &self.pieces,
            first: open.first,
        })
    }

    /// Removes all datagrams before the next batch.
    pub fn clear(&mut self) {
        self.bursts.clear();
        self.pieces.clear();
        self.open.clear();
        self.last = NONE;
        self.latest = [0; FLOWS];
    }

    fn piece(&mut self, location: P) -> usize {
        self.pieces.push(LinkedPayload { location, next: NONE });
        self.pieces.len() - 1
    }

    fn start_burst(
        &mut self,
        key: K,
        (size, datagrams, bytes): (usize, usize, usize),
        sealed: bool,
        piece: usize,
    ) -> usize {
        self.bursts.push(OpenBurst {
            key,
            size,
            datagrams,
            bytes,
            sealed,
            first: piece,
            last: piece,
        });
        self.bursts.len() - 1
    }

    /// Returns an open burst to which a datagram of `bytes` bytes can be added; its index is at least `earliest - 1`.
    fn find_burst(&self, key: K, bytes: usize, earliest: usize) -> Option<usize> {
        let takes = |burst: usize| {
            let open = self.bursts.get(burst)?;
            let fits = !open.sealed && open.key == key && bytes > 0 && open.bytes + bytes <= MAX_BYTES;
            (fits && bytes <= open.size && burst + 1 >= earliest).then_some(burst)
        };
        // A shorter datagram ends its burst. If the burst belongs to another flow, it is not ended, because it could
        // still grow.
        let last =
            takes(self.last).filter(|burst| self.bursts[*burst].size == bytes || burst + 1 == earliest);
        last.or_else(|| takes(*self.open.get(&(key, bytes))?))
    }
}

impl<K, P: Copy> DatagramBatch<'_, K, P> {
    /// Returns the locations of the payloads in the order in which the datagrams were received.
    pub fn locations(&self) -> impl Iterator<Item = P> {
        let mut at = self.first;
        std::iter::from_fn(move || {
            let piece = self.pieces.get(at)?;
            at = piece.next;
            Some(piece.location)
        })
    }
}
