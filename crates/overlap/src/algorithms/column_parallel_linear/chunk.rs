//! Which rows make up a chunk, where they lie, and by which GEMMs they are multiplied.

use crate::plan::{Batch, shard};
use std::ops::Range;

/// How A is dealt to the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharding {
    /// Rank r holds the r-th block of rows; a chunk has a part of each block.
    Blocked,
    /// Rank r holds the r-th part of each chunk: A is \[chunks, world, M / (chunks · world), K\].
    Cyclic,
}

/// How A lies in the staging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrangement {
    /// As it is.
    AsInA,
    /// Chunk after chunk, as collectives put it.
    ByChunk,
}

/// Rows that travel and are multiplied together, one piece of each rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Indexed by rank; some may be empty, not all.
    pub(super) pieces: Vec<Piece>,
}

/// One rank's rows of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Rows of the owner's buffer `a`.
    pub(super) held: Range<usize>,
    /// Rows of the staging.
    pub(super) staged: Range<usize>,
    /// Rows of A, and of C.
    pub(super) rows: Range<usize>,
}

/// A GEMM, or a batch of them: rows of the staging and of C, of the first if they are several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gemm {
    pub(super) staged: Range<usize>,
    pub(super) rows: Range<usize>,
    pub(super) batch: Batch,
}

/// The chunks of `m` rows, without those that would be empty.
pub(super) fn deal(
    m: usize,
    world: usize,
    count: usize,
    sharding: Sharding,
    layout: Arrangement,
) -> Vec<Chunk> {
    let mut held = vec![0; world];
    let mut staged = 0;
    let mut next = |rank: usize, rows: Range<usize>| {
        let piece = Piece {
            held: held[rank]..held[rank] + rows.len(),
            staged: match layout {
                Arrangement::AsInA => rows.clone(),
                Arrangement::ByChunk => staged..staged + rows.len(),
            },
            rows,
        };
        held[rank] = piece.held.end;
        staged = piece.staged.end;
        piece
    };
    let part = |whole: Range<usize>, index: usize, of: usize| {
        let part = shard(whole.len(), index, of);
        whole.start + part.start..whole.start + part.end
    };
    let chunks = (0..count).map(|chunk| {
        let pieces = (0..world).map(|rank| {
            let rows = match sharding {
                Sharding::Blocked => part(shard(m, rank, world), chunk, count),
                Sharding::Cyclic => part(shard(m, chunk, count), rank, world),
            };
            next(rank, rows)
        });
        Chunk {
            pieces: pieces.collect(),
        }
    });
    let empty = |chunk: &Chunk| chunk.pieces.iter().all(|piece| piece.rows.is_empty());
    chunks.filter(|chunk| !empty(chunk)).collect()
}

impl Chunk {
    /// From its first row in the staging to its last. Where the staging lies by chunk, these are its rows and
    /// no others.
    pub(super) fn staged(&self) -> Range<usize> {
        let start = self.pieces.first().map_or(0, |piece| piece.staged.start);
        let end = self.pieces.last().map_or(0, |piece| piece.staged.end);
        start..end
    }

    /// The GEMMs of this chunk.
    ///
    /// Pieces that are contiguous both in the staging and in C become one GEMM. With `batched`, consecutive
    /// GEMMs of equal size and equal strides, in the staging and in C, become one batch.
    pub(super) fn gemms(&self, batched: bool) -> Vec<Gemm> {
        let mut gemms: Vec<Gemm> = Vec::new();
        for piece in self.pieces.iter().filter(|piece| !piece.rows.is_empty()) {
            match gemms.last_mut() {
                Some(last) if last.is_followed_by(piece) => {
                    last.staged.end = piece.staged.end;
                    last.rows.end = piece.rows.end;
                }
                _ => gemms.push(Gemm {
                    staged: piece.staged.clone(),
                    rows: piece.rows.clone(),
                    batch: Batch::ONE,
                }),
            }
        }
        if !batched {
            return gemms;
        }
        let mut batches: Vec<Gemm> = Vec::new();
        for gemm in gemms {
            let longer = batches.last().and_then(|batch| batch.with(&gemm));
            match (batches.last_mut(), longer) {
                (Some(last), Some(longer)) => last.batch = longer,
                _ => batches.push(gemm),
            }
        }
        batches
    }
}

impl Gemm {
    fn is_followed_by(&self, piece: &Piece) -> bool {
        self.staged.end == piece.staged.start && self.rows.end == piece.rows.start
    }

    /// This batch with `next` at its end, if that is possible.
    fn with(&self, next: &Gemm) -> Option<Batch> {
        let count = self.batch.count;
        let (in_a, in_c) = (
            next.staged.start - self.staged.start,
            next.rows.start - self.rows.start,
        );
        let longer = Batch {
            count: count + 1,
            a_stride: in_a / count,
            c_stride: in_c / count,
        };
        let as_before = count == 1 || Batch { count, ..longer } == self.batch;
        let even = in_a % count == 0 && in_c % count == 0;
        (next.rows.len() == self.rows.len() && as_before && even).then_some(longer)
    }
}
