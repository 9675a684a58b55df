//! All-gather + matmul in seven ways: C\[M,N\] = A\[M,K\] · B\[K,N\], A sharded by rows, B each rank's own.
//!
//! The names are those of nvFuser's benchmark of the same seven. Every plan has the buffers `a` (this rank's shard,
//! in rows 0 .. shard length of a buffer that has the rows of the largest shard), `b` and `c`; all but the naive one
//! also `staging`, which holds all rows of A.

pub mod baseline_cuda;
pub mod baseline_nccl;
mod buffers;
pub mod multimem_gather_cutlass;
pub mod multimem_gather_scalar;
pub mod naive_remote_read;
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
];
