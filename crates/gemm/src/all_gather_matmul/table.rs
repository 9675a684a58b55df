//! The order of the tiles, as the device reads it (`cuda/sm90/schedule.cuh`).

#[cfg(test)]
mod tests;

use super::AllGatherMatmul;
use crate::Error;

/// Consecutive rows of clusters' tiles of a shard, walked column after column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Band {
    /// The first tile of the walk behind it.
    pub end: u32,
    /// Its first row of tiles, counted in its shard.
    pub row: u32,
    /// Rows of tiles.
    pub rows: u32,
    /// Whose shard.
    pub shard: u32,
}

/// The walk of a valid `product` over tiles of `height` rows, `columns` to a row, in bands of at most `most` rows of tiles: this
/// rank's shard, of every other what is pushed or comes eagerly, then in each round the next chunk of every other, as they are
/// fetched.
///
/// A row of tiles belongs to the chunk that its last row is in.
///
/// # Errors
/// [`Error::InvalidProblem`] for more tiles than the device counts.
pub(crate) fn bands(
    product: &AllGatherMatmul,
    (height, columns): (usize, usize),
    most: usize,
) -> Result<Vec<Band>, Error> {
    let (rank, world) = (product.rank(), product.world());
    let mut bands = Vec::new();
    let mut end = 0u64;
    let mut push = |shard: usize, rows: std::ops::Range<usize>| {
        for row in rows.clone().step_by(most.max(1)) {
            let count = most.max(1).min(rows.end - row);
            end += (count * columns) as u64;
            bands.push(Band {
                end: u32::try_from(end).unwrap_or(u32::MAX),
                row: row as u32,
                rows: count as u32,
                shard: shard as u32,
            });
        }
    };
    push(rank, 0..product.shards[rank].len().div_ceil(height));
    let (ahead, chunks) = (product.ahead_chunks(), product.chunks());
    for chunks in std::iter::once(0..ahead).chain((ahead..chunks).map(|chunk| chunk..chunk + 1)) {
        for step in 1..world {
            let source = (rank + world - step) % world;
            let rows = product.shards[source].len();
            // Rows of tiles whose last row lies before a chunk.
            let before = |chunk: usize| match chunk * product.chunk_rows {
                row if row >= rows => rows.div_ceil(height),
                row => row / height,
            };
            push(source, before(chunks.start)..before(chunks.end));
        }
    }
    match i32::try_from(end) {
        Ok(_) => Ok(bands),
        Err(_) => Err(Error::InvalidProblem {
            problem: Box::new(product.problem),
            reason: format!("more than {} tiles", i32::MAX),
        }),
    }
}
