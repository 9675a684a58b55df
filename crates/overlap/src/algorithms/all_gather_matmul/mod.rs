//! All-gather + matmul: C\[M,N\] = A\[M,K\] · B\[K,N\], A sharded by rows, B each rank's own.
//!
//! First the seven of nvFuser's benchmark, by its names, then the pipelines, in which the products of the rows that have
//! arrived run beside the transfer of the others. Every plan has the buffers `a` (this rank's shard, in rows 0 .. shard
//! length of a buffer that has the rows of the largest shard), `b` and `c`; all but the naive one also `staging`, which has
//! a place for all rows of A. At a world of one the pipelines are one product, with no staging.

pub mod baseline_cuda;
pub mod baseline_nccl;
pub mod broadcast_pipeline;
mod buffers;
pub mod direct_exchange;
pub mod multimem_gather_cutlass;
pub mod multimem_gather_scalar;
pub mod naive_remote_read;
pub mod push_chunks;
pub mod ring_get;
pub mod ring_put;
pub mod threadload_gather_cutlass;
pub mod threadload_gather_scalar;

use super::{Algorithm, Capabilities};

const ANYWHERE: Capabilities = Capabilities {
    multicast: false,
    sm90: false,
};
const SM90: Capabilities = Capabilities {
    sm90: true,
    ..ANYWHERE
};
const MULTICAST: Capabilities = Capabilities {
    multicast: true,
    ..ANYWHERE
};

/// How many of [`ALGORITHMS`] are those of nvFuser's benchmark.
pub(super) const TABLE: usize = 7;

pub(super) const ALGORITHMS: &[Algorithm] = &[
    Algorithm {
        name: baseline_nccl::NAME,
        summary: "NCCL all-gather, then cuBLASLt",
        needs: ANYWHERE,
        build: baseline_nccl::build,
    },
    Algorithm {
        name: baseline_cuda::NAME,
        summary: "push by copy engine, or one multicast copy where it is enabled, then cuBLASLt",
        needs: ANYWHERE,
        build: baseline_cuda::build,
    },
    Algorithm {
        name: naive_remote_read::NAME,
        summary: "one kernel, one thread an element of C, reading A from its owner",
        needs: ANYWHERE,
        build: naive_remote_read::build,
    },
    Algorithm {
        name: threadload_gather_scalar::NAME,
        summary: "one kernel: rows gathered into staging by thread loads, then a scalar product",
        needs: ANYWHERE,
        build: threadload_gather_scalar::build,
    },
    Algorithm {
        name: multimem_gather_scalar::NAME,
        summary: "one kernel: owners store their rows by multicast, then a scalar product",
        needs: Capabilities {
            sm90: true,
            ..MULTICAST
        },
        build: multimem_gather_scalar::build,
    },
    Algorithm {
        name: threadload_gather_cutlass::NAME,
        summary: "a gather kernel of thread loads, then the CUTLASS SM90 product",
        needs: SM90,
        build: threadload_gather_cutlass::build,
    },
    Algorithm {
        name: multimem_gather_cutlass::NAME,
        summary: "a gather kernel of multicast stores, then the CUTLASS SM90 product",
        needs: Capabilities {
            sm90: true,
            ..MULTICAST
        },
        build: multimem_gather_cutlass::build,
    },
    Algorithm {
        name: direct_exchange::NAME,
        summary: "pull every shard from its owner, step by step over four streams",
        needs: ANYWHERE,
        build: direct_exchange::build::<{ direct_exchange::DEFAULT_STREAMS }>,
    },
    Algorithm {
        name: "directExchangePipeline:1",
        summary: "the same over one stream: nothing overlaps",
        needs: ANYWHERE,
        build: direct_exchange::build::<1>,
    },
    Algorithm {
        name: "directExchangePipeline:2",
        summary: "the same over two streams",
        needs: ANYWHERE,
        build: direct_exchange::build::<2>,
    },
    Algorithm {
        name: "directExchangePipeline:8",
        summary: "the same over eight streams",
        needs: ANYWHERE,
        build: direct_exchange::build::<8>,
    },
    Algorithm {
        name: ring_get::NAME,
        summary: "the ring: get the next shard from the left neighbour beside the present product",
        needs: ANYWHERE,
        build: ring_get::build,
    },
    Algorithm {
        name: ring_put::NAME,
        summary: "the ring: put the present shard to the right neighbour beside its product",
        needs: ANYWHERE,
        build: ring_put::build,
    },
    Algorithm {
        name: push_chunks::NAME,
        summary: "push by copy engine in two chunks a shard, products chunk by chunk",
        needs: ANYWHERE,
        build: push_chunks::build::<{ push_chunks::DEFAULT_CHUNKS }>,
    },
    Algorithm {
        name: "pushChunks:1",
        summary: "the same in whole shards",
        needs: ANYWHERE,
        build: push_chunks::build::<1>,
    },
    Algorithm {
        name: "pushChunks:4",
        summary: "the same in four chunks a shard",
        needs: ANYWHERE,
        build: push_chunks::build::<4>,
    },
    Algorithm {
        name: "pushChunks:8",
        summary: "the same in eight chunks a shard",
        needs: ANYWHERE,
        build: push_chunks::build::<8>,
    },
    Algorithm {
        name: broadcast_pipeline::NAME,
        summary: "one owner after the other pushes to all, products behind",
        needs: ANYWHERE,
        build: broadcast_pipeline::build,
    },
];
