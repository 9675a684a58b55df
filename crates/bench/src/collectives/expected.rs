//! The expected output of a collective, made block by block.

use std::ops::Range;

use warpweave_comm::collective::{Call, Operation};

use super::numbers::{BLOCK, Input};
use crate::inputs::{on_threads, share};
use crate::verification::comparison::{Comparison, Expectation};
use warpweave_symm_mem::host::encode;

/// Consecutive elements of an output, and where they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// The first of them in the output.
    at: usize,
    /// How many.
    count: usize,
    /// The rank whose inputs they are; `None` for the reduction over all ranks.
    source: Option<usize>,
    /// The first of them in the inputs.
    first: usize,
}

/// The output of `rank` for a call of `count`, without gaps.
fn output(
    operation: Operation,
    (rank, world): (usize, usize),
    count: usize,
    root: usize,
) -> Vec<Part> {
    let part = |at, source, first| Part {
        at,
        count,
        source,
        first,
    };
    let of_peers = |first| {
        let of_peer = |peer| part(peer * count, Some(peer), first);
        (0..world).map(of_peer).collect()
    };
    match operation {
        Operation::AllGather => of_peers(0),
        Operation::AllToAll => of_peers(rank * count),
        Operation::ReduceScatter => vec![part(0, None, rank * count)],
        Operation::AllReduce => vec![part(0, None, 0)],
        Operation::Broadcast => vec![part(0, Some(root), 0)],
        Operation::Barrier => Vec::new(),
    }
}

/// The expected output of one call on one rank.
pub(super) struct Expected {
    expectation: Expectation,
    /// By rank.
    inputs: Vec<Input>,
    parts: Vec<Part>,
}

impl Expected {
    /// The output that input set `set` must give on `rank` of `world`.
    pub fn of(call: &Call, (rank, world): (usize, usize), set: usize) -> Self {
        let inputs = (0..world).map(|rank| Input::new(rank, set, world));
        Self {
            expectation: Expectation::exact(call.dtype),
            inputs: inputs.collect(),
            parts: output(call.operation, (rank, world), call.count, call.root),
        }
    }

    /// Compares the elements from `first` on, on `threads` threads.
    pub fn compare(&self, first: usize, got: &[u8], threads: usize) -> Comparison {
        let size = self.expectation.dtype.size();
        let share = share(got.len() / size, threads, 1 << 15);
        let shares = on_threads(got.chunks(share * size).enumerate(), |(i, got)| {
            self.compare_share(first + i * share, got)
        });
        shares.into_iter().sum()
    }

    fn compare_share(&self, first: usize, got: &[u8]) -> Comparison {
        let size = self.expectation.dtype.size();
        let mut comparison = Comparison::default();
        self.blocks(first..first + got.len() / size, |at, wanted| {
            let got = &got[(at - first) * size..][..wanted.len() * size];
            let found = self.expectation.compare((0, at), got, wanted, |_| 0.0);
            comparison = std::mem::take(&mut comparison).and(found);
        });
        comparison
    }

    /// The whole output, as it is stored.
    pub fn bytes(&self) -> Vec<u8> {
        let (dtype, mut all) = (self.expectation.dtype, Vec::new());
        self.blocks(0..usize::MAX, |_, wanted| all.extend(encode(dtype, wanted)));
        all
    }

    /// The elements of a range of the output, some at a time, with the place of the first of them.
    fn blocks(&self, range: Range<usize>, mut take: impl FnMut(usize, &[f32])) {
        let mut sums = [0.0; BLOCK];
        for part in &self.parts {
            let (from, to) = (part.at, part.at + part.count);
            let (from, to) = (from.max(range.start), to.min(range.end));
            let one = |rank| &self.inputs[rank..=rank];
            let inputs = part.source.map_or(&self.inputs[..], one);
            for at in (from..to).step_by(BLOCK) {
                let sums = &mut sums[..(to - at).min(BLOCK)];
                sums.fill(0.0);
                let first = part.first + at - part.at;
                inputs.iter().for_each(|input| input.add(first, sums));
                take(at, sums);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectives::DEFAULT_OPERATIONS;
    use crate::collectives::operation::call_of;
    use warpweave_symm_mem::DType;
    use warpweave_symm_mem::host::decode;

    fn call(operation: Operation, count: usize, root: usize) -> Call {
        Call {
            count,
            root,
            ..call_of(operation, DType::F32, 0, 1)
        }
    }

    /// The output by the definition, from the inputs' bytes.
    fn by_definition(operation: Operation, rank: usize, world: usize, count: usize) -> Vec<f32> {
        let input = |from: usize| {
            let (elements, _) = operation.elements(count, world);
            let bytes = Input::new(from, 1, world).bytes(DType::F32, elements, 1);
            decode(DType::F32, &bytes)
        };
        let all: Vec<_> = (0..world).map(input).collect();
        let sum = |i: usize| all.iter().map(|input| input[i]).sum();
        match operation {
            Operation::AllGather => all.concat(),
            Operation::ReduceScatter => (0..count).map(|i| sum(rank * count + i)).collect(),
            Operation::AllReduce => (0..count).map(sum).collect(),
            Operation::Broadcast => all[2].clone(),
            _ => all
                .iter()
                .flat_map(|input| input[rank * count..][..count].to_vec())
                .collect(),
        }
    }

    #[test]
    fn every_operation_is_expected_as_it_is_defined_and_one_wrong_element_is_found() {
        // Longer than a block, and no multiple of anything.
        let (count, world, rank) = (BLOCK + 901, 3, 1);
        for operation in DEFAULT_OPERATIONS {
            let mut out = encode(DType::F32, &by_definition(operation, rank, world, count));
            let expected = Expected::of(&call(operation, count, 2), (rank, world), 1);
            let right = expected.compare(0, &out, 4);
            let found = (right.elements, right.wrong);
            assert_eq!(found, (out.len() as u64 / 4, 0), "{operation}");
            // In pieces, as large outputs come.
            let at = 1237;
            let rest = expected.compare(at, &out[at * 4..], 2);
            assert_eq!(rest.wrong, 0, "{operation}");
            let place = out.len() / 4 - 3;
            out[place * 4..][..4].copy_from_slice(&f32::NAN.to_ne_bytes());
            let wrong = expected.compare(0, &out, 4);
            let found = (wrong.wrong, wrong.first.unwrap().col);
            assert_eq!(found, (1, place), "{operation}");
        }
    }

    #[test]
    fn both_zeros_are_right() {
        let expected = Expected::of(&call(Operation::AllReduce, 4000, 0), (0, 1), 0);
        let mut out = Input::new(0, 0, 1).bytes(DType::F32, 4000, 1);
        let is_zero = |bytes: &[u8]| bytes == 0f32.to_ne_bytes();
        let zero = out.chunks_exact(4).position(is_zero).unwrap();
        out[zero * 4..][..4].copy_from_slice(&(-0f32).to_ne_bytes());
        assert_eq!(expected.compare(0, &out, 1).wrong, 0);
    }

    #[test]
    fn an_output_is_covered_without_gaps() {
        for operation in DEFAULT_OPERATIONS {
            let parts = output(operation, (1, 3), 10, 2);
            let (_, elements) = operation.elements(10, 3);
            let end = parts.iter().fold(0, |at, part| {
                assert_eq!(part.at, at, "{operation}");
                at + part.count
            });
            assert_eq!(end, elements, "{operation}");
        }
        let all_to_all = output(Operation::AllToAll, (1, 3), 10, 0);
        assert_eq!((all_to_all[2].source, all_to_all[2].first), (Some(2), 10));
    }
}
