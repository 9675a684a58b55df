//! Schedules so small that their time is a formula.

use crate::machines::unthrottled;
use warpweave_overlap::plan::{
    Collective, Placement, Plan, PlanBuilder, Provider, Region, Role, StreamId, Transport,
};
use warpweave_overlap::simulate::SimulateError;
use warpweave_overlap::timeline::Cause;
use warpweave_overlap::{Timeline, simulate};
use warpweave_symm_mem::DType;

const MAIN: StreamId = StreamId::MAIN;
const ROWS: usize = 4096;
const COLS: usize = 8192;
/// An event between streams, µs.
const EVENT: f64 = 2.5;
/// What a copy takes before it moves bytes, and one between GPUs that follows another on its stream.
const COPY: f64 = 6.5;
const NEXT_COPY: f64 = 3.0;
const BYTES: f64 = (ROWS * COLS * 2) as f64;

fn near(found: f64, expected: f64) {
    assert!(
        (found - expected).abs() <= 1e-3 + 1e-6 * expected,
        "{found} µs, expected {expected}"
    );
}

/// Each rank has an input, a symmetric box of `world` blocks, a square weight and a GEMM.
fn plans(world: usize, ops: impl Fn(&mut PlanBuilder, usize, [Region; 3])) -> Vec<Plan> {
    let build = |rank| {
        let mut plan = PlanBuilder::new("closed form", rank, world);
        let mut buffer =
            |name, placement, role, shape| plan.buffer(name, placement, role, DType::Bf16, shape);
        let input = buffer("in", Placement::Symmetric, Role::Input, (ROWS, COLS));
        let (block, all) = ((ROWS, COLS), (world * ROWS, COLS));
        let boxes = buffer("box", Placement::Symmetric, Role::Staging, all);
        let weight = buffer("weight", Placement::Local, Role::Weight, (COLS, COLS));
        let out = buffer("out", Placement::Local, Role::Output, block);
        assert_eq!((input.0, boxes.0), (0, 1));
        let regions = [input, weight, out].map(|id| plan.whole(id));
        ops(&mut plan, rank, regions);
        plan.finish().unwrap()
    };
    (0..world).map(build).collect()
}

/// Puts this rank's input into its block of the box of `to`.
fn put(plan: &mut PlanBuilder, stream: StreamId, input: &Region, to: usize) {
    let boxes = plan.draft().buffer_named("box").unwrap();
    let rows = input.rank * ROWS..(input.rank + 1) * ROWS;
    let there = plan.on(to, boxes, rows, 0..COLS);
    plan.copy(stream, input.clone(), there);
}

fn multiply(plan: &mut PlanBuilder, stream: StreamId, [a, b, c]: [Region; 3]) {
    plan.gemm(stream, Provider::CublasLt, a, b, c);
}

fn run(plans: &[Plan]) -> Timeline {
    simulate(plans, &unthrottled(), 1).unwrap()
}

fn copy_us() -> f64 {
    COPY + BYTES / 388e3
}

/// 4096 × 8192 × 8192 in tiles of 128 × 256: 1024 tiles on 132 SMs are 8 waves. What they read and write
/// takes a tenth of that, which shows a little.
fn waves_us() -> f64 {
    let multiplying = 8.0 * 2.0 * 128.0 * 256.0 * COLS as f64 * 132.0 / 795e6;
    let moving = (4.0 * BYTES) / 4000e3;
    (multiplying.powi(3) + moving.powi(3)).cbrt()
}

fn gemm_us() -> f64 {
    2.5 + waves_us()
}

#[test]
fn one_copy() {
    let plans = plans(2, |plan, rank, [input, ..]| {
        if rank == 0 {
            put(plan, MAIN, &input, 1);
        }
    });
    near(run(&plans).total(), copy_us());
}

#[test]
fn one_gemm() {
    near(
        run(&plans(1, |p, _, r| multiply(p, MAIN, r))).total(),
        gemm_us(),
    );
}

#[test]
fn two_copies_into_one_gpu_share_its_link() {
    let plans = plans(3, |plan, rank, [input, ..]| {
        if rank > 0 {
            put(plan, MAIN, &input, 0);
        }
    });
    // Together they fill the raw link.
    near(run(&plans).total(), 6.5 + 2.0 * BYTES / 450e3);
}

#[test]
fn copies_of_one_gpu_to_two_peers_on_two_streams_are_slower_than_one_after_the_other() {
    let both = |overlapped: bool| {
        let plans = plans(3, |plan, rank, [input, ..]| {
            if rank == 0 {
                let side = if overlapped { plan.fork() } else { MAIN };
                put(plan, MAIN, &input, 1);
                put(plan, side, &input, 2);
                if overlapped {
                    plan.join(side);
                }
            }
        });
        run(&plans).total()
    };
    near(both(false), copy_us() + NEXT_COPY + copy_us() - COPY);
    assert!(both(true) > 1.5 * both(false));
}

#[test]
fn a_copy_during_a_gemm_takes_as_long_as_the_longer() {
    let plans = plans(2, |plan, rank, regions| {
        if rank == 0 {
            let side = plan.fork();
            put(plan, side, &regions[0], 1);
            multiply(plan, MAIN, regions);
            plan.join(side);
        }
    });
    // While the copy moves its bytes, it takes a little of what the GEMM lives on.
    // While the copy moves its bytes, which is as fast as alone, the GEMM has less of its power and memory.
    let taken = (1.0 - 0.95) / 2.0 * 388.0 / 450.0;
    let moving = copy_us() - COPY;
    near(run(&plans).total(), gemm_us() + moving * taken + EVENT);
}

#[test]
fn a_chain_takes_the_sum() {
    let plans = plans(2, |plan, rank, regions| {
        let slot = plan.slot("sent");
        if rank == 0 {
            put(plan, MAIN, &regions[0], 1);
            plan.signal(MAIN, slot, [1]);
        } else {
            plan.wait(MAIN, slot, [0]);
            multiply(plan, MAIN, regions);
        }
    });
    let timeline = run(&plans);
    // The signal's launch, its way, and the wait.
    near(timeline.total(), copy_us() + 1.5 + 2.7 + 1.0 + gemm_us());
    let path = timeline.critical_path();
    let ranks: Vec<usize> = path.iter().map(|&i| timeline.spans[i].rank).collect();
    assert_eq!(ranks, [0, 0, 0, 1, 1, 1], "{timeline}");
    assert_eq!(timeline.spans[path[3]].cause, Cause::Signal);
}

#[test]
fn a_gemm_that_has_all_sms_keeps_them() {
    let plans = plans(1, |plan, _, regions| {
        let side = plan.fork();
        multiply(plan, MAIN, regions.clone());
        multiply(plan, side, regions);
        plan.join(side);
    });
    // The urgent stream's begins an event later and waits for the other, of which the last wave leaves fewer
    // than a quarter free.
    near(run(&plans).total(), 2.5 + 2.0 * waves_us() + EVENT);
}

#[test]
fn long_gemms_slow_down() {
    let plans = plans(1, |plan, _, regions| {
        for _ in 0..8 {
            multiply(plan, MAIN, regions.clone());
        }
    });
    let time = |sms: usize, boost_us: f64| {
        let mut machine = unthrottled();
        machine.gpu.sms = sms;
        machine.gemm.boost_us = boost_us;
        machine.gemm.launch_us = 0.0;
        simulate(&plans, &machine, 1).unwrap().total()
    };
    // Their tiles are 8 whole waves on 128 SMs. Without a reserve all of them run at 0.87 of the rate; power
    // that falls to 0.87^2.5 of it, by 63 % in 500 µs, leaves them between.
    let (full, sustained) = (time(128, 1e9), time(128, 1e-3));
    near(sustained, full / 0.87);
    let lost = 1.0 - 0.87_f64.powf(2.5);
    let rate = |us: f64| (1.0 - lost * (1.0 - (-us / 500.0).exp())).powf(0.4);
    let (mut us, mut done) = (0.0, 0.0);
    while done < full {
        (us, done) = (us + 0.1, done + 0.1 * rate(us));
    }
    let found = time(128, 500.0);
    assert!((found / us - 1.0).abs() < 0.001, "{found} {us}");
    // On 132 the last wave draws less, from which the others gain.
    assert!(time(132, 500.0) / time(132, 1e9) < found / full);
}

#[test]
fn pulls_of_all_at_once_are_slower_than_pushes() {
    let time = |pull: bool| {
        let plans = plans(4, |plan, rank, [input, ..]| {
            let boxes = plan.draft().buffer_named("box").unwrap();
            for step in 1..4 {
                let peer = (rank + step) % 4;
                if pull {
                    let rows = peer * ROWS..(peer + 1) * ROWS;
                    let (src, dst) = (
                        Region {
                            rank: peer,
                            ..input.clone()
                        },
                        plan.own(boxes, rows, 0..COLS),
                    );
                    plan.copy(MAIN, src, dst);
                } else {
                    put(plan, MAIN, &input, peer);
                }
            }
        });
        run(&plans).total()
    };
    let starts = COPY + 2.0 * NEXT_COPY;
    near(time(false), starts + 3.0 * (copy_us() - COPY));
    near(time(true), starts + 3.0 * BYTES / 143e3);
}

#[test]
fn a_collective_begins_when_the_last_rank_has_come() {
    let plans = plans(3, |plan, rank, regions| {
        let boxes = plan.draft().buffer_named("box").unwrap();
        let all = plan.whole(boxes);
        let input = regions[0].clone();
        if rank == 1 {
            multiply(plan, MAIN, regions);
        }
        plan.collective(MAIN, Collective::AllGather, input, all, Transport::Nccl);
    });
    // Three ranks with 64 MiB each get as much as four with two thirds of that, between 16 and 64 MiB in the
    // machine's table.
    let (x, y): (f64, f64) = ((128.0f64 / 3.0 / 16.0).ln() / 4f64.ln(), 656.0 / 185.0);
    near(run(&plans).total(), gemm_us() + 185.0 * y.powf(x));
}

#[test]
fn a_credit_costs_nothing_in_the_first_call_and_calls_follow_on() {
    let plans = plans(2, |plan, rank, regions| {
        let slot = plan.slot("free");
        plan.wait_credit(MAIN, slot, [1 - rank]);
        multiply(plan, MAIN, regions);
        plan.signal(MAIN, slot, [1 - rank]);
    });
    let one = 1.0 + gemm_us() + 1.5;
    near(simulate(&plans, &unthrottled(), 1).unwrap().total(), one);
    near(
        simulate(&plans, &unthrottled(), 3).unwrap().total(),
        3.0 * one + 2.0 * 2.7,
    );
}

#[test]
fn a_deadlock_is_an_error_that_names_who_waits() {
    let plans = plans(2, |plan, rank, _| {
        let slot = plan.slot("never");
        plan.wait(MAIN, slot, [1 - rank])
            .signal(MAIN, slot, [1 - rank]);
    });
    let error = simulate(&plans, &unthrottled(), 1).unwrap_err();
    assert!(
        matches!(&error, SimulateError::Deadlock { blocked, .. } if blocked.len() == 2),
        "{error}"
    );
    assert!(error.to_string().contains("never"), "{error}");
}

#[test]
fn plans_that_do_not_belong_together_are_an_error() {
    let mut plans = plans(2, |_, _, _| {});
    plans.pop();
    assert!(matches!(
        simulate(&plans, &unthrottled(), 1),
        Err(SimulateError::Unsound { .. })
    ));
}

/// A GEMM on the caller's stream and one of fewer tiles concurrently: M × 256 of one wave's tiles at most.
fn overlapped(rows: [usize; 2]) -> f64 {
    let plans = plans(1, |plan, _, [a, b, c]| {
        let side = plan.fork_with(warpweave_symm_mem::Priority::Normal);
        for (stream, m) in [MAIN, side].into_iter().zip(rows) {
            let part = |whole: &Region, cols: usize| Region {
                rows: 0..m,
                cols: 0..cols,
                ..whole.clone()
            };
            let weight = Region {
                cols: 0..256,
                ..b.clone()
            };
            let to = match stream == MAIN {
                true => part(&c, 256),
                false => Region {
                    cols: 256..512,
                    ..part(&c, 512)
                },
            };
            multiply(plan, stream, [part(&a, COLS), weight, to]);
        }
        plan.join(side);
    });
    run(&plans).total()
}

#[test]
fn gemms_of_less_than_a_wave_run_next_to_each_other_where_both_have_places() {
    let alone = overlapped([4096, 1]);
    assert!(overlapped([2048, 2048]) < alone + 5.0);
}

/// 320 tiles of 128 × 128 are two waves and four tenths of one, in which 64 tiles more find places.
#[test]
fn what_the_last_wave_leaves_is_anothers() {
    let plans = |both: bool| {
        plans(1, |plan, _, [a, b, c]| {
            let part = |rows: std::ops::Range<usize>| {
                let of = |whole: &Region| Region {
                    rows: rows.clone(),
                    ..whole.clone()
                };
                [of(&a), b.clone(), of(&c)]
            };
            let side = plan.fork_with(warpweave_symm_mem::Priority::Normal);
            let mut multiply = |stream, [a, b, c]: [Region; 3]| {
                plan.gemm(stream, Provider::Cutlass, a, b, c);
            };
            multiply(MAIN, part(0..640));
            if both {
                multiply(side, part(640..768));
            }
            plan.join(side);
        })
    };
    let [one, two] = [false, true].map(|both| run(&plans(both)).total());
    let wave = waves_us() / 16.0;
    assert!(two - one < 0.4 * wave, "{one} {two}");
}

#[test]
fn a_signal_during_a_gemm_takes_longer() {
    let time = |multiplies: bool| {
        let plans = plans(2, |plan, rank, regions| {
            let slot = plan.slot("sent");
            if rank == 0 {
                let side = plan.fork();
                if multiplies {
                    multiply(plan, MAIN, regions.clone());
                }
                // After a copy, so that the GEMM runs by then.
                put(plan, side, &regions[0], 1);
                plan.signal(side, slot, [1]);
                plan.join(side);
            } else {
                plan.wait(MAIN, slot, [0]);
            }
        });
        let timeline = run(&plans);
        let of = |text: &str| {
            timeline
                .spans
                .iter()
                .find(|s| s.text.starts_with(text))
                .cloned()
        };
        let signal = of("signal").unwrap();
        signal.end - signal.start
    };
    near(time(false), 1.5);
    near(time(true), 1.5 + 5.0);
}
