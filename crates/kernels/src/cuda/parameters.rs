//! What the kernels take by value, as the structures of the same names in the `.cu` files.

use warpweave_symm_mem::{DevicePtr, PadView};

use crate::{GatherMatmul, GatherMode, MAX_PARTIALS};

/// Parameter of `naive_remote_read_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct NaiveRemoteRead {
    pub a_peers: DevicePtr,
    pub b: DevicePtr,
    pub c: DevicePtr,
    pub pad: PadView,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub ready: u32,
    pub done: u32,
    pub reserved: u32,
}
const _: () = assert!(size_of::<NaiveRemoteRead>() == 128);

/// Parameter of `threadload_gather*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct ThreadloadGather {
    pub a_peers: DevicePtr,
    pub staging: DevicePtr,
    pub b: DevicePtr,
    pub c: DevicePtr,
    pub pad: PadView,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub element_size: u32,
    pub ready: u32,
    pub done: u32,
    pub neighbours: u32,
    pub reserved: u32,
}
const _: () = assert!(size_of::<ThreadloadGather>() == 144);

/// Parameter of `multimem_gather*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct MultimemGather {
    pub staging_peers: DevicePtr,
    pub multicast: DevicePtr,
    pub a: DevicePtr,
    pub staging: DevicePtr,
    pub b: DevicePtr,
    pub c: DevicePtr,
    pub pad: PadView,
    pub m: u32,
    pub n: u32,
    pub k: u32,
    pub element_size: u32,
    pub ready: u32,
    pub free: u32,
    pub signal_free: u32,
    pub neighbours: u32,
}
const _: () = assert!(size_of::<MultimemGather>() == 160);

/// A box, with the bytes from row to row.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Strided {
    pub address: DevicePtr,
    pub row_stride: u64,
}

/// Parameter of `sum_*`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct ReduceParams {
    pub partials: [Strided; MAX_PARTIALS],
    pub dst: Strided,
    /// Vectors or elements of a row.
    pub columns: u32,
    /// Those of all rows.
    pub units: u32,
    pub count: u32,
    pub vectors: u32,
}
const _: () = assert!(size_of::<ReduceParams>() == 160);

impl From<&crate::LocalReduce> for ReduceParams {
    /// The sizes were validated: they fit.
    fn from(launch: &crate::LocalReduce) -> Self {
        let launch = launch.flattened();
        let size = launch.dtype.size();
        let vectors = launch.has_vectors();
        let columns = match vectors {
            true => launch.cols * size / 16,
            false => launch.cols,
        };
        let strided = |b: crate::Strided| Strided {
            address: b.address,
            row_stride: (b.row_stride * size) as u64,
        };
        ReduceParams {
            partials: launch.partials.map(strided),
            dst: strided(launch.dst),
            columns: columns as u32,
            units: (launch.rows * columns) as u32,
            count: launch.count as u32,
            vectors: u32::from(vectors),
        }
    }
}

/// Either, as the descriptor's mode asks.
pub(super) enum Gather {
    Threadload(ThreadloadGather),
    Multimem(MultimemGather),
}

impl From<&crate::NaiveRemoteRead> for NaiveRemoteRead {
    /// The sizes were validated: they fit.
    fn from(launch: &crate::NaiveRemoteRead) -> Self {
        NaiveRemoteRead {
            a_peers: launch.a_peers,
            b: launch.b,
            c: launch.c,
            pad: launch.pad,
            m: launch.m as u32,
            n: launch.n as u32,
            k: launch.k as u32,
            ready: launch.ready as u32,
            done: launch.done as u32,
            reserved: 0,
        }
    }
}

impl From<&GatherMatmul> for Gather {
    /// The sizes were validated: they fit.
    fn from(launch: &GatherMatmul) -> Self {
        let GatherMatmul {
            a,
            staging,
            b,
            c,
            pad,
            ..
        } = *launch;
        let [m, n, k, ready] = [launch.m, launch.n, launch.k, launch.ready].map(|v| v as u32);
        let element_size = launch.dtype.size() as u32;
        let neighbours = u32::from(neighbours(launch));
        match launch.mode {
            GatherMode::ThreadLoad { a_peers, done } => Gather::Threadload(ThreadloadGather {
                a_peers,
                staging,
                b,
                c,
                pad,
                m,
                n,
                k,
                element_size,
                ready,
                done: done as u32,
                neighbours,
                reserved: 0,
            }),
            GatherMode::Multimem {
                address,
                staging_peers,
                free,
                signal_free,
            } => Gather::Multimem(MultimemGather {
                staging_peers,
                multicast: address,
                a,
                staging,
                b,
                c,
                pad,
                m,
                n,
                k,
                element_size,
                ready,
                free: free as u32,
                signal_free: u32::from(signal_free),
                neighbours,
            }),
        }
    }
}

/// Whether every row of B and C is aligned to four elements, so that a thread can store four columns at once.
fn neighbours(launch: &GatherMatmul) -> bool {
    let four = 4 * launch.dtype.size() as u64;
    launch.n.is_multiple_of(4) && launch.b.0.is_multiple_of(four) && launch.c.0.is_multiple_of(four)
}
