//! The tile schedule and what each tile waits for, as the device reads them (`cuda/cutlass/arrivals.cuh`).

#[cfg(test)]
mod tests;

use std::ops::Range;

use super::{Arrival, ChunkedMatmul};
use crate::Error;
use crate::cutlass::Config;

/// Swizzle width, in rows of cluster tiles: the panels of B of as many columns stay in the L2 cache.
const SWIZZLE: usize = 8;

/// Consecutive rows of clusters, visited column by column. A unit is the tile of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SwizzleGroup {
    first_unit: u32,
    end_unit: u32,
    first_row: u32,
    rows: u32,
}

/// A flag that must be set: the `nth` signal of a call, counted from 1, of `source`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wait {
    source: u32,
    nth: u32,
}

/// What a launch reads besides its operands.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Table {
    groups: Vec<SwizzleGroup>,
    /// For each row of tiles its part of `waits`.
    tiles: Vec<Range<u32>>,
    waits: Vec<Wait>,
    /// Signals a call, by source.
    signals: Vec<u32>,
    tile_rows: usize,
}

/// Bytes from the start of a table's image to each of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offsets {
    pub groups: usize,
    pub tiles: usize,
    pub waits: usize,
    pub signals: usize,
}

impl Table {
    /// The table of a valid `gemm` for the tiles of `config`.
    ///
    /// # Errors
    /// [`Error::InvalidProblem`] for more tiles than the device counts.
    pub fn new(gemm: &ChunkedMatmul, config: &Config) -> Result<Self, Error> {
        let [tile_m, tile_n, _] = config.tile.map(|extent| extent as usize);
        let cluster = config.cluster[0] as usize;
        let m = gemm.problem.m;
        let rows = m.div_ceil(tile_m * cluster);
        let columns = gemm.problem.n.div_ceil(tile_n);
        if (rows * cluster * columns) as u128 > i32::MAX as u128 {
            return Err(Error::InvalidProblem {
                problem: Box::new(gemm.problem),
                reason: format!("more than {} tiles", i32::MAX),
            });
        }

        let mut waits = Vec::new();
        let mut tiles: Vec<Range<u32>> = Vec::with_capacity(rows * cluster);
        for tile in 0..rows * cluster {
            let needed = needed(&gemm.arrivals, tile * tile_m..((tile + 1) * tile_m).min(m));
            let last = tiles.last().cloned().unwrap_or(0..0);
            if needed != waits[last.start as usize..last.end as usize] {
                let start = waits.len() as u32;
                waits.extend(needed);
                tiles.push(start..waits.len() as u32);
            } else {
                tiles.push(last);
            }
        }

        let mut signals = vec![0; gemm.world];
        for arrival in &gemm.arrivals {
            signals[arrival.from] += 1;
        }
        let height = tile_m * cluster;
        let arrivals_needed =
            (0..rows).map(|row| arrivals_needed(&gemm.arrivals, row * height..(row + 1) * height));
        Ok(Table {
            groups: groups(&arrivals_needed.collect::<Vec<_>>(), columns),
            tiles,
            waits,
            signals,
            tile_rows: tile_m,
        })
    }

    /// The rows of `own` that lie in a tile with rows that arrive: they are read from staging.
    pub fn shared(&self, own: &Range<usize>) -> Vec<Range<usize>> {
        let mut shared: Vec<Range<usize>> = Vec::new();
        for (tile, waits) in self.tiles.iter().enumerate() {
            let rows =
                (tile * self.tile_rows).max(own.start)..((tile + 1) * self.tile_rows).min(own.end);
            if rows.is_empty() || waits.is_empty() {
                continue;
            }
            match shared.last_mut() {
                Some(last) if last.end == rows.start => last.end = rows.end,
                _ => shared.push(rows),
            }
        }
        shared
    }

    /// The table as the device reads it.
    pub fn image(&self) -> (Vec<u8>, Offsets) {
        let groups = self.groups.iter();
        let groups = groups.flat_map(|b| [b.first_unit, b.end_unit, b.first_row, b.rows]);
        let mut words: Vec<u32> = groups.collect();
        let at = |words: &Vec<u32>| size_of_val(words.as_slice());
        let tiles = at(&words);
        words.extend(self.tiles.iter().flat_map(|waits| [waits.start, waits.end]));
        let waits = at(&words);
        words.extend(self.waits.iter().flat_map(|wait| [wait.source, wait.nth]));
        let signals = at(&words);
        words.extend(&self.signals);
        let offsets = Offsets {
            groups: 0,
            tiles,
            waits,
            signals,
        };
        (
            words.iter().flat_map(|word| word.to_ne_bytes()).collect(),
            offsets,
        )
    }
}

/// The waits of a tile: for each source with rows in it the last signal that covers some of them.
fn needed(arrivals: &[Arrival], tile: Range<usize>) -> Vec<Wait> {
    let mut needed: Vec<Wait> = Vec::new();
    let mut seen = std::collections::HashMap::<usize, u32>::new();
    for arrival in arrivals {
        let nth = seen.entry(arrival.from).or_default();
        *nth += 1;
        if !overlap(&arrival.rows, &tile) {
            continue;
        }
        let source = arrival.from as u32;
        match needed.iter_mut().find(|wait| wait.source == source) {
            Some(wait) => wait.nth = *nth,
            None => needed.push(Wait { source, nth: *nth }),
        }
    }
    needed
}

/// When all rows of a row of clusters are here: 0 from the start, i with the i-th arrival.
fn arrivals_needed(arrivals: &[Arrival], rows: Range<usize>) -> usize {
    arrivals
        .iter()
        .rposition(|arrival| overlap(&arrival.rows, &rows))
        .map_or(0, |index| index + 1)
}

/// The rows of clusters sorted by the arrival that completes them, in swizzle groups of neighbours with the
/// same one.
fn groups(arrivals_needed: &[usize], columns: usize) -> Vec<SwizzleGroup> {
    let mut order: Vec<usize> = (0..arrivals_needed.len()).collect();
    order.sort_by_key(|&row| arrivals_needed[row]);
    let mut groups: Vec<SwizzleGroup> = Vec::new();
    for row in order {
        let neighbour = groups.last_mut().filter(|group| {
            let first = group.first_row as usize;
            first + group.rows as usize == row
                && arrivals_needed[first] == arrivals_needed[row]
                && (group.rows as usize) < SWIZZLE
        });
        match neighbour {
            Some(group) => {
                group.rows += 1;
                group.end_unit += columns as u32;
            }
            None => {
                let first_unit = groups.last().map_or(0, |group| group.end_unit);
                groups.push(SwizzleGroup {
                    first_unit,
                    end_unit: first_unit + columns as u32,
                    first_row: row as u32,
                    rows: 1,
                });
            }
        }
    }
    groups
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}
