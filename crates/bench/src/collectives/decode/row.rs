//! A call of the suite `decode`, ready to be enqueued and replayed.

use half::{bf16, f16};
use warpweave_comm::collective::norm::arithmetic;
use warpweave_comm::collective::{AddRmsNorm, Call as Collective, Operation, Variant};
use warpweave_gemm::GemmOperands;
use warpweave_symm_mem::host::Element;
use warpweave_symm_mem::{DType, DevicePtr, DeviceSlice, Memory};

use super::super::expected::Expected;
use super::super::memory::Place;
use super::super::method::wants;
use super::super::nccl::NcclBackend;
use super::super::numbers::{BLOCK, Stream};
use super::{LAYERS, Means, constant};
use crate::candidate::{Call, Candidate, Measures, Output, Set};
use crate::error::{BenchError, Result};
use crate::inputs::Numbers;
use crate::verification::comparison::{Comparison, WrongElement};

/// The constants of the norm: see [`constant`].
pub(super) const RESIDUAL: usize = 0;
pub(super) const WEIGHT: usize = 1;

const EPSILON: f32 = 1e-5;

/// What reduces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reduce {
    /// NCCL on plain buffers.
    Nccl,
    /// NCCL on memory of its own in symmetric windows.
    NcclWindow,
    /// Ours on local memory, in a variant or in that which is selected.
    Ours(Option<Variant>),
    /// Nothing.
    Nothing,
}

/// What adds the residual and normalizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Norm {
    /// Nothing.
    None,
    /// A launch of its own.
    Separate,
    /// The launch that reduces.
    Fused,
}

/// What a row computes, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub name: &'static str,
    pub reduce: Reduce,
    norm: Norm,
    /// Several times, with a GEMM before each.
    pub layers: bool,
}

impl Work {
    pub const fn of(name: &'static str, reduce: Reduce) -> Self {
        Work {
            name,
            reduce,
            norm: Norm::None,
            layers: false,
        }
    }

    pub const fn with(self, norm: Norm) -> Self {
        Work { norm, ..self }
    }

    pub const fn in_layers(self) -> Self {
        Work {
            layers: true,
            ..self
        }
    }

    pub fn is_wanted(&self, wanted: &[String]) -> bool {
        wants(wanted, self.name)
    }
}

/// A row that can run here.
pub(super) struct Row<'a, B: NcclBackend> {
    work: Work,
    means: &'a Means<'a, B>,
    /// The all-reduce.
    call: Collective,
    /// The variant of ours.
    variant: Option<Variant>,
    graph: Option<B::Graph>,
}

impl<'a, B: NcclBackend> Row<'a, B> {
    /// `Err` says why it cannot run here, the same on all ranks.
    pub fn new(means: &'a Means<'a, B>, work: Work) -> Result<Result<Self, String>> {
        let place = match work.reduce {
            Reduce::NcclWindow => Place::Window,
            _ => Place::Plain,
        };
        let matrix = means.matrix;
        let Some([input, output]) = means.arena.operands(place, [matrix.bytes(); 2])? else {
            return Ok(Err(means.arena.lacks(place)));
        };
        let call = Collective {
            operation: Operation::AllReduce,
            dtype: matrix.dtype,
            count: matrix.rows * matrix.hidden,
            root: 0,
            input,
            output,
        };
        let mut row = Self {
            work,
            means,
            call,
            variant: None,
            graph: None,
        };
        if let Reduce::Ours(variant) = work.reduce {
            let variant = match (variant, work.norm) {
                (Some(variant), _) => variant,
                (None, Norm::Fused) => means.ours.select_norm(&row.norm(call.input.address()))?,
                (None, _) => means.ours.select(&call)?,
            };
            if let Err(error) = means.ours.validate(&call, variant) {
                return Ok(Err(error.to_string()));
            }
            let by_packets = matches!(variant, Variant::Packets | Variant::PacketsTwoShot);
            if work.norm == Norm::Fused && !by_packets {
                return Ok(Err(format!(
                    "at this size it takes two launches, the first by {variant}"
                )));
            }
            row.variant = Some(variant);
        }
        Ok(Ok(row))
    }

    /// Addition and norm of the message at `input`, to the output.
    fn norm(&self, input: DevicePtr) -> AddRmsNorm<'_> {
        let (matrix, local) = (self.means.matrix, &self.means.local);
        // SAFETY: both are operands of the arena, of these bytes, which outlives the calls of this row.
        let slice = |at| unsafe { DeviceSlice::from_address(at, matrix.bytes()) };
        AddRmsNorm {
            dtype: matrix.dtype,
            hidden: matrix.hidden,
            epsilon: EPSILON,
            input: slice(input),
            residual: DeviceSlice::of(&local.residual),
            weight: DeviceSlice::of(&local.weight),
            residual_out: DeviceSlice::of(&local.residual_out),
            normalized: Some(slice(self.call.output.address())),
            quantized: None,
        }
    }

    fn enqueue(&self) -> Result<()> {
        match self.work.layers {
            false => self.reduce(),
            true => (0..LAYERS).try_for_each(|_| {
                self.multiply()?;
                self.reduce()
            }),
        }
    }

    fn multiply(&self) -> Result<()> {
        let Means {
            session,
            gemm: (gemm, prepared),
            local,
            ..
        } = self.means;
        let operands = [&local.a, &local.b, &local.c].map(Memory::address);
        let [a, b, c] = operands;
        let Some(prepared) = prepared else {
            return Err(BenchError::Usage("there is no GEMM".into()));
        };
        // SAFETY: the operands are as long as the problem says and outlive the row, as the prepared GEMM
        // does; all its launches are on the session's stream.
        unsafe { gemm.launch(&session.stream, prepared, GemmOperands::new(a, b, c))? };
        Ok(())
    }

    fn reduce(&self) -> Result<()> {
        let Means {
            session,
            ours,
            nccl: [plain, windows],
            ..
        } = self.means;
        let stream = &session.stream;
        let by_nccl = |comm: &Option<&B::Comm>| match comm {
            // SAFETY: the operands have these bytes, lie where the communicator asks, and outlive the row;
            // all ranks make the same calls in the same order, on the session's stream alone.
            Some(comm) => unsafe { session.backend.enqueue_nccl(comm, stream, &self.call) },
            None => Err(BenchError::Usage("there is no NCCL".into())),
        };
        match (self.work.reduce, self.variant) {
            (Reduce::Nccl, _) => by_nccl(plain)?,
            (Reduce::NcclWindow, _) => by_nccl(windows)?,
            (Reduce::Ours(_), Some(variant)) if self.work.norm == Norm::Fused => {
                let norm = self.norm(self.call.input.address());
                return Ok(ours.all_reduce_add_rms_norm_by(stream, &norm, variant)?);
            }
            // SAFETY: as above.
            (Reduce::Ours(_), Some(variant)) => unsafe {
                ours.enqueue(stream, &self.call, variant)?
            },
            (Reduce::Ours(_) | Reduce::Nothing, _) => {}
        }
        match self.work.norm {
            Norm::Separate => {
                let norm = self.norm(self.call.output.address());
                Ok(ours.add_rms_norm(stream, &norm)?)
            }
            _ => Ok(()),
        }
    }
}

impl<B: NcclBackend> Candidate for Row<'_, B> {
    fn name(&self) -> &str {
        self.work.name
    }

    fn measures(&self) -> Measures {
        let has_graph = self.graph.is_some();
        Measures {
            back_to_back: true,
            single_replays: has_graph,
            replays_back_to_back: has_graph,
        }
    }

    fn first_call(&mut self) -> Result<Option<String>> {
        self.load(Set {
            numbers: Numbers::Integers,
            index: 0,
        })?;
        self.enqueue()?;
        self.synchronize()?;
        let session = self.means.session;
        let mut failed = None;
        let captured = session.backend.capture(&session.stream, || {
            self.enqueue().map_err(|error| {
                let cause = error.to_string();
                failed = Some(error);
                let device = "capture".into();
                warpweave_symm_mem::Error::Stream { device, cause }
            })
        });
        match (captured, failed) {
            (Ok(graph), _) => {
                self.graph = Some(graph);
                Ok(None)
            }
            (_, Some(error)) if error.blames_a_peer() => Err(error),
            (_, Some(error)) => Ok(Some(error.to_string())),
            (Err(error), None) => Ok(Some(error.to_string())),
        }
    }

    fn drop_graph(&mut self) {
        self.graph = None;
    }

    fn load(&self, set: Set) -> Result<()> {
        let Means {
            session,
            arena,
            matrix,
            ..
        } = self.means;
        let (from, to) = (arena.set(set.index).address(), self.call.input.address());
        // SAFETY: input and sets have the bytes of the matrix; a call ends when its input may be changed.
        unsafe {
            session
                .backend
                .copy(&session.stream, to, from, matrix.bytes())?
        };
        Ok(())
    }

    fn call(&self, how: Call) -> Result<()> {
        let session = self.means.session;
        session.before_call()?;
        match (how, &self.graph) {
            (Call::Replay, Some(graph)) => {
                // SAFETY: the memory and what does the call are borrowed for as long as this row lives.
                let launched = unsafe { session.backend.launch_graph(graph, &session.stream) };
                Ok(launched?)
            }
            _ => self.enqueue(),
        }
    }

    fn synchronize(&self) -> Result<()> {
        let Means {
            session,
            ours,
            nccl: [plain, windows],
            ..
        } = self.means;
        let comm = match self.work.reduce {
            Reduce::Nccl => *plain,
            Reduce::NcclWindow => *windows,
            Reduce::Ours(_) | Reduce::Nothing => None,
        };
        if let Some(comm) = comm {
            session.backend.drain_nccl(comm, &session.stream)?;
        }
        let ended = session.backend.synchronize(&session.stream);
        // The fault tells more than a stream that did not end.
        ours.check(&session.stream)?;
        Ok(ended?)
    }

    fn outputs(&self) -> Result<Vec<Output>> {
        let (matrix, local) = (self.means.matrix, &self.means.local);
        let output = |address| Output {
            address,
            bytes: matrix.bytes(),
            element: matrix.dtype.size(),
        };
        let reduced = output(self.call.output.address());
        Ok(match (self.work.reduce, self.work.norm) {
            (Reduce::Nothing, _) => Vec::new(),
            (_, Norm::None) => vec![reduced],
            _ => vec![reduced, output(local.residual_out.address())],
        })
    }

    fn compare(&self, output: usize, set: Set, got: &[u8]) -> (Comparison, f64) {
        let session = self.means.session;
        let place = (session.rank(), session.world());
        let comparison = match (self.work.norm, self.call.dtype) {
            (Norm::None, _) => {
                Expected::of(&self.call, place, set.index).compare(0, got, session.threads())
            }
            (_, DType::F32) => self.compare_rows::<f32>(output, set, got),
            (_, DType::F16) => self.compare_rows::<f16>(output, set, got),
            (_, DType::Bf16) => self.compare_rows::<bf16>(output, set, got),
        };
        (comparison, 0.0)
    }
}

impl<B: NcclBackend> Row<'_, B> {
    /// Compares normalized rows, or the new residual, bit by bit with the arithmetic of the host.
    fn compare_rows<T: Element>(&self, output: usize, set: Set, got: &[u8]) -> Comparison {
        let (world, hidden) = (self.means.session.world(), self.means.matrix.hidden);
        let ranks: Vec<_> = (0..world)
            .map(|rank| Stream::new(rank, set.index, world))
            .collect();
        let weight = elements::<T>(&[constant(WEIGHT, world)], 0, hidden);
        let mut comparison = Comparison::default();
        for (row, got) in got.chunks(hidden * size_of::<T>()).enumerate() {
            let at = row * hidden;
            let x = elements::<T>(&ranks, at, hidden);
            let residual = elements::<T>(&[constant(RESIDUAL, world)], at, hidden);
            let sum = arithmetic::add(&x, &residual);
            let wanted = match output {
                0 => arithmetic::normalize(&sum, &weight, EPSILON),
                _ => sum,
            };
            comparison.elements += hidden as u64;
            for (col, (got, wanted)) in got.chunks_exact(size_of::<T>()).zip(wanted).enumerate() {
                // SAFETY: the bytes of an element, which any bits are.
                let got = unsafe { got.as_ptr().cast::<T>().read_unaligned() }.to_f64();
                // Zero has two signs; no element is a NaN.
                if got != wanted.to_f64() {
                    comparison.wrong += 1;
                    comparison.first.get_or_insert_with(|| WrongElement {
                        row,
                        col,
                        got: got.to_string(),
                        wanted: wanted.to_f64() as f32,
                    });
                }
            }
        }
        comparison
    }
}

/// The sums of what `streams` have from `first` on.
fn elements<T: Element>(streams: &[Stream], first: usize, count: usize) -> Vec<T> {
    let mut values = vec![T::default(); count];
    for (block, values) in values.chunks_mut(BLOCK).enumerate() {
        let mut sums = vec![0; values.len()];
        streams
            .iter()
            .for_each(|stream| stream.add(first + block * BLOCK, &mut sums));
        let sums: Vec<f32> = sums.iter().map(|&sum| sum as f32).collect();
        T::round(&sums, values);
    }
    values
}
