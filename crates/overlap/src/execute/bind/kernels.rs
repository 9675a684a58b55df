//! The kernels of a plan: what their launches are told, and whether they can be launched at all.

use warpweave_gemm::chunked_matmul::Arrival;
use warpweave_gemm::matmul_reduce::ReduceOutput;
use warpweave_gemm::{AllGatherMatmul, ChunkedMatmul, GemmProblem, Layout, MatmulReduce, Protocol};
use warpweave_kernels::{GatherMatmul, GatherMode, LocalReduce, NaiveRemoteRead, Strided};
use warpweave_symm_mem::{DevicePtr, PadView, SignalPad};

use super::Binder;
use crate::execute::ExecuteBackend;
use crate::execute::error::{ExecuteError, Result};
use crate::execute::step::Action;
use crate::plan::{
    BufferId, GatherProtocol, Kernel, KernelShape, OneShot, Reduction, Region, SlotId, layout_of,
    shard,
};

impl<B: ExecuteBackend> Binder<'_, B> {
    fn pad_view(&self) -> Result<PadView> {
        self.pad
            .map(SignalPad::view)
            .ok_or_else(|| ExecuteError::InvalidPlan {
                plan: self.plan.name.clone(),
                rank: self.plan.rank,
                place: "slots".into(),
                why: "a kernel that signals needs a signal pad".into(),
            })
    }

    /// A sum of boxes where they lie.
    pub(super) fn sum(&self, srcs: &[Region], dst: &Region) -> Result<Action<B>> {
        let buffer = |region: &Region| &self.plan.buffers[region.buffer.0];
        let strided = |region: &Region| Strided {
            address: self.address(region),
            row_stride: buffer(region).cols,
        };
        let summands: Vec<_> = srcs.iter().map(strided).collect();
        let shape = (dst.rows.len(), dst.cols.len());
        let (rank, dtype) = (self.plan.rank, buffer(dst).dtype);
        Ok(Action::Reduce(LocalReduce::new(
            rank,
            &summands,
            strided(dst),
            shape,
            dtype,
        )?))
    }

    /// Launches a kernel on a problem of no rows with no peers, which touches nothing: what the device or the build lacks
    /// is found before any rank waits for this one.
    pub(super) fn probe(&self, action: &Action<B>) -> Result<()> {
        let backend = &self.executor.backend;
        let stream = backend.setup_stream()?;
        let alone = |pad: PadView| PadView {
            rank: 0,
            world: 1,
            ..pad
        };
        match action {
            Action::NaiveRemoteRead(launch) => {
                let empty = NaiveRemoteRead {
                    m: 0,
                    pad: alone(launch.pad),
                    ..*launch
                };
                // SAFETY: the launch reads and writes no row and signals no peer.
                unsafe { backend.naive_remote_read(&stream, &empty)? };
            }
            Action::GatherMatmul(launch) => {
                let empty = GatherMatmul {
                    m: 0,
                    pad: alone(launch.pad),
                    ..*launch
                };
                // SAFETY: as above.
                unsafe { backend.gather_matmul(&stream, &empty)? };
            }
            Action::Reduce(launch) => {
                let empty = LocalReduce { rows: 0, ..*launch };
                // SAFETY: as above.
                unsafe { backend.local_reduce(&stream, &empty)? };
            }
            _ => {}
        }
        Ok(backend.synchronize(&stream)?)
    }

    pub(super) fn kernel(&self, kernel: &Kernel) -> Result<Action<B>> {
        let pad = self.pad_view()?;
        let shape = kernel.shape();
        let own = |id| self.buffers.copy_of(id, self.plan.rank);
        let gather = |mode, a, staging, (b, c), ready| GatherMatmul {
            mode,
            a,
            staging,
            b,
            c,
            m: shape.m,
            n: shape.n,
            k: shape.k,
            dtype: shape.dtype,
            pad,
            ready,
            max_blocks: None,
        };
        let nothing = (DevicePtr::NULL, DevicePtr::NULL);
        let thread_load = |a, done: SlotId| GatherMode::ThreadLoad {
            a_peers: self.buffers.table(a),
            done: done.0,
        };
        let multimem = |staging, free: SlotId, signal_free| GatherMode::Multimem {
            address: self.buffers.multicast(staging),
            staging_peers: self.buffers.table(staging),
            free: free.0,
            signal_free,
        };
        let launch = match *kernel {
            Kernel::NaiveRemoteRead {
                a,
                b,
                c,
                ready,
                done,
                ..
            } => {
                let launch = NaiveRemoteRead {
                    a_peers: self.buffers.table(a),
                    b: own(b),
                    c: own(c),
                    m: shape.m,
                    n: shape.n,
                    k: shape.k,
                    dtype: shape.dtype,
                    pad,
                    ready: ready.0,
                    done: done.0,
                    max_blocks: None,
                };
                return Ok(Action::NaiveRemoteRead(launch));
            }
            Kernel::ThreadloadGatherMatmul {
                a,
                b,
                c,
                staging,
                ready,
                done,
                ..
            } => gather(
                thread_load(a, done),
                own(a),
                own(staging),
                (own(b), own(c)),
                ready.0,
            ),
            Kernel::ThreadloadGather {
                a,
                staging,
                ready,
                done,
                ..
            } => gather(thread_load(a, done), own(a), own(staging), nothing, ready.0),
            Kernel::MultimemGatherMatmul {
                a,
                b,
                c,
                staging,
                ready,
                free,
                ..
            } => {
                let mode = multimem(staging, free, true);
                gather(mode, own(a), own(staging), (own(b), own(c)), ready.0)
            }
            Kernel::MultimemGather {
                a,
                staging,
                ready,
                free,
                ..
            } => gather(
                multimem(staging, free, false),
                own(a),
                own(staging),
                nothing,
                ready.0,
            ),
            Kernel::WaitingMatmul {
                a,
                b,
                c,
                staging,
                ready,
                ..
            } => {
                let (rank, world) = (self.plan.rank, self.plan.world);
                let arrivals = kernel.arrivals(rank, world).into_iter();
                let gemm = ChunkedMatmul {
                    problem: GemmProblem::new(shape.m, shape.n, shape.k, shape.dtype),
                    own: shard(shape.m, rank, world),
                    arrivals: arrivals
                        .map(|(from, rows)| Arrival { rows, from })
                        .collect(),
                    a: own(a),
                    staging: own(staging),
                    b: own(b),
                    c: own(c),
                    pad,
                    ready: ready.0,
                };
                let planned = self.executor.backend.prepare_chunked(&gemm)?;
                return Ok(Action::ChunkedMatmul(planned));
            }
            Kernel::AllGatherMatmul {
                a,
                b,
                b_transposed,
                bias,
                c,
                staging,
                ready,
                chunk_rows,
                protocol,
                ..
            } => {
                let ranks = 0..self.plan.world;
                let shards = ranks.map(|r| shard(shape.m, r, self.plan.world));
                // Where rows come eagerly nobody says that they have been read.
                let (done, protocol) = match protocol {
                    GatherProtocol::Rendezvous { done, pushed } => {
                        (done.0, Protocol::Rendezvous { pushed })
                    }
                    GatherProtocol::Eager { .. } => (0, Protocol::Eager),
                };
                let gemm = AllGatherMatmul {
                    problem: GemmProblem {
                        bias: bias.is_some(),
                        ..GemmProblem::new(shape.m, shape.n, shape.k, shape.dtype)
                            .with_layouts(Layout::RowMajor, layout_of(b_transposed))
                    },
                    shards: shards.collect(),
                    chunk_rows,
                    a: self.copies(a),
                    staging: self.copies(staging),
                    b: own(b),
                    c: own(c),
                    bias: bias.map_or(DevicePtr::NULL, own),
                    pad,
                    ready: ready.0,
                    done,
                    protocol,
                    tiling: None,
                    max_blocks: None,
                };
                let planned = self.executor.backend.prepare_all_gather(&gemm)?;
                return Ok(Action::AllGatherMatmul(planned));
            }
            Kernel::ReducingMatmul(reduction) => {
                let gemm = self.reducing(&reduction, pad);
                let planned = self.executor.backend.prepare_reduce(&gemm)?;
                return Ok(Action::MatmulReduce(planned));
            }
            Kernel::OneShotMatmul(one_shot) => {
                let gemm = self.one_shot(&one_shot, pad);
                let planned = self.executor.backend.prepare_reduce(&gemm)?;
                return Ok(Action::MatmulReduce(planned));
            }
        };
        Ok(Action::GatherMatmul(launch))
    }

    /// The copies of a buffer, by rank.
    fn copies(&self, id: BufferId) -> Vec<DevicePtr> {
        let ranks = 0..self.plan.world;
        ranks.map(|rank| self.buffers.copy_of(id, rank)).collect()
    }

    fn reducing(&self, reduction: &Reduction, pad: PadView) -> MatmulReduce {
        let (rank, world) = (self.plan.rank, self.plan.world);
        let KernelShape { m, n, dtype, .. } = reduction.shape;
        let own = |id| self.buffers.copy_of(id, rank);
        MatmulReduce {
            problem: GemmProblem::new(m, n, reduction.depth(rank, world), dtype)
                .with_layouts(Layout::RowMajor, layout_of(reduction.b_transposed)),
            shards: reduction.shards(world),
            a: own(reduction.a),
            b: own(reduction.b),
            bias: DevicePtr::NULL,
            c: match reduction.everyone() {
                false => ReduceOutput::Owner(own(reduction.c)),
                true => ReduceOutput::Everyone(self.copies(reduction.c)),
            },
            staging: self.copies(reduction.staging),
            pulled: own(reduction.pulled),
            pad,
            ready: reduction.ready.0,
            // Where only owners get the sums, no slot is looked at.
            summed: reduction.summed.unwrap_or(reduction.ready).0,
            done: reduction.done.0,
            group_rows: reduction.rows,
            tiling: None,
            max_blocks: None,
        }
    }

    fn one_shot(&self, one_shot: &OneShot, pad: PadView) -> MatmulReduce {
        let (rank, world) = (self.plan.rank, self.plan.world);
        let KernelShape { m, n, dtype, .. } = one_shot.shape;
        let own = |id| self.buffers.copy_of(id, rank);
        MatmulReduce {
            problem: GemmProblem::new(m, n, one_shot.depth(rank, world), dtype)
                .with_layouts(Layout::RowMajor, layout_of(one_shot.b_transposed)),
            a: own(one_shot.a),
            b: own(one_shot.b),
            bias: DevicePtr::NULL,
            c: ReduceOutput::Each(own(one_shot.c)),
            staging: self.copies(one_shot.staging),
            pad,
            ready: one_shot.ready.0,
            done: one_shot.calls.0,
            tiling: None,
            max_blocks: None,
            // What only owners of rows have.
            shards: Vec::new(),
            pulled: DevicePtr::NULL,
            summed: one_shot.calls.0,
            group_rows: 0,
        }
    }
}
