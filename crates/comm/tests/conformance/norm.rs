//! Residual addition and RMSNorm after an all-reduce: the same bits as the host's arithmetic, in every
//! variant, alignment and number of rows.

use std::time::{Duration, Instant};

use warpweave_comm::CollectiveKernels;
use warpweave_comm::collective::norm::arithmetic;
use warpweave_comm::collective::{AddRmsNorm, Quantized, Variant};
use warpweave_symm_mem::host::{Element, encode};
use warpweave_symm_mem::{Backend, DType, DeviceSlice, Error, FaultCause, Memory, with_element};

use crate::case::DTYPES;
use crate::play::Played;
use crate::rank::{Rank, message};
use crate::values::given;

/// What memory holds before a call.
const POISON: u8 = 0xa5;
/// Bytes on either side of an operand that a call must leave alone.
const MARGIN: usize = 256;
pub const EPSILON: f32 = 1e-5;

/// How a matrix is reduced and normalized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One launch or two, by variant; as selected without one.
    AllReduce(Option<Variant>),
    /// Each rank has its rows of the residual.
    Sharded,
}

/// The ways that are played.
pub const WAYS: [Way; 5] = [
    Way::AllReduce(Some(Variant::Packets)),
    Way::AllReduce(Some(Variant::Sentinel)),
    Way::AllReduce(Some(Variant::Staged)),
    Way::AllReduce(None),
    Way::Sharded,
];

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct NormCase {
    pub way: Way,
    pub dtype: DType,
    pub rows: usize,
    pub hidden: usize,
    /// Elements by which operands miss the alignment of vectors, and by one more on every other rank.
    pub offset: usize,
    /// The new residual replaces the old one, the normalized rows the input.
    pub in_place: bool,
    pub normalized: bool,
    pub quantized: bool,
}

/// An operand in memory of its own.
struct Placed<B: Backend> {
    memory: B::Memory,
    at: usize,
    bytes: usize,
}

impl<B: Backend> Placed<B> {
    fn new(
        rank: &Rank<B>,
        contents: Option<&[u8]>,
        bytes: usize,
        offset: usize,
    ) -> Result<Self, Error>
    where
        B: CollectiveKernels,
    {
        let memory = rank.backend.allocate(bytes + 2 * MARGIN)?;
        let (start, at) = (memory.address(), MARGIN + offset);
        // SAFETY: new memory of this size.
        unsafe {
            rank.backend
                .fill(&rank.stream, start, POISON, bytes + 2 * MARGIN)?;
            if let Some(contents) = contents {
                rank.backend.upload(&rank.stream, start.add(at), contents)?;
            }
        }
        Ok(Placed { memory, at, bytes })
    }

    fn slice(&self) -> DeviceSlice<'_> {
        DeviceSlice::of(&self.memory)
            .slice(self.at, self.bytes)
            .expect("inside")
    }

    /// The contents, if nothing around them has changed.
    fn read(&self, rank: &Rank<B>) -> Result<Vec<u8>, String>
    where
        B: CollectiveKernels,
    {
        let all = rank.read(&self.memory)?;
        let end = self.at + self.bytes;
        match all[..self.at]
            .iter()
            .chain(&all[end..])
            .all(|&byte| byte == POISON)
        {
            true => Ok(all[self.at..end].to_vec()),
            false => Err("what lies around a result was overwritten".into()),
        }
    }
}

/// What the ranks of a call get, as bytes.
struct Expected {
    residual: Vec<u8>,
    normalized: Vec<u8>,
    quantized: Vec<u8>,
    scales: Vec<u8>,
}

fn expected<T: Element>(case: &NormCase, world: usize, seed: u64) -> Expected {
    let NormCase {
        dtype,
        rows,
        hidden,
        ..
    } = *case;
    let typed = |values: &[f32]| {
        let mut all = vec![T::default(); values.len()];
        T::round(values, &mut all);
        all
    };
    let bytes = |values: &[T]| {
        let mut wide = vec![0.0; values.len()];
        T::widen(values, &mut wide);
        encode(dtype, &wide)
    };
    let mut sums = vec![-0.0f32; rows * hidden];
    for rank in 0..world {
        for (sum, value) in sums
            .iter_mut()
            .zip(given(dtype, seed, rank, 0..rows * hidden))
        {
            *sum += value;
        }
    }
    let (x, residual) = (typed(&sums), typed(&residual(case, seed)));
    let weight = typed(&weight(case, seed));
    let mut all = Expected {
        residual: Vec::new(),
        normalized: Vec::new(),
        quantized: Vec::new(),
        scales: Vec::new(),
    };
    for (x, residual) in x.chunks(hidden).zip(residual.chunks(hidden)) {
        let r = arithmetic::add(x, residual);
        let y = arithmetic::normalize(&r, &weight, EPSILON);
        let (quantized, scale) = arithmetic::quantize(&y);
        all.residual.extend(bytes(&r));
        all.normalized.extend(bytes(&y));
        all.quantized
            .extend(quantized.iter().map(|value| value.to_bits()));
        all.scales.extend(scale.to_ne_bytes());
    }
    all
}

/// Of all ranks.
fn residual(case: &NormCase, seed: u64) -> Vec<f32> {
    given(case.dtype, seed, 99, 0..case.rows * case.hidden)
}

fn weight(case: &NormCase, seed: u64) -> Vec<f32> {
    given(case.dtype, seed, 100, 0..case.hidden)
}

/// One call with values of its own, compared bit by bit.
pub fn play<B: CollectiveKernels>(rank: &Rank<B>, case: &NormCase, seed: u64) -> Played {
    let failed = |error: Error| format!("rank {}: {case:?}: {error}", rank.rank());
    let NormCase {
        dtype,
        rows,
        hidden,
        ..
    } = *case;
    let (world, me, size) = (rank.world(), rank.rank(), case.dtype.size());
    let matrix = rows * hidden * size;
    let shards = if case.way == Way::Sharded { world } else { 1 };
    let part = matrix / shards;
    let own = if shards == 1 {
        0..part
    } else {
        me * part..(me + 1) * part
    };
    let offset = match case.offset {
        0 => 0,
        offset => (offset + me % 2) * size,
    };
    let place =
        |contents: Option<&[u8]>, bytes, offset| Placed::<B>::new(rank, contents, bytes, offset);
    let all = encode(dtype, &residual(case, seed));
    let input = encode(dtype, &given(dtype, seed, me, 0..rows * hidden));
    let input = place(Some(&input), matrix, offset).map_err(failed)?;
    let residual = place(Some(&all[own.clone()]), part, offset).map_err(failed)?;
    let weight = encode(dtype, &weight(case, seed));
    let weight = place(Some(&weight), hidden * size, offset).map_err(failed)?;
    let residual_out = place(None, part, offset).map_err(failed)?;
    let normalized = place(None, matrix, offset).map_err(failed)?;
    // Bytes travel in pairs.
    let skew = if shards == 1 {
        case.offset
    } else {
        2 * case.offset
    };
    let quantized = place(None, rows * hidden, skew).map_err(failed)?;
    let scales = place(None, 4 * rows, 0).map_err(failed)?;
    let (new_residual, rows_out) = match case.in_place {
        true => (&residual, &input),
        false => (&residual_out, &normalized),
    };
    let norm = AddRmsNorm {
        dtype,
        hidden,
        epsilon: EPSILON,
        input: input.slice(),
        residual: residual.slice(),
        weight: weight.slice(),
        residual_out: new_residual.slice(),
        normalized: case.normalized.then(|| rows_out.slice()),
        quantized: case.quantized.then(|| Quantized {
            values: quantized.slice(),
            scales: scales.slice(),
        }),
    };
    let (stream, collectives) = (&rank.stream, &rank.collectives);
    rank.meet()?;
    let called = match case.way {
        Way::AllReduce(Some(variant)) => {
            collectives.all_reduce_add_rms_norm_by(stream, &norm, variant)
        }
        Way::AllReduce(None) => collectives.all_reduce_add_rms_norm(stream, &norm).map(drop),
        Way::Sharded => collectives.reduce_scatter_add_rms_norm_all_gather(stream, &norm),
    };
    match called {
        // Too much, which is refused on all ranks.
        Err(error) if error.is_unavailable() && is_limited(case.way) => return Ok(()),
        called => called.map_err(failed)?,
    }
    rank.backend.synchronize(stream).map_err(failed)?;
    collectives.check(stream).map_err(failed)?;
    let expected = with_element!(dtype, T => expected::<T>(case, world, seed));
    let compare = |what: &str, placed: &Placed<B>, wanted: &[u8]| {
        let got = placed
            .read(rank)
            .map_err(|why| format!("{case:?}: {what}: {why}"))?;
        match got
            .iter()
            .zip(wanted)
            .position(|(got, wanted)| got != wanted)
        {
            None => Ok(()),
            Some(at) => Err(format!(
                "rank {me} of {world}: {case:?}: {what} differ from byte {at} of {}: {:02x?}, not {:02x?}",
                wanted.len(),
                &got[at..got.len().min(at + 8)],
                &wanted[at..wanted.len().min(at + 8)]
            )),
        }
    };
    compare("new residuals", new_residual, &expected.residual[own])?;
    if case.normalized {
        compare("normalized rows", rows_out, &expected.normalized)?;
    }
    if case.quantized {
        compare("quantized rows", &quantized, &expected.quantized)?;
        compare("scales", &scales, &expected.scales)?;
    }
    Ok(())
}

fn is_limited(way: Way) -> bool {
    matches!(
        way,
        Way::AllReduce(Some(Variant::Packets | Variant::Sentinel))
    )
}

/// Rows around the sizes at which a thread has another payload, a warp another sum, a block another row;
/// aligned and not; in and out of place; with every choice of results.
pub fn every_case<B: CollectiveKernels>(
    rank: &Rank<B>,
    ways: &[Way],
    hiddens: &[usize],
    rows: &[usize],
) -> Played {
    let mut seed = 0;
    for &way in ways {
        for dtype in DTYPES {
            for &hidden in hiddens {
                for &rows in rows {
                    let rows = match way {
                        Way::Sharded => rows * rank.world(),
                        _ => rows,
                    };
                    seed += 1;
                    let case = NormCase {
                        way,
                        dtype,
                        rows,
                        hidden,
                        offset: [0, 1, 0, 3][seed as usize % 4],
                        in_place: seed % 3 == 0,
                        normalized: seed % 5 != 0,
                        // Bytes travel in pairs.
                        quantized: (seed % 2 == 0 || seed % 5 == 0)
                            && (way != Way::Sharded
                                || (rows / rank.world() * hidden).is_multiple_of(2)),
                    };
                    play(rank, &case, seed)?;
                }
            }
        }
    }
    Ok(())
}

/// Calls that cannot be are refused before anything is enqueued, and the group goes on.
pub fn bad_calls_are_refused<B: CollectiveKernels>(rank: &Rank<B>) -> Played {
    let memory = rank.backend.allocate(4096).map_err(message)?;
    let slice =
        |at: usize, bytes: usize| DeviceSlice::of(&memory).slice(at, bytes).expect("inside");
    let good = AddRmsNorm {
        dtype: DType::F32,
        hidden: 16,
        epsilon: EPSILON,
        input: slice(0, 128),
        residual: slice(128, 128),
        weight: slice(256, 64),
        residual_out: slice(512, 128),
        normalized: Some(slice(1024, 128)),
        quantized: None,
    };
    let quantized = |values, scales| Some(Quantized { values, scales });
    let bad = [
        ("not whole rows", AddRmsNorm { hidden: 15, ..good }),
        ("rows of 0", AddRmsNorm { hidden: 0, ..good }),
        (
            "the residual: 64 bytes",
            AddRmsNorm {
                residual: slice(128, 64),
                ..good
            },
        ),
        (
            "overlaps the residual",
            AddRmsNorm {
                residual_out: slice(160, 128),
                ..good
            },
        ),
        (
            "overlaps the weight",
            AddRmsNorm {
                normalized: Some(slice(300, 128)),
                ..good
            },
        ),
        (
            "overlaps the new residual",
            AddRmsNorm {
                normalized: Some(slice(512, 128)),
                ..good
            },
        ),
        (
            "not aligned to 4",
            AddRmsNorm {
                input: slice(2, 128),
                ..good
            },
        ),
        (
            "the scales: 4 bytes",
            AddRmsNorm {
                quantized: quantized(slice(2048, 32), slice(3000, 4)),
                ..good
            },
        ),
    ];
    for (why, norm) in bad {
        match rank
            .collectives
            .all_reduce_add_rms_norm(&rank.stream, &norm)
        {
            Err(Error::InvalidArgument { why: message, .. }) if message.contains(why) => {}
            other => return Err(format!("{why}: {other:?}")),
        }
    }
    rank.meet()?;
    let called = rank
        .collectives
        .all_reduce_add_rms_norm(&rank.stream, &good);
    called.map_err(message)?;
    let done = rank.backend.synchronize(&rank.stream);
    done.and_then(|()| rank.collectives.check(&rank.stream))
        .map_err(message)
}

/// The last rank makes no call, or one of other rows: every other rank has an error that names it, and its
/// results are as they were. Afterwards the group goes on.
pub fn a_stray_rank_is_named<B: CollectiveKernels>(rank: &Rank<B>, timeout: Duration) -> Played {
    let (last, hidden) = (rank.world() - 1, 600);
    for skips in [true, false] {
        let alike = NormCase {
            way: Way::AllReduce(Some(Variant::Packets)),
            dtype: DType::F32,
            rows: 2,
            hidden,
            offset: 0,
            in_place: false,
            normalized: true,
            quantized: false,
        };
        play(rank, &alike, 70)?;
        let rows = if rank.rank() == last { 1 } else { 2 };
        let place = |bytes| Placed::<B>::new(rank, None, bytes, 0).map_err(message);
        let matrix = 4 * rows * hidden;
        let (input, residual, weight) = (place(matrix)?, place(matrix)?, place(4 * hidden)?);
        let (residual_out, normalized) = (place(matrix)?, place(matrix)?);
        let norm = AddRmsNorm {
            dtype: DType::F32,
            hidden,
            epsilon: EPSILON,
            input: input.slice(),
            residual: residual.slice(),
            weight: weight.slice(),
            residual_out: residual_out.slice(),
            normalized: Some(normalized.slice()),
            quantized: None,
        };
        rank.meet()?;
        let start = Instant::now();
        let checked = if rank.rank() == last && skips {
            Ok(())
        } else {
            let stream = &rank.stream;
            rank.collectives
                .all_reduce_add_rms_norm_by(stream, &norm, Variant::Packets)
                .map_err(message)?;
            rank.backend.synchronize(stream).map_err(message)?;
            rank.collectives.check(stream)
        };
        match checked {
            Ok(()) if rank.rank() == last && skips => {}
            Err(Error::SignalFault(fault)) => {
                let reporter = match fault.cause {
                    FaultCause::PeerGaveUp { reporter } => reporter,
                    _ => fault.peer,
                };
                // A rank may have waited for one that was itself waiting for the last.
                let named = [
                    rank.rank(),
                    fault.peer,
                    reporter,
                    fault.root.unwrap_or(reporter),
                ];
                let names_last = named.contains(&last);
                let is_soon = start.elapsed() < if skips { 4 * timeout } else { timeout };
                if !names_last || !is_soon {
                    return Err(format!(
                        "rank {} after {:?}: {fault}",
                        rank.rank(),
                        start.elapsed()
                    ));
                }
                for result in [&residual_out, &normalized] {
                    if result.read(rank)?.iter().any(|&byte| byte != POISON) {
                        return Err(format!(
                            "rank {} has stored a row of a failed call",
                            rank.rank()
                        ));
                    }
                }
            }
            other => return Err(format!("rank {}: {other:?}", rank.rank())),
        }
        rank.meet()?;
        rank.collectives
            .recover(&rank.stream, rank.exchange.as_ref())
            .map_err(message)?;
        play(rank, &alike, 80)?;
    }
    Ok(())
}
