//! Buffer pool for TCP data from the guest that host sockets do not accept yet: a limited number of blocks of 64 KiB.
//!
//! A block is a piece of some flow's `Queue` or of a flow's reordering window. All of them are one allocation, whose
//! pages cost nothing until a block is first written; the block that was freed last is allocated next.

use vm_memory::VolatileSlice;

use crate::state::{Reader, Record, StateError, Writer, check};

/// Size of a block of the buffer pool in bytes.
pub const BLOCK: usize = 64 << 10;
/// Number of blocks of one worker, 32 MiB in total.
const LIMIT: usize = 512;

/// Index of an allocated block of the buffer pool.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BlockId(u32);

/// The buffer pool of one worker, for TCP data from the guest.
#[derive(Debug)]
pub struct Pool {
    bytes: Vec<u8>,
    /// Index of the block that follows each block in its queue.
    next: Vec<Option<u32>>,
    free: Vec<u32>,
    /// Number of free blocks that are reserved for flows with a [`BlockPromise`].
    promised: usize,
}

/// Reservation of one block, which its holder may allocate at any time.
#[derive(Debug)]
pub(crate) struct BlockPromise(());

impl Default for Pool {
    fn default() -> Self {
        let blocks = u32::try_from(LIMIT).expect("LIMIT fits");
        Self {
            bytes: vec![0; LIMIT * BLOCK],
            next: vec![None; LIMIT],
            free: (0..blocks).rev().collect(),
            promised: 0,
        }
    }
}

impl Pool {
    /// Creates a pool without blocks.
    pub(crate) const fn empty() -> Self {
        Self {
            bytes: Vec::new(),
            next: Vec::new(),
            free: Vec::new(),
            promised: 0,
        }
    }

    /// Allocates a block; returns `None` if all blocks are allocated or reserved for others.
    pub(crate) fn take(&mut self) -> Option<BlockId> {
        if self.promised >= self.free.len() {
            return None;
        }
        let index = self.free.pop()?;
        self.next[index as usize] = None;
        Some(BlockId(index))
    }

    /// Reserves a block; returns `None` if half of the pool is allocated or reserved already, because flows without a
    /// reservation need the rest.
    pub(crate) fn promise(&mut self) -> Option<BlockPromise> {
        self.is_roomy().then(|| {
            self.promised += 1;
            BlockPromise(())
        })
    }

    /// Releases a reservation that is not needed any more.
    pub(crate) fn release(&mut self, BlockPromise(()): BlockPromise) {
        self.promised -= 1;
    }

    /// Returns an allocated block to the buffer pool.
    pub(crate) fn give(&mut self, block: BlockId) {
        self.free.push(block.0);
    }

    /// Returns the memory of an allocated block, 64 KiB.
    pub(crate) fn bytes(&mut self, block: &BlockId) -> &mut [u8] {
        self.at(block.0)
    }

    /// Returns the content of an allocated block.
    pub(crate) fn content(&self, block: &BlockId) -> &[u8] {
        self.content_at(block.0)
    }

    fn content_at(&self, index: u32) -> &[u8] {
        let begin = index as usize * BLOCK;
        &self.bytes[begin..begin + BLOCK]
    }

    fn at(&mut self, index: u32) -> &mut [u8] {
        let begin = index as usize * BLOCK;
        &mut self.bytes[begin..begin + BLOCK]
    }

    /// Returns the number of bytes in allocated blocks.
    #[must_use]
    pub fn in_use(&self) -> usize {
        (LIMIT - self.free.len()) * BLOCK
    }

    /// Returns true if less than half of the pool is allocated or reserved, so that a flow may use more of it than it
    /// needs.
    #[must_use]
    pub fn is_roomy(&self) -> bool {
        LIMIT - self.free.len() + self.promised < LIMIT / 2
    }
}

/// First-in first-out byte queue in blocks of the pool.
#[derive(Debug, Default)]
pub(crate) struct BlockQueue {
    head: Option<u32>,
    tail: Option<u32>,
    /// Number of bytes of the first block that were removed already.
    begin: u32,
    len: u32,
}

impl BlockQueue {
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends `part`, as far as the pool has blocks, and returns the number of bytes appended. The block of `promise`
    /// is used first.
    pub(crate) fn push(
        &mut self,
        part: VolatileSlice<'_>,
        promise: &mut Option<BlockPromise>,
        pool: &mut Pool,
    ) -> usize {
        let mut done = 0;
        while done < part.len() {
            let used = (self.begin as usize + self.len as usize) % BLOCK;
            let block = match self.tail {
                Some(tail) if used > 0 => tail,
                before => {
                    if let Some(promise) = promise.take() {
                        pool.release(promise);
                    }
                    let Some(BlockId(fresh)) = pool.take() else { break };
                    match before {
                        Some(tail) => pool.next[tail as usize] = Some(fresh),
                        None => self.head = Some(fresh),
                    }
                    self.tail = Some(fresh);
                    fresh
                }
            };
            let room = &mut pool.at(block)[used..];
            let rest = part.offset(done).expect("done < part.len()");
            let copied = rest.copy_to(room);
            done += copied;
            self.len += u32::try_from(copied).expect("at most BLOCK");
        }
        done
    }

    /// Returns the first bytes of the queue, as many as are contiguous in memory; `None` if the queue is empty.
    pub(crate) fn front<'p>(&self, pool: &'p mut Pool) -> Option<VolatileSlice<'p>> {
        let head = self.head?;
        let begin = self.begin as usize;
        let end = (begin + self.len as usize).min(BLOCK);
        Some(VolatileSlice::from(&mut pool.at(head)[begin..end]))
    }

    /// Removes `len` bytes, at most as many as [`Self::front`] returns, from the front of the queue.
    pub(crate) fn pop(&mut self, len: usize, pool: &mut Pool) {
        let len = u32::try_from(len).expect("at most BLOCK");
        self.begin += len;
        self.len -= len;
        let drained = self.len == 0;
        if (drained || self.begin as usize == BLOCK)
            && let Some(head) = self.head
        {
            self.head = pool.next[head as usize];
            self.begin = 0;
            if drained {
                self.tail = None;
                self.head = None;
            }
            pool.give(BlockId(head));
        }
    }

    /// Removes all bytes from the queue, and frees their blocks.
    pub(crate) fn clear(&mut self, pool: &mut Pool) {
        while let Some(front) = self.front(pool) {
            let len = front.len();
            self.pop(len, pool);
        }
    }
}

impl BlockQueue {
    /// Returns the number of bytes.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// Returns the parts of the content, each contiguous in a block.
    fn parts<'p>(&self, pool: &'p Pool) -> impl Iterator<Item = &'p [u8]> {
        let mut block = self.head;
        let mut begin = self.begin as usize;
        let mut left = self.len as usize;
        core::iter::from_fn(move || {
            let index = block.filter(|_| left > 0)?;
            let end = (begin + left).min(BLOCK);
            let part = &pool.content_at(index)[begin..end];
            left -= part.len();
            (begin, block) = (0, pool.next[index as usize]);
            Some(part)
        })
    }
}

/// The position in the first block is a part of the record, so that the content needs the same number of blocks again.
impl Record for BlockQueue {
    fn save(&self, to: &mut Writer<'_>) {
        let Self {
            head: _,
            tail: _,
            begin,
            len,
        } = self;
        to.put(begin);
        to.put(len);
        self.parts(to.pool()).for_each(|part| to.octets(part));
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        let (begin, len): (u32, u32) = from.get()?;
        check(begin == 0 || (len > 0 && (begin as usize) < BLOCK))?;
        let mut content = from.octets(len as usize)?;
        let mut queue = Self {
            begin,
            ..Self::default()
        };
        while !content.is_empty() {
            let used = (queue.begin as usize + queue.len as usize) % BLOCK;
            let BlockId(block) = from.pool().take().ok_or(StateError::Limit)?;
            let (part, rest) = content.split_at(content.len().min(BLOCK - used));
            let pool = from.pool();
            pool.at(block)[used..used + part.len()].copy_from_slice(part);
            match queue.tail.replace(block) {
                Some(tail) => pool.next[tail as usize] = Some(block),
                None => queue.head = Some(block),
            }
            queue.len += u32::try_from(part.len()).expect("at most BLOCK");
            content = rest;
        }
        Ok(queue)
    }
}

impl Record for BlockPromise {
    fn save(&self, _: &mut Writer<'_>) {
        let Self(()) = self;
    }

    fn load(from: &mut Reader<'_>) -> Result<Self, StateError> {
        let pool = from.pool();
        if pool.promised >= pool.free.len() {
            return Err(StateError::Limit);
        }
        pool.promised += 1;
        Ok(Self(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(queue: &mut BlockQueue, pool: &mut Pool, chunk: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(front) = queue.front(pool) {
            let len = front.len().min(chunk);
            let mut bytes = vec![0; len];
            front.copy_to(&mut bytes);
            all.extend(bytes);
            queue.pop(len, pool);
        }
        all
    }

    #[test]
    fn queue_returns_bytes_in_order_and_frees_blocks() {
        let mut pool = Pool::default();
        let mut queue = BlockQueue::default();
        let mut data: Vec<u8> = (0..3 * BLOCK + 17).map(|i| (i * 31 % 251) as u8).collect();
        let (first, second) = data.split_at_mut(BLOCK + 5);
        assert_eq!(
            queue.push(VolatileSlice::from(&mut *first), &mut None, &mut pool),
            BLOCK + 5
        );
        let front = queue.front(&mut pool).unwrap().len();
        assert_eq!(front, BLOCK);
        queue.pop(7, &mut pool);
        assert_eq!(
            queue.push(VolatileSlice::from(&mut *second), &mut None, &mut pool),
            second.len()
        );
        assert_eq!(drain(&mut queue, &mut pool, 1000), data[7..]);
        assert!(queue.is_empty());
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn exhausted_pool_accepts_only_what_fits() {
        let mut pool = Pool::default();
        let mut queue = BlockQueue::default();
        let mut data = vec![1; BLOCK];
        for _ in 0..LIMIT {
            assert_eq!(
                queue.push(VolatileSlice::from(&mut data[..]), &mut None, &mut pool),
                BLOCK
            );
        }
        assert!(!pool.is_roomy());
        assert_eq!(
            queue.push(VolatileSlice::from(&mut data[..]), &mut None, &mut pool),
            0
        );
        queue.pop(BLOCK, &mut pool);
        assert_eq!(
            queue.push(VolatileSlice::from(&mut data[..5]), &mut None, &mut pool),
            5
        );
        queue.clear(&mut pool);
        assert!(pool.in_use() == 0 && queue.is_empty());
        assert!(pool.is_roomy());
    }

    #[test]
    fn promised_block_is_available_and_half_of_the_pool_is_not_promised() {
        let mut pool = Pool::default();
        let mut promises: Vec<_> = std::iter::from_fn(|| pool.promise()).collect();
        assert_eq!(promises.len(), LIMIT / 2);
        let taken = std::iter::from_fn(|| pool.take()).count();
        assert_eq!(taken, LIMIT / 2);
        let mut data = [1; 5];
        let mut queue = BlockQueue::default();
        assert_eq!(
            queue.push(VolatileSlice::from(&mut data[..]), &mut None, &mut pool),
            0
        );
        let mut promise = promises.pop();
        assert_eq!(
            queue.push(VolatileSlice::from(&mut data[..]), &mut promise, &mut pool),
            5
        );
        assert!(promise.is_none() && pool.take().is_none());
        pool.release(promises.pop().unwrap());
        assert!(pool.take().is_some());
    }
}
