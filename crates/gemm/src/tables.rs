//! Device memory for the tables of prepared GEMMs: blocks that are allocated ahead, and handed out in parts.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;
use warpweave_symm_mem::{Backend, Cuda, DevicePtr, Memory};

use crate::Error;
use crate::capture::Relaxed;

/// Bytes of a block. A table of another size has some KiB; one that is larger gets a block of its own.
const BLOCK: usize = 4 << 20;

/// Tables begin at multiples of this many bytes.
const ALIGNMENT: usize = 256;

/// The tables of a device's prepared GEMMs. The first block is allocated with it, another one whenever those
/// that there are have no room. Blocks live as long as it or one of their tables.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    cuda: Cuda,
    blocks: Mutex<Vec<Block>>,
}

#[derive(Debug)]
struct Block {
    memory: <Cuda as Backend>::Memory,
    free: Free,
}

/// A table in device memory, which is free again when it is dropped.
#[derive(Debug)]
pub(crate) struct Table {
    shared: Arc<Shared>,
    block: usize,
    range: Range<usize>,
    address: DevicePtr,
}

impl Tables {
    pub fn new(cuda: &Cuda) -> Result<Self, Error> {
        let shared = Shared {
            cuda: cuda.clone(),
            blocks: Mutex::default(),
        };
        let tables = Self {
            shared: Arc::new(shared),
        };
        tables.grow(&mut tables.shared.blocks.lock(), BLOCK)?;
        Ok(tables)
    }

    /// A table with these words. Waits until they are there; other streams of this thread may be capturing.
    pub fn upload(&self, words: impl Iterator<Item = u32>) -> Result<Table, Error> {
        self.upload_bytes(&words.flat_map(u32::to_ne_bytes).collect::<Vec<u8>>())
    }

    /// A table with these bytes; as [`upload`](Self::upload).
    pub fn upload_bytes(&self, image: &[u8]) -> Result<Table, Error> {
        let _relaxed = Relaxed::begin()?;
        let table = self.take(image.len())?;
        let cuda = &self.shared.cuda;
        let stream = cuda.setup_stream()?;
        // SAFETY: the range has the image's size and is this table's alone: the last one that had it was
        // dropped after its launches had ended, by the obligations of those who launch.
        unsafe { cuda.upload(&stream, table.address, image)? };
        Ok(table)
    }

    fn take(&self, bytes: usize) -> Result<Table, Error> {
        let bytes = bytes.max(1).next_multiple_of(ALIGNMENT);
        let mut blocks = self.shared.blocks.lock();
        let fits = |blocks: &mut Vec<Block>| {
            let mut all = blocks.iter_mut().enumerate();
            all.find_map(|(index, block)| Some((index, block.free.take(bytes)?)))
        };
        let found = match fits(&mut blocks) {
            None => {
                self.grow(&mut blocks, bytes.max(BLOCK))?;
                fits(&mut blocks)
            }
            found => found,
        };
        let (block, range) = found.ok_or(Error::NoCandidate)?;
        Ok(Table {
            address: blocks[block].memory.address().add(range.start),
            shared: self.shared.clone(),
            block,
            range,
        })
    }

    fn grow(&self, blocks: &mut Vec<Block>, bytes: usize) -> Result<(), Error> {
        let _relaxed = Relaxed::begin()?;
        blocks.push(Block {
            memory: self.shared.cuda.allocate(bytes)?,
            free: Free::new(bytes),
        });
        Ok(())
    }
}

impl Table {
    pub fn address(&self) -> DevicePtr {
        self.address
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.shared.blocks.lock()[self.block]
            .free
            .give(self.range.clone());
    }
}

/// The free ranges of a block, by their start.
#[derive(Debug, PartialEq, Eq)]
struct Free(BTreeMap<usize, usize>);

impl Free {
    fn new(bytes: usize) -> Self {
        Self(BTreeMap::from([(0, bytes)]))
    }

    /// The first range of so many bytes.
    fn take(&mut self, bytes: usize) -> Option<Range<usize>> {
        let (&start, &end) = self.0.iter().find(|(start, end)| *end - *start >= bytes)?;
        self.0.remove(&start);
        if start + bytes < end {
            self.0.insert(start + bytes, end);
        }
        Some(start..start + bytes)
    }

    /// Takes a range back, and joins it with its neighbours.
    fn give(&mut self, range: Range<usize>) {
        let Range { mut start, mut end } = range;
        if let Some(after) = self.0.remove(&end) {
            end = after;
        }
        let before = self.0.range(..start).next_back();
        if let Some((&from, _)) = before.filter(|(_, to)| **to == start) {
            start = from;
        }
        self.0.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_are_apart_and_come_back(
            steps in prop::collection::vec((1usize..40, any::<prop::sample::Index>()), 1..200),
        ) {
            const BYTES: usize = 256;
            let mut free = Free::new(BYTES);
            let mut taken: Vec<Range<usize>> = Vec::new();
            for (bytes, which) in steps {
                match free.take(bytes) {
                    Some(range) => {
                        prop_assert_eq!(range.len(), bytes);
                        prop_assert!(range.end <= BYTES);
                        let is_apart =
                            |other: &Range<usize>| range.end <= other.start || other.end <= range.start;
                        prop_assert!(taken.iter().all(is_apart));
                        taken.push(range);
                    }
                    None => {
                        let gap = |at: usize| taken.iter().all(|range| !range.contains(&at));
                        let is_free = |from: usize| from + bytes <= BYTES && (from..from + bytes).all(gap);
                        prop_assert!(!(0..BYTES).any(is_free), "there was room");
                        let which = which.index(taken.len());
                        free.give(taken.swap_remove(which));
                    }
                }
            }
            for range in taken {
                free.give(range);
            }
            prop_assert_eq!(free, Free::new(BYTES));
        }
    }
}
