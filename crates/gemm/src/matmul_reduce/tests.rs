//! What is refused, and the order of the groups against its definition.

use super::*;
use warpweave_symm_mem::DType;

/// Shards of `m` rows as even as can be.
pub(crate) fn gemm(m: usize, (rank, world): (usize, usize), group_rows: usize) -> MatmulReduce {
    let start = |i: usize| i * (m / world) + i.min(m % world);
    MatmulReduce {
        problem: GemmProblem::new(m, 520, 64, DType::Bf16),
        shards: (0..world).map(|i| start(i)..start(i + 1)).collect(),
        c: ReduceOutput::Owner,
        rank,
        world,
        ready: 0,
        reduced: 32,
        done: 64,
        group_rows,
        tiling: None,
        max_blocks: None,
    }
}

/// The GEMM with results for everyone, or for owners alone.
pub(crate) fn of(everyone: bool, mut gemm: MatmulReduce) -> MatmulReduce {
    if everyone {
        gemm.c = ReduceOutput::Everyone;
    }
    gemm
}

/// The operands of a launch of the GEMM, whose pad has 65 slots.
pub(crate) fn operands(gemm: &MatmulReduce) -> ReduceOperands {
    let address = DevicePtr(1 << 20);
    let on_all: Peers = std::iter::repeat_n(address, gemm.world).collect();
    ReduceOperands {
        a: address,
        b: address,
        bias: DevicePtr::NULL,
        scales: [address; 2],
        c: match gemm.c {
            ReduceOutput::Everyone | ReduceOutput::Multimem => on_all,
            ReduceOutput::Owner | ReduceOutput::Each => address.into(),
        },
        local_c: DevicePtr::NULL,
        staging: on_all,
        staging_stride: gemm.world * gemm.problem.m * gemm.row_bytes(),
        multicast: [address; 2],
        pulled: address,
        pad: crate::pad_nowhere((gemm.rank, gemm.world), 65),
    }
}

/// Checks a GEMM with operands that fit it, but for `change`.
fn check(gemm: &MatmulReduce, change: impl FnOnce(&mut ReduceOperands)) -> Result<(), Error> {
    gemm.validate()?;
    let mut operands = operands(gemm);
    change(&mut operands);
    let launch = Launch {
        gemm,
        operands: &operands,
    };
    launch.check(|_| 16)
}

fn every_job(each: impl Fn(&[MatmulReduce])) {
    for world in 1..=8 {
        for m in [1usize, 7, 64, 97, 8 * world, 300] {
            for group_rows in [1000, 7, 16] {
                if m.div_ceil(world).div_ceil(group_rows) > 32 {
                    continue;
                }
                for everyone in [false, true] {
                    let job: Vec<_> = (0..world)
                        .map(|rank| of(everyone, gemm(m, (rank, world), group_rows)))
                        .collect();
                    job.iter().for_each(|rank| check(rank, |_| {}).unwrap());
                    each(&job);
                }
            }
        }
    }
}

#[test]
fn every_row_is_in_one_group_of_its_owner() {
    every_job(|job| {
        let gemm = &job[0];
        let mut times = vec![0; gemm.problem.m];
        for Group { owner, index, rows } in gemm.order() {
            let shard = &gemm.shards[owner];
            assert_eq!(rows.start, shard.start + index * gemm.group_rows);
            assert!(!rows.is_empty() && rows.end <= shard.end);
            times[rows].iter_mut().for_each(|times| *times += 1);
        }
        assert!(times.iter().all(|&times| times == 1));
    });
}

#[test]
fn own_groups_come_last_or_a_round_after_where_everyone_gets_the_result() {
    let order = |everyone| {
        let order = of(everyone, gemm(36, (1, 3), 4)).order();
        order.iter().map(|g| (g.owner, g.index)).collect::<Vec<_>>()
    };
    let rounds = [(2, 0), (0, 0), (2, 1), (0, 1)];
    let last = [(2, 2), (0, 2), (1, 0), (1, 1), (1, 2)];
    assert_eq!(order(false), [&rounds[..], &last].concat());
    let last = [(1, 0), (2, 2), (0, 2), (1, 1), (1, 2)];
    assert_eq!(order(true), [&rounds[..], &last].concat());
}

/// Each rank takes its groups one after the other, as the host does, and waits for the partials of its
/// own.
#[test]
fn ranks_that_wait_for_each_other_all_end() {
    every_job(|job| {
        let orders: Vec<_> = job.iter().map(MatmulReduce::order).collect();
        let mut done = vec![0; job.len()];
        let sent = |done: &[usize], source: usize, group: &Group| {
            orders[source][..done[source]].contains(group)
        };
        loop {
            let before = done.clone();
            for (rank, order) in orders.iter().enumerate() {
                while let Some(group) = order.get(done[rank]) {
                    let mut peers = job[rank].peers();
                    if group.owner == rank && !peers.all(|peer| sent(&done, peer, group)) {
                        break;
                    }
                    done[rank] += 1;
                }
            }
            if done == before {
                break;
            }
        }
        let all: Vec<_> = orders.iter().map(Vec::len).collect();
        assert_eq!(done, all);
    });
}

#[test]
fn partials_lie_apart() {
    every_job(|job| {
        for (rank, gemm) in job.iter().enumerate() {
            let operands = operands(gemm);
            let gemm = Launch {
                gemm,
                operands: &operands,
            };
            let row = gemm.row_from(DevicePtr(0), 1).0;
            let most = gemm.most_rows() as u64;
            let apart = |place: &dyn Fn(usize) -> DevicePtr, first: DevicePtr| {
                let peers = (0..job.len()).filter(|&peer| peer != rank);
                let places: Vec<_> = peers.map(|peer| (place(peer).0 - first.0) / row).collect();
                let wanted: Vec<_> = (0..places.len() as u64).map(|i| i * most).collect();
                assert_eq!(places, wanted);
            };
            apart(&|owner| gemm.staged(rank, owner), operands.staging[rank]);
            apart(&|source| gemm.pulled(source), operands.pulled);
        }
    });
}

/// In one shot: in both stagings, those of all ranks in their order.
#[test]
fn partials_of_all_ranks_lie_apart() {
    let gemm = gemm(10, (1, 3), 4);
    let partial = gemm.row_from(DevicePtr(0), 10).0;
    let places = || (0..2).flat_map(|parity| (0..3).map(move |source| (source, parity)));
    for gap in [0, 4096] {
        let mut operands = operands(&gemm);
        operands.staging_stride += gap;
        let launch = Launch {
            gemm: &gemm,
            operands: &operands,
        };
        for (place, (source, parity)) in places().enumerate() {
            let at = launch.left(source, 2, parity);
            let beyond = (parity * gap) as u64;
            assert_eq!(
                at.0,
                operands.staging[2].0 + place as u64 * partial + beyond
            );
        }
    }
}

#[test]
fn results_go_where_the_rows_belong() {
    let mut gemm = gemm(10, (1, 2), 4);
    let mut operands = operands(&gemm);
    let results = |gemm: &MatmulReduce, operands: &ReduceOperands| {
        let launch = Launch { gemm, operands };
        launch.check(|_| 16).unwrap();
        launch.own_results()
    };
    assert_eq!(results(&gemm, &operands), DevicePtr(1 << 20));
    gemm.c = ReduceOutput::Everyone;
    operands.c = [DevicePtr(4096), DevicePtr(8192)].into_iter().collect();
    gemm.validate().unwrap();
    let before = 5 * 520 * 2;
    assert_eq!(results(&gemm, &operands), DevicePtr(8192 + before));
    let places = |operands: &ReduceOperands| {
        let gemm = &gemm;
        let launch = Launch { gemm, operands };
        (launch.own_c(), launch.local_results())
    };
    assert_eq!(places(&operands), (DevicePtr(8192), None));
    // In local memory too, where this rank has all rows for itself.
    operands.local_c = DevicePtr(1 << 16);
    assert_eq!(results(&gemm, &operands), DevicePtr(8192 + before));
    let local = (DevicePtr(1 << 16), Some(DevicePtr((1 << 16) + before)));
    assert_eq!(places(&operands), local);
}

/// By multimem a staging has the rows of C, and the owner's are at the same place in all.
#[test]
fn the_switch_adds_what_lies_at_one_place() {
    let mut gemm = gemm(10, (1, 3), 4);
    gemm.c = ReduceOutput::Multimem;
    let mut operands = operands(&gemm);
    operands.multicast = [DevicePtr(1 << 30), DevicePtr(1 << 40)];
    let launch = Launch {
        gemm: &gemm,
        operands: &operands,
    };
    launch.check(|_| 16).unwrap();
    launch.check_multicast(16).unwrap();
    let before = gemm.row_from(DevicePtr(0), gemm.shards[1].start).0;
    for source in 0..3 {
        assert_eq!(
            launch.staged(source, 1).0,
            operands.staging[source].0 + before
        );
    }
    let [c, staging] = launch.own_multicast();
    assert_eq!([c.0, staging.0], [(1 << 30) + before, (1 << 40) + before]);
}

#[test]
fn a_gpu_without_multicast_addresses_is_told_what_to_do() {
    let mut by_multimem = gemm(64, (0, 2), 8);
    by_multimem.c = ReduceOutput::Multimem;
    let refused = |gemm: &MatmulReduce, multicast: [u64; 2]| {
        let mut operands = operands(gemm);
        operands.multicast = multicast.map(DevicePtr);
        let operands = &operands;
        Launch { gemm, operands }.check_multicast(16)
    };
    for (multicast, wanted) in [([0, 4096], "C"), ([4096, 0], "staging"), ([8, 16], "C")] {
        let error = refused(&by_multimem, multicast).unwrap_err();
        assert!(
            error.to_string().contains("WARPWEAVE_MULTICAST=1"),
            "{error}"
        );
        let Error::Operand { operand, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(operand, wanted);
    }
    refused(&gemm(64, (0, 2), 8), [0, 0]).unwrap();
    by_multimem.problem.bias = true;
    let error = by_multimem.validate().unwrap_err().to_string();
    assert!(error.contains("no bias"), "{error}");
}

#[test]
fn descriptors_that_contradict_themselves_are_refused() {
    let good = gemm(64, (0, 2), 8);
    let refused = |change: &dyn Fn(&mut MatmulReduce), needle: &str| {
        let mut bad = good.clone();
        change(&mut bad);
        let text = check(&bad, |_| {}).unwrap_err().to_string();
        assert!(text.contains(needle), "{text}");
    };
    let misplaced = |change: &dyn Fn(&mut ReduceOperands), needle: &str| {
        let everyone = of(true, good.clone());
        let text = check(&everyone, change).unwrap_err().to_string();
        assert!(text.contains(needle), "{text}");
    };
    refused(&|p| p.shards[1] = 33..64, "row 32 is not the first");
    refused(&|p| p.problem.m = 65, "64 rows are owned, 65");
    refused(&|p| p.shards.truncate(1), "1 shards in a world of 2");
    misplaced(&|o| o.staging = DevicePtr(1 << 20).into(), "1 stagings");
    misplaced(&|o| o.c = Peers::NONE, "0 copies of C");
    misplaced(&|o| o.pad.rank = 1, "the pad is of rank 1 of 2");
    let at = [DevicePtr(16), DevicePtr(8)];
    misplaced(&|o| o.a = DevicePtr(8), "operand A of 64x520x64");
    misplaced(&|o| o.pulled = DevicePtr(8), "operand pulled of 64x520x64");
    misplaced(
        &|o| o.local_c = DevicePtr(8),
        "operand local C of 64x520x64",
    );
    for (change, operand) in [
        ((|o, at| o.c = at) as fn(&mut ReduceOperands, Peers), "C"),
        (|o, at| o.staging = at, "staging"),
    ] {
        let change = |o: &mut ReduceOperands| change(o, at.into_iter().collect());
        misplaced(&change, &format!("operand {operand} of 64x520x64"));
        misplaced(&change, "address 0x8 of rank 1 must be");
    }
    let local = check(&good, |o| o.local_c = DevicePtr(16)).unwrap_err();
    assert!(local.to_string().contains("may be local"), "{local}");
    refused(&|p| p.rank = 2, "a world of 2");
    refused(&|p| p.world = 17, "16 ranks at most");
    refused(&|p| p.group_rows = 0, "group_rows = 0");
    refused(
        &|p| (p.ready, p.done) = (62, 0),
        "ready takes slots 62..66 of a pad with 65",
    );
    refused(&|p| p.done = 65, "done takes slots 65..66");
    refused(&|p| p.done = 3, "ready and done share slots");
    let everyone = |reduced| {
        move |p: &mut MatmulReduce| {
            p.c = ReduceOutput::Everyone;
            p.reduced = reduced;
        }
    };
    refused(
        &|p| {
            everyone(62)(p);
            p.done = 61;
        },
        "reduced takes slots 62..66",
    );
    refused(&everyone(3), "ready and reduced share slots");
    refused(&everyone(61), "done and reduced share slots");
    // Where only owners get the result nobody looks at it.
    let mut unused = good.clone();
    unused.reduced = usize::MAX;
    check(&unused, |_| {}).unwrap();
    refused(
        &|p| (p.problem.batch.count, p.problem.batch.c_stride) = (2, 1 << 20),
        "it is one GEMM, stored in its own type",
    );
    refused(
        &|p| p.problem = p.problem.with_layouts(Layout::Transposed, Layout::RowMajor),
        "A must be row-major",
    );
    let e4m3 = |scaling, out| {
        move |p: &mut MatmulReduce| p.problem = GemmProblem::e4m3(64, 520, 64, scaling, out)
    };
    for out in [DType::F32, DType::F16, DType::Bf16] {
        let mut scaled = good.clone();
        e4m3(Scaling::Row, out)(&mut scaled);
        check(&scaled, |_| {}).unwrap();
        assert_eq!(scaled.row_bytes(), 520 * out.size());
        let nowhere = check(&scaled, |o| o.scales[1] = DevicePtr::NULL).unwrap_err();
        assert!(nowhere.to_string().contains("scales of B"), "{nowhere}");
    }
    refused(
        &e4m3(Scaling::Block, DType::Bf16),
        "scales must be by tensor or row",
    );
    // In one shot shards and groups say nothing. C, 64 × 520, has nine units.
    let each = |p: &mut MatmulReduce| {
        (p.c, p.shards, p.group_rows) = (ReduceOutput::Each, Vec::new(), 0);
    };
    let mut shot = good.clone();
    each(&mut shot);
    check(&shot, |_| {}).unwrap();
    // Two partials of 64 rows of 1040 bytes.
    let stride = |bytes| check(&shot, |o| o.staging_stride = bytes);
    for (bytes, needle) in [(133_104, "133120 bytes"), (133_128, "multiple of 16")] {
        let text = stride(bytes).unwrap_err().to_string();
        assert!(text.contains(needle), "{text}");
    }
    stride(1 << 20).unwrap();
    let each_from = |ready, done| {
        move |p: &mut MatmulReduce| {
            each(p);
            (p.ready, p.done) = (ready, done);
        }
    };
    refused(&each_from(57, 0), "ready takes slots 57..66");
    refused(&each_from(0, 8), "ready and done share slots");
    let mut none = good.clone();
    (none.problem.k, none.problem.lda) = (0, 0);
    none.validate().unwrap();
}

#[test]
fn groups_of_no_rows_and_of_absurdly_many_are_refused() {
    for group_rows in [0, 1 << 31, 1 << 32, usize::MAX] {
        for everyone in [false, true] {
            let error = of(everyone, gemm(64, (1, 2), group_rows)).validate();
            let error = error.unwrap_err().to_string();
            assert!(
                error.contains(&format!("group_rows = {group_rows}")),
                "{error}"
            );
        }
    }
    // In one shot there are none.
    let mut each = gemm(64, (0, 2), 0);
    (each.c, each.done) = (ReduceOutput::Each, 40);
    each.validate().unwrap();
}

#[test]
fn the_order_of_groups_of_any_size_is_defined() {
    let shards = [0..5, 5..9];
    for group_rows in [usize::MAX, 1 << 32, 5] {
        let groups = order(&shards, 0, group_rows, false);
        let rows: Vec<_> = groups.into_iter().map(|group| group.rows).collect();
        assert_eq!(rows, [5..9, 0..5]);
    }
    assert_eq!(order(&shards, 0, 0, true), order(&shards, 0, 1, true));
}

#[test]
fn stagings_that_no_address_reaches_are_refused() {
    let most = i32::MAX as usize;
    let mut gemm = gemm(most, (0, 8), most);
    gemm.problem = GemmProblem::new(most, most, 8, DType::F16);
    // One rank owns all rows: each staging has as many for every rank.
    gemm.shards = vec![most..most; 8];
    gemm.shards[0] = 0..most;
    let error = gemm.validate().unwrap_err().to_string();
    assert!(error.contains("address space"), "{error}");
}
