//! Every element of every rank against what it must be, which is made anew block by block: nothing is stored.

use warpweave_symm_mem::{DType, Memory};

use super::candidate::Candidate;
use super::memory::SETS;
use super::nccl::NcclBackend;
use super::numbers::{BLOCK, Part, Stream, encode, output};
use crate::error::Result;
use crate::inputs::Numbers;
use crate::session::Session;
use crate::timing::{Call, Contender};
use crate::verification::comparison::{Comparison, WrongElement, decode};
use crate::verification::findings::Findings;
use crate::verification::{POISON, Verdict};

/// Outputs that are kept side by side, for calls that follow each other without synchronisation, take this
/// many bytes at the most, but for two calls.
const KEPT: usize = 256 << 20;
/// Bytes that are downloaded and compared at once.
const PIECE: usize = 64 << 20;

/// The calls that are verified, in order: as they are and as graphs, every set in both forms where outputs
/// are small.
fn calls(output_bytes: usize, has_graph: bool) -> Vec<(Call, usize)> {
    let all = [Call::Run, Call::Replay].into_iter();
    let all = all.flat_map(|how| (0..SETS).map(move |set| (how, set)));
    let calls: Vec<_> = if output_bytes * 2 * SETS <= KEPT {
        all.collect()
    } else {
        vec![(Call::Run, 0), (Call::Replay, 1)]
    };
    let possible = |how| how == Call::Run || has_graph;
    calls
        .into_iter()
        .filter(|(how, _)| possible(*how))
        .collect()
}

/// The bytes that [`verify`] needs for outputs of this many.
pub(super) fn kept(output_bytes: usize) -> usize {
    calls(output_bytes, true).len() * output_bytes
}

/// Calls `candidate` again and again with inputs that change, poison in the output before each call, and
/// compares. `aside` has at least [`kept`] bytes. Collective; the verdict is that of all ranks.
pub(super) fn verify<B: NcclBackend>(
    session: &Session<B>,
    candidate: &Candidate<'_, B>,
    aside: &B::Memory,
) -> Result<Verdict> {
    let mine = || {
        let calls = calls(candidate.output_bytes(), candidate.has_graph());
        call_all(session, candidate, &calls, aside)?;
        let mut findings = Findings::default();
        for (i, &(how, set)) in calls.iter().enumerate() {
            let comparison = compare(
                session,
                candidate,
                set,
                aside.address().add(i * candidate.output_bytes()),
            )?;
            findings.add(Numbers::Integers, comparison, 0.0, |first| {
                format!(
                    "call {i} ({how:?}, set {set}): element {} is {} instead of {}",
                    first.col, first.got, first.wanted
                )
            });
        }
        Ok(findings.to_words())
    };
    let all = session.agree(&format!("verification of {}", candidate.name), mine())?;
    Ok(Verdict::of_ranks(&all))
}

fn call_all<B: NcclBackend>(
    session: &Session<B>,
    candidate: &Candidate<'_, B>,
    calls: &[(Call, usize)],
    aside: &B::Memory,
) -> Result<()> {
    let (backend, stream) = (&session.backend, &session.stream);
    let (out, bytes) = (candidate.call.output.address(), candidate.output_bytes());
    for (i, &(how, set)) in calls.iter().enumerate() {
        candidate.load(set)?;
        // SAFETY: the whole of the output, which belongs to this rank between two calls: its peers write it
        // only once this rank's next call has begun.
        unsafe { backend.fill(stream, out, POISON, bytes)? };
        candidate.call(how)?;
        if session.injection.corrupts() {
            // SAFETY: as above; the output has at least one element.
            unsafe { backend.fill(stream, out, POISON, 2)? };
        }
        // SAFETY: as above; `aside` has room for the outputs of all calls.
        unsafe { backend.copy(stream, aside.address().add(i * bytes), out, bytes)? };
    }
    candidate.synchronize()
}

/// Compares the output at `from` with what set `set` must give.
fn compare<B: NcclBackend>(
    session: &Session<B>,
    candidate: &Candidate<'_, B>,
    set: usize,
    from: warpweave_symm_mem::DevicePtr,
) -> Result<Comparison> {
    let (call, world) = (&candidate.call, session.world());
    let expected = Expected {
        dtype: call.dtype,
        streams: (0..world)
            .map(|rank| Stream::new(rank, set, world))
            .collect(),
        parts: output(
            call.operation,
            (session.rank(), world),
            call.count,
            call.root,
        ),
    };
    let bytes = candidate.output_bytes();
    let mut piece = vec![0; bytes.min(PIECE)];
    let mut comparison = Comparison::default();
    for at in (0..bytes).step_by(PIECE) {
        let piece = &mut piece[..(bytes - at).min(PIECE)];
        // SAFETY: the candidate's stream was synchronised, and the range is inside the outputs that were
        // kept.
        unsafe {
            session
                .backend
                .download(&session.stream, from.add(at), piece)?
        };
        let first = at / call.dtype.size();
        comparison = comparison.and(expected.compare(first, piece, session.threads()));
    }
    Ok(comparison)
}

/// What an output must be.
struct Expected {
    dtype: DType,
    /// By rank.
    streams: Vec<Stream>,
    parts: Vec<Part>,
}

impl Expected {
    /// Compares the elements from `first` on, on `threads` threads.
    fn compare(&self, first: usize, got: &[u8], threads: usize) -> Comparison {
        let size = self.dtype.size();
        let share = (got.len() / size).div_ceil(threads.max(1)).max(1 << 15);
        std::thread::scope(|scope| {
            let shares: Vec<_> = got
                .chunks(share * size)
                .enumerate()
                .map(|(i, got)| scope.spawn(move || self.compare_share(first + i * share, got)))
                .collect();
            let shares = shares.into_iter().map(|share| match share.join() {
                Ok(comparison) => comparison,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            shares.fold(Comparison::default(), Comparison::and)
        })
    }

    fn compare_share(&self, first: usize, got: &[u8]) -> Comparison {
        let size = self.dtype.size();
        let end = first + got.len() / size;
        let mut comparison = Comparison::default();
        let (mut sums, mut bytes) = ([0; BLOCK], [0; BLOCK * 4]);
        for part in &self.parts {
            let (from, to) = (part.at.max(first), (part.at + part.count).min(end));
            for at in (from..to).step_by(BLOCK) {
                let count = (to - at).min(BLOCK);
                let (sums, bytes) = (&mut sums[..count], &mut bytes[..count * size]);
                self.block(part, at, sums);
                encode(self.dtype, sums, bytes);
                let got = &got[(at - first) * size..][..count * size];
                comparison.elements += count as u64;
                if got != bytes {
                    self.search(at, got, sums, &mut comparison);
                }
            }
        }
        comparison
    }

    /// The elements of `part` from `at` on, an index into the output.
    fn block(&self, part: &Part, at: usize, sums: &mut [i32]) {
        sums.fill(0);
        let first = part.first + at - part.at;
        match part.source {
            Some(rank) => self.streams[rank].add(first, sums),
            None => self
                .streams
                .iter()
                .for_each(|stream| stream.add(first, sums)),
        }
    }

    /// Counts the elements that are wrong. Zero has two signs, which are both right.
    fn search(&self, at: usize, got: &[u8], wanted: &[i32], comparison: &mut Comparison) {
        for (i, (got, &wanted)) in got.chunks_exact(self.dtype.size()).zip(wanted).enumerate() {
            let (got, wanted) = (decode(self.dtype, got), wanted as f32);
            if got != wanted {
                comparison.wrong += 1;
                comparison.first.get_or_insert_with(|| WrongElement {
                    row: 0,
                    col: at + i,
                    got: got.to_string(),
                    wanted,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collectives::DEFAULT_OPERATIONS;
    use warpweave_comm::collective::Operation;

    /// The output by the definition, from the inputs' bytes.
    fn by_definition(operation: Operation, rank: usize, world: usize, count: usize) -> Vec<f32> {
        let input = |from: usize| {
            let (elements, _) = operation.elements(count, world);
            let bytes = Stream::new(from, 1, world).bytes(DType::F32, elements, 1);
            let floats = bytes
                .chunks_exact(4)
                .map(|b| f32::from_ne_bytes(b.try_into().unwrap()));
            floats.collect::<Vec<_>>()
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
            let mut out: Vec<u8> = by_definition(operation, rank, world, count)
                .iter()
                .flat_map(|v| v.to_ne_bytes())
                .collect();
            let expected = Expected {
                dtype: DType::F32,
                streams: (0..world).map(|rank| Stream::new(rank, 1, world)).collect(),
                parts: output(operation, (rank, world), count, 2),
            };
            let right = expected.compare(0, &out, 4);
            assert_eq!(
                (right.elements, right.wrong),
                (out.len() as u64 / 4, 0),
                "{operation}"
            );
            // In pieces, as large outputs come.
            let at = 1237;
            let rest = expected.compare(at, &out[at * 4..], 2);
            assert_eq!(rest.wrong, 0, "{operation}");
            let place = out.len() / 4 - 3;
            out[place * 4..][..4].copy_from_slice(&f32::NAN.to_ne_bytes());
            let wrong = expected.compare(0, &out, 4);
            assert_eq!(
                (wrong.wrong, wrong.first.unwrap().col),
                (1, place),
                "{operation}"
            );
        }
    }

    #[test]
    fn both_zeros_are_right() {
        let expected = Expected {
            dtype: DType::F32,
            streams: vec![Stream::new(0, 0, 1)],
            parts: output(Operation::AllReduce, (0, 1), 4000, 0),
        };
        let mut out = Stream::new(0, 0, 1).bytes(DType::F32, 4000, 1);
        let zero = out
            .chunks_exact(4)
            .position(|b| b == 0f32.to_ne_bytes())
            .unwrap();
        out[zero * 4..][..4].copy_from_slice(&(-0f32).to_ne_bytes());
        assert_eq!(expected.compare(0, &out, 1).wrong, 0);
    }

    #[test]
    fn large_outputs_are_verified_by_fewer_calls() {
        assert_eq!(calls(4096, true).len(), 6);
        assert_eq!(calls(4096, false).len(), 3);
        assert_eq!(calls(1 << 30, true), [(Call::Run, 0), (Call::Replay, 1)]);
        assert_eq!(calls(1 << 30, false), [(Call::Run, 0)]);
        assert_eq!(kept(4096), 6 * 4096);
    }
}
