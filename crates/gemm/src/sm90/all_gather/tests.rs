//! Whatever a GEMM says, its choice and its tables are made or it is refused.

use proptest::prelude::*;
use warpweave_symm_mem::{DType, DevicePtr};

use super::*;
use crate::sm90::CONFIGS;
use crate::sm90::resident::assert_told_apart;
use crate::{GemmProblem, Peers, Scaling};

/// Sizes of small and of absurd GEMMs.
fn size() -> impl Strategy<Value = usize> {
    let most = i32::MAX as usize;
    prop_oneof![2 => 1usize..3000, 1 => most - 8..most + 1]
}

pub(super) fn gemm(
    [m, n, k]: [usize; 3],
    (rank, world): (usize, usize),
    chunk_rows: usize,
    protocol: Protocol,
) -> AllGatherMatmul {
    let start = |i: usize| i * (m / world) + i.min(m % world);
    AllGatherMatmul {
        problem: GemmProblem::new(m, n, k, DType::Bf16),
        shards: (0..world).map(|i| start(i)..start(i + 1)).collect(),
        chunk_rows,
        rank,
        world,
        ready: 1,
        done: 0,
        protocol,
        tiling: None,
        max_blocks: None,
    }
}

pub(super) fn operands(gemm: &AllGatherMatmul) -> AllGatherOperands {
    let on_all: Peers = std::iter::repeat_n(DevicePtr(16), gemm.world).collect();
    AllGatherOperands {
        a: on_all,
        local_a: DevicePtr::NULL,
        staging: on_all,
        staging_stride: (gemm.problem.m * gemm.row_bytes()).next_multiple_of(16),
        b: DevicePtr(16),
        c: DevicePtr(16),
        bias: DevicePtr::NULL,
        scales: GatheredScales {
            a: on_all,
            staging: on_all,
            staging_stride: (4 * gemm.problem.m).next_multiple_of(16),
            b: DevicePtr(16),
        },
        pad: crate::pad_nowhere((gemm.rank, gemm.world), 4096),
    }
}

fn refusal(gemm: &AllGatherMatmul) -> String {
    let checked = gemm.validate().and_then(|()| check(gemm));
    checked.unwrap_err().to_string()
}

/// Parameters are kept by these addresses: two launches with the same have the same parameter.
#[test]
fn every_address_of_a_launch_tells_its_parameter_from_others() {
    let problem = GemmProblem {
        bias: true,
        ..GemmProblem::e4m3(64, 16, 16, Scaling::Row, DType::Bf16)
    };
    let gemm = AllGatherMatmul {
        problem,
        ..gemm([64, 16, 16], (1, 2), 8, Protocol::PULL)
    };
    let first = operands(&gemm);
    let (other, others) = (
        DevicePtr(32),
        Peers::from(vec![DevicePtr(16), DevicePtr(32)]),
    );
    let of = |scales| AllGatherOperands { scales, ..first };
    let changed = [
        AllGatherOperands { a: others, ..first },
        AllGatherOperands {
            local_a: other,
            ..first
        },
        AllGatherOperands {
            staging: others,
            ..first
        },
        AllGatherOperands { b: other, ..first },
        AllGatherOperands { c: other, ..first },
        AllGatherOperands {
            bias: other,
            ..first
        },
        of(GatheredScales {
            a: others,
            ..first.scales
        }),
        of(GatheredScales {
            staging: others,
            ..first.scales
        }),
        of(GatheredScales {
            b: other,
            ..first.scales
        }),
    ];
    let key = |operands: &AllGatherOperands| {
        let gemm = &gemm;
        addresses(&Launch { gemm, operands })
    };
    assert_told_apart(key, &first, &changed);
}

/// Rows of a chunk, of a shard of `m` / 2 rows of `k` elements of 16 bits, and how they are pulled, for small
/// tiles.
#[test]
fn chunks_of_more_rows_come_in_finer_slices() {
    let of = |m, k, chunk_rows| Slicing::new(&gemm([m, 8, k], (0, 2), chunk_rows, Protocol::PULL));
    let slicing = |bytes: usize, slices, piece_rows| Slicing {
        steps: bytes / 128,
        slices,
        piece_rows,
    };
    assert_eq!(of(8192, 4096, 256), slicing(4096, 2, 1));
    assert_eq!(of(8192, 4096, 1024), slicing(2048, 4, 2));
    assert_eq!(of(8192, 4096, 2048), slicing(1024, 8, 4));
    assert_eq!(of(8192, 4096, 3840), slicing(512, 16, 8));
    assert_eq!(of(8192, 4096, 4096), slicing(512, 16, 8));
    // Not more rows than there are, and those of all peers.
    assert_eq!(of(1024, 4096, 1 << 20), slicing(4096, 2, 1));
    let of_four = gemm([4096, 8, 4096], (0, 4), 768, Protocol::PULL);
    assert_eq!(Slicing::new(&of_four), slicing(1024, 8, 4));
    // Short rows are one slice.
    assert_eq!(of(1024, 1024, 512), slicing(2048, 1, 2));
    assert_eq!(of(1024, 8, 512), slicing(128, 1, 32));
    assert_eq!(of(8192, 4100, 4096), slicing(512, 17, 8));
    // No piece has rows of two chunks.
    assert_eq!(of(1024, 8, 100), slicing(128, 1, 4));
    assert_eq!(of(1024, 8, 99), slicing(128, 1, 1));
    assert_eq!(of(1024, 8, 515), slicing(128, 1, 32));
}

#[test]
fn chunks_that_are_too_many_to_count_are_refused() {
    let of = |chunk_rows| gemm([1 << 30, 8, 8], (0, 2), chunk_rows, Protocol::PULL);
    assert!(refusal(&of(1)).contains("chunk_rows = 1"));
    assert!(refusal(&of(0)).contains("chunk_rows = 0"));
    assert!(refusal(&of(usize::MAX)).contains("chunk_rows = "));
    // Each chunk of rows this long is pulled in many slices, which have a counter each.
    let long = gemm([1 << 22, 8, 1 << 22], (0, 8), 8, Protocol::PULL);
    assert!(refusal(&long).contains("counters"), "{}", refusal(&long));
}

#[test]
fn stagings_that_no_address_reaches_are_refused() {
    let most = i32::MAX as usize;
    let eager = gemm([most, 8, most], (0, 2), most, Protocol::Eager);
    assert!(refusal(&eager).contains("address space"));
}

#[test]
fn operands_that_do_not_fit_the_gemm_are_refused() {
    let eager = gemm([64, 8, 8], (0, 2), 8, Protocol::Eager);
    let refused = |change: &dyn Fn(&mut AllGatherOperands), needle: &str| {
        let mut bad = operands(&eager);
        change(&mut bad);
        let launch = Launch {
            gemm: &eager,
            operands: &bad,
        };
        let error = launch.check(|_| ADDRESS_ALIGNMENT).unwrap_err().to_string();
        assert!(error.contains(needle), "{error}");
    };
    refused(&|o| o.pad.rank = 1, "the pad is of rank 1 of 2");
    refused(&|o| o.pad.world = 3, "the pad is of rank 0 of 3");
    refused(&|o| o.pad.slots = 4, "4 slots from 1 on of a pad with 4");
    refused(
        &|o| o.a = DevicePtr(16).into(),
        "1 addresses with 2 stagings",
    );
    // Local rows that are pulled from a copy.
    let pulled = gemm([64, 8, 8], (0, 2), 8, Protocol::PULL);
    let mut askew = operands(&pulled);
    askew.local_a = DevicePtr(8);
    let launch = Launch {
        gemm: &pulled,
        operands: &askew,
    };
    let error = launch.check(|_| ADDRESS_ALIGNMENT).unwrap_err().to_string();
    assert!(error.starts_with("operand local A of "), "{error}");
    // Of rows of e4m3 each has a scale.
    let mut narrow = gemm([64, 8, 16], (0, 2), 8, Protocol::Eager);
    narrow.problem = GemmProblem::e4m3(64, 8, 16, Scaling::Row, DType::Bf16);
    narrow.validate().unwrap();
    check(&narrow).unwrap();
    let scaled = |change: &dyn Fn(&mut GatheredScales)| {
        let mut operands = operands(&narrow);
        change(&mut operands.scales);
        let launch = Launch {
            gemm: &narrow,
            operands: &operands,
        };
        launch.check(|_| ADDRESS_ALIGNMENT)
    };
    scaled(&|_| ()).unwrap();
    let unscaled = |change: &dyn Fn(&mut GatheredScales), needle: &str| {
        let error = scaled(change).unwrap_err().to_string();
        assert!(error.contains(needle), "{error}");
    };
    unscaled(
        &|s| s.a = DevicePtr(16).into(),
        "[1, 2] addresses of scales of A",
    );
    unscaled(&|s| s.staging = Peers::NONE, "not [2, 2]");
    // Scales are read and copied one by one: those of any row may be the first.
    scaled(&|s| s.staging_stride = 260).unwrap();
    scaled(&|s| s.a = [DevicePtr(20), DevicePtr(16)].into_iter().collect()).unwrap();
    unscaled(&|s| s.staging_stride = 258, "a multiple of 4");
    unscaled(&|s| s.staging_stride = 240, "the 256 bytes of its scales");
    unscaled(&|s| s.b = DevicePtr::NULL, "scales of B");
    let askew = [DevicePtr(10), DevicePtr(16)];
    unscaled(&|s| s.a = askew.into_iter().collect(), "address 0xa");
    narrow.problem = GemmProblem::e4m3(64, 8, 16, Scaling::Block, DType::Bf16);
    assert!(refusal(&narrow).contains("scales must be by tensor or row"));
    // 64 rows of 16 bytes.
    refused(&|o| o.staging_stride = 1008, "staging_stride = 1008");
    refused(&|o| o.staging_stride = 1032, "a multiple of 16");
    refused(&|o| o.staging_stride = usize::MAX - 15, "staging_stride = ");
    let mut good = operands(&eager);
    good.staging_stride = 4096;
    let launch = Launch {
        gemm: &eager,
        operands: &good,
    };
    launch.check(|_| ADDRESS_ALIGNMENT).unwrap();
    assert_eq!(launch.staged(1, 2, 1), DevicePtr(16 + 32 + 4096));
}

proptest! {
    #[test]
    fn no_value_of_any_parameter_panics(
        (m, n, k) in (size(), size(), size()),
        (rank, world) in (0usize..8, 1usize..9),
        chunk_rows in prop_oneof![0usize..300, any::<usize>()],
        pushed in prop::option::of(any::<usize>()),
        swizzle in any::<u32>(),
        blocks in 0u32..200,
    ) {
        let protocol = match pushed {
            Some(pushed) => Protocol::Rendezvous { pushed },
            None => Protocol::Eager,
        };
        let gemm = gemm([m, n, k], (rank % world, world), chunk_rows, protocol);
        if let Ok(slicing) = gemm.validate().and_then(|()| check(&gemm)) {
            let _ = favourite(&gemm, blocks);
            let _ = slicing.map(|slicing| counters(&gemm, &slicing));
            for config in CONFIGS {
                let [height, width] = config::cluster_tile(&config).map(|extent| extent as usize);
                let columns = problem_columns(&gemm, width);
                let _ = groups(&gemm, (height, columns), swizzle as usize);
            }
            let operands = operands(&gemm);
            let launch = Launch { gemm: &gemm, operands: &operands };
            let _ = launch.check(|_| ADDRESS_ALIGNMENT);
            let first = launch.staged(world - 1, m - 1, gemm.protocol.stagings() - 1);
            prop_assert!(first.0 > 0);
        }
    }
}

fn problem_columns(gemm: &AllGatherMatmul, width: usize) -> usize {
    gemm.problem.n.div_ceil(width)
}
