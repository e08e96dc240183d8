//! Memory for data from the guest that the host does not accept yet: a limited number of blocks of 64 KiB.
//!
//! A block is a piece of some flow's `Queue` or of a flow's reordering window. All of them are one allocation, whose
//! pages cost nothing until a block is first written; the block that was freed last is allocated next.

use vm_memory::VolatileSlice;

/// Bytes in a block.
pub const BLOCK: usize = 64 << 10;
/// Blocks of one worker: 32 MiB.
const LIMIT: usize = 512;

/// A block that is in use.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BlockId(u32);

/// All blocks of one worker.
#[derive(Debug)]
pub struct Pool {
    bytes: Vec<u8>,
    /// Successor of each block in its queue.
    next: Vec<Option<u32>>,
    free: Vec<u32>,
    /// Blocks reserved for flows that hold a promise.
    promised: usize,
}

/// A promise of a block, which its holder may allocate at any time.
#[derive(Debug)]
pub(crate) struct Promise(());

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
    /// Allocates a block; `None` when all are in use or promised to others.
    pub(crate) fn take(&mut self) -> Option<BlockId> {
        if self.promised >= self.free.len() {
            return None;
        }
        let index = self.free.pop()?;
        self.next[index as usize] = None;
        Some(BlockId(index))
    }

    /// Promises a block, unless less than half of the pool would be left to flows without a promise.
    pub(crate) fn promise(&mut self) -> Option<Promise> {
        self.is_roomy().then(|| {
            self.promised += 1;
            Promise(())
        })
    }

    /// Releases a promise that is not needed any more.
    pub(crate) fn release(&mut self, Promise(()): Promise) {
        self.promised -= 1;
    }

    /// Frees a block.
    pub(crate) fn give(&mut self, block: BlockId) {
        self.free.push(block.0);
    }

    /// A block's bytes.
    pub(crate) fn bytes(&mut self, block: &BlockId) -> &mut [u8] {
        self.at(block.0)
    }

    fn at(&mut self, index: u32) -> &mut [u8] {
        let begin = index as usize * BLOCK;
        &mut self.bytes[begin..begin + BLOCK]
    }

    /// Bytes in blocks that are in use.
    #[must_use]
    pub fn in_use(&self) -> usize {
        (LIMIT - self.free.len()) * BLOCK
    }

    /// Returns true if less than half of the pool is in use or promised, so that a flow may use more than it must.
    #[must_use]
    pub fn is_roomy(&self) -> bool {
        LIMIT - self.free.len() + self.promised < LIMIT / 2
    }
}

/// A first-in first-out run of bytes in pool blocks.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    head: Option<u32>,
    tail: Option<u32>,
    /// Bytes of the head block that were removed already.
    begin: u32,
    len: u32,
}

impl Queue {
    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends as much of `part` as the pool has room for, and returns its length. A promised block is used first.
    pub(crate) fn push(
        &mut self,
        part: VolatileSlice<'_>,
        promise: &mut Option<Promise>,
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

    /// The first run of bytes, contiguous in memory.
    pub(crate) fn front<'p>(&self, pool: &'p mut Pool) -> Option<VolatileSlice<'p>> {
        let head = self.head?;
        let begin = self.begin as usize;
        let end = (begin + self.len as usize).min(BLOCK);
        Some(VolatileSlice::from(&mut pool.at(head)[begin..end]))
    }

    /// Drops `len` bytes of the front run.
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

    /// Returns all blocks to the pool.
    pub(crate) fn clear(&mut self, pool: &mut Pool) {
        while let Some(front) = self.front(pool) {
            let len = front.len();
            self.pop(len, pool);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(queue: &mut Queue, pool: &mut Pool, chunk: usize) -> Vec<u8> {
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
        let mut queue = Queue::default();
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
        let mut queue = Queue::default();
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
        let mut queue = Queue::default();
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
