//! The order of the tiles, as the device reads it (`cuda/sm90/schedule.cuh`).

#[cfg(test)]
mod tests;

use super::AllGatherMatmul;
use crate::Error;

/// Consecutive rows of cluster tiles of a shard, visited column after column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct SwizzleGroup {
    /// The first tile of the schedule after it.
    pub end: u32,
    /// Its first row of tiles, counted in its shard.
    pub row: u32,
    /// Rows of tiles.
    pub rows: u32,
    /// Whose shard.
    pub shard: u32,
}

/// The tile schedule of a valid `gemm` over tiles of `height` rows, `columns` to a row, with a swizzle width
/// of at most `most` rows of tiles: this rank's shard first, then the pushed or eager chunks of every other,
/// then in each round the next chunk of every other, as they are pulled.
///
/// A row of tiles belongs to the chunk that its last row is in.
///
/// # Errors
/// [`Error::InvalidProblem`] for more tiles than the device counts.
pub(crate) fn groups(
    gemm: &AllGatherMatmul,
    (height, columns): (usize, usize),
    most: usize,
) -> Result<Vec<SwizzleGroup>, Error> {
    let (rank, world) = (gemm.rank, gemm.world);
    let mut groups = Vec::new();
    let mut end = 0u64;
    let mut push = |shard: usize, rows: std::ops::Range<usize>| {
        for row in rows.clone().step_by(most.max(1)) {
            let count = most.max(1).min(rows.end - row);
            end += (count * columns) as u64;
            groups.push(SwizzleGroup {
                end: u32::try_from(end).unwrap_or(u32::MAX),
                row: row as u32,
                rows: count as u32,
                shard: shard as u32,
            });
        }
    };
    push(rank, 0..gemm.shards[rank].len().div_ceil(height));
    let (ahead, chunks) = (gemm.ahead_chunks(), gemm.chunks());
    for chunks in std::iter::once(0..ahead).chain((ahead..chunks).map(|chunk| chunk..chunk + 1)) {
        for step in 1..world {
            let source = (rank + world - step) % world;
            let rows = gemm.shards[source].len();
            // Rows of tiles whose last row lies before a chunk.
            let before = |chunk: usize| match chunk * gemm.chunk_rows {
                row if row >= rows => rows.div_ceil(height),
                row => row / height,
            };
            push(source, before(chunks.start)..before(chunks.end));
        }
    }
    match i32::try_from(end) {
        Ok(_) => Ok(groups),
        Err(_) => Err(Error::InvalidProblem {
            problem: Box::new(gemm.problem),
            reason: format!("more than {} tiles", i32::MAX),
        }),
    }
}
