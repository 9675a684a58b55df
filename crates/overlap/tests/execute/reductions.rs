//! GEMMs that are followed by reductions, run on the host: every element of every call against the
//! definition.

use std::time::Duration;

use crate::cuda::{self, gpu};
use crate::fixtures::{Rank, element, encode, on_ranks, remembered};
use crate::host;
use warpweave_gemm::SCALE_BLOCK;
use warpweave_overlap::Operation;
use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::execute::{Bound, ExecuteBackend, ExecuteError, Result};
use warpweave_overlap::operation::{Matrix, Operand};
use warpweave_overlap::plan::{Problem, Role, Scales, Scaling, shard};
use warpweave_symm_mem::{DType, Host};

fn every() -> Vec<Configuration> {
    let mut every = algorithms::every();
    every.retain(|c| {
        matches!(
            c.operation(),
            Operation::MatmulReduceScatter
                | Operation::MatmulAllReduce
                | Operation::RowParallelLinear
                | Operation::LinearReduceScatter
        )
    });
    // Nodes of several ranks, and more than two.
    let over_nodes = [
        "reduceScatterPipeline:nodes=4:chunks=3",
        "allReducePipeline:nodes=3",
        "rowParallelLinearPipeline:nodes=4:streams=2",
    ];
    every.extend(over_nodes.map(|name| algorithms::find(name).unwrap()));
    // Shards of several groups, at these sizes.
    every.extend(fused(2));
    every.extend(by_multimem(2));
    every
}

/// Those whose partials the switch adds, which the host emulates.
fn by_multimem(rows: usize) -> Vec<Configuration> {
    let names = ["fusedAllReduce", "fusedRowParallelLinear"];
    let names = names.map(|name| format!("{name}:rows={rows}:reduce=multimem"));
    names.map(|name| algorithms::find(&name).unwrap()).to_vec()
}

/// Those of one launch, in groups of `rows` rows.
fn fused(rows: usize) -> Vec<Configuration> {
    let names = [
        "fusedReduceScatter",
        "fusedAllReduce",
        "fusedRowParallelLinear",
    ];
    names
        .map(|name| algorithms::find(&format!("{name}:rows={rows}")).unwrap())
        .to_vec()
}

/// Whether there is a collective for it: over symmetric memory a reduce-scatter has shards of one size.
fn runs(configuration: &Configuration, problem: &Problem, world: usize) -> bool {
    let equal = problem.m.is_multiple_of(world);
    equal || configuration.name() != "matmulThenReduceScatter:transport=symmetric"
}

/// A scale of the matrix `which` in call `call`: powers of two, so that GEMMs stay exact. Each rank has some
/// columns.
fn scale(scaling: Scaling, (which, call): (usize, usize), line: usize, column: usize) -> f32 {
    match scaling {
        Scaling::None => 1.0,
        Scaling::Tensor => [0.5, 1.0][(which + call + column) % 2],
        _ => [0.5, 1.0][(3 * which + call + line + column + line / 3 + column / 5) % 2],
    }
}

/// An element of A. In long rows few are not 0, so that partial sums stay exact.
fn a_term(problem: &Problem, call: usize, row: usize, col: usize) -> f32 {
    match problem.k > 100 && !(row + col).is_multiple_of(31) {
        true => 0.0,
        false => element(0, call, row, col),
    }
}

/// The part of its matrix that a buffer of one of `world` ranks holds, in call `call`; small integers, so
/// that sums in any order are exact.
fn stored(operand: &Operand, problem: &Problem, call: usize, world: usize) -> Vec<u8> {
    remembered(("reduction", operand, problem, call, world), || {
        made(operand, problem, call, world)
    })
}

fn made(operand: &Operand, problem: &Problem, call: usize, world: usize) -> Vec<u8> {
    let scaling = problem.scaling;
    let partial = |row: usize, col: usize, rank: usize| {
        let terms = shard(problem.k, rank, world);
        let (start, columns) = (terms.start, Scales::columns_of(rank, world, problem));
        let (line, size) = match scaling {
            Scaling::Block => (col / SCALE_BLOCK, SCALE_BLOCK),
            _ => (col, problem.k),
        };
        let terms = terms.map(|i| {
            let [of_a, of_b] = [0, 1].map(|which| columns[which].start + (i - start) / size);
            let scales = scale(scaling, (0, call), row, of_a) * scale(scaling, (1, 0), line, of_b);
            a_term(problem, call, row, i) * element(1, 0, i, col) * scales
        });
        terms.sum::<f32>()
    };
    let value = |row: usize, col: usize| match operand.matrix {
        Matrix::A => a_term(problem, call, row, col),
        Matrix::B => element(1, 0, row, col),
        Matrix::ScalesA => scale(scaling, (0, call), row, col),
        Matrix::ScalesB => scale(scaling, (1, 0), row, col),
        Matrix::C => (0..world).map(|rank| partial(row, col, rank)).sum(),
        other => panic!("{other:?} is no operand of a reduction"),
    };
    let dtype = operand.matrix.dtype(problem);
    let rows: Vec<usize> = operand.rows.iter().cloned().flatten().collect();
    let (height, width) = operand.stored();
    let first = operand.cols.start;
    let places = (0..height).flat_map(|i| (0..width).map(move |j| (i, j)));
    let values = places.map(|(i, j)| match operand.transposed {
        false => value(rows[i], first + j),
        true => value(rows[j], first + i),
    });
    encode(dtype, values)
}

fn write<B: ExecuteBackend>(
    bound: &Bound<B>,
    operands: &[Operand],
    problem: &Problem,
    call: usize,
) -> Result<()> {
    let inputs = operands.iter().filter(|o| match call {
        0 => o.role() != Role::Output,
        _ => o.role() == Role::Input,
    });
    for operand in inputs {
        bound.write(
            operand.buffer,
            &stored(operand, problem, call, bound.plan().world),
        )?;
    }
    Ok(())
}

/// The first call, if any, whose C is not what it should be, of calls that are alternately run and replayed.
fn first_wrong<B: ExecuteBackend>(
    rank: &Rank<B>,
    configuration: &Configuration,
    problem: &Problem,
    calls: usize,
    dawdle: impl Fn(usize),
) -> Option<usize> {
    let (me, world) = rank.place();
    let operands = configuration.operands(me, world, problem);
    let c = operands.iter().find(|o| o.matrix == Matrix::C).unwrap();
    let mut bound = rank
        .bind(configuration.plan(me, world, problem).unwrap())
        .unwrap();
    bound.capture().unwrap();
    let wrong = (0..calls).find(|&call| {
        dawdle(call);
        write(&bound, &operands, problem, call).unwrap();
        let wanted = stored(c, problem, call, world);
        let mut got = vec![0xff; wanted.len()];
        bound.write(c.buffer, &got).unwrap();
        match call % 2 {
            0 => bound.run().unwrap(),
            _ => bound.replay().unwrap(),
        }
        bound.read(c.buffer, &mut got).unwrap();
        got != wanted
    });
    bound.synchronize().unwrap();
    rank.exchange.barrier("end").unwrap();
    wrong
}

#[test]
fn every_reduction_sums_the_gemms_at_every_world() {
    let every = every();
    for world in 1..=8 {
        // Even, ragged, and fewer rows than ranks and chunks.
        let problems = [
            (8 * world, DType::F32, Scaling::None),
            (9 * world + 5, DType::Bf16, Scaling::None),
            (1, DType::F16, Scaling::None),
            (9 * world + 5, DType::E4m3, Scaling::Row),
            (4 * world, DType::E4m3, Scaling::Tensor),
            (5 * world + 3, DType::E4m3, Scaling::Block),
        ];
        on_ranks(world, host, |rank| {
            for configuration in &every {
                for (m, dtype, scaling) in problems {
                    // A rank has two scales for each of its rows.
                    let k = if scaling == Scaling::Block {
                        150 * world
                    } else {
                        18
                    };
                    let problem = Problem::new(m, 7, k, dtype).with_scaling(scaling);
                    // Scales of more ranks have nothing new, and those by block are of long sums.
                    let takes = match scaling {
                        Scaling::None => true,
                        Scaling::Block => world < 4 && configuration.takes(&problem),
                        _ => world <= 4 && configuration.takes(&problem),
                    };
                    if takes && runs(configuration, &problem, world) {
                        let wrong = first_wrong(&rank, configuration, &problem, 4, |_| {});
                        assert_eq!(wrong, None, "{configuration}, {problem:?}");
                    }
                }
            }
        });
    }
}

#[test]
fn reductions_are_right_when_ranks_drift_apart() {
    for configuration in every() {
        // Ragged where there is a collective for it.
        let problems = [13, 12].map(|m| Problem::new(m, 5, 9, DType::F32));
        let mut problems = problems.into_iter();
        let problem = problems.find(|p| runs(&configuration, p, 4)).unwrap();
        let wrong = on_ranks(4, host, |rank| {
            let (me, world) = rank.place();
            first_wrong(&rank, &configuration, &problem, 40, |call| {
                // In each eight calls another rank dawdles, so that the others are as far ahead as they can
                // be.
                if call / 8 % world == me {
                    std::thread::sleep(Duration::from_micros(300));
                }
            })
        });
        assert_eq!(wrong, [None; 4], "{configuration}");
    }
}

/// With more ranks than columns of A some have a GEMM of no terms: zeros, not what lay there before.
#[test]
fn ranks_without_terms_add_nothing() {
    for configuration in every() {
        for (dtype, scaling) in [(DType::F32, Scaling::None), (DType::E4m3, Scaling::Row)] {
            let problem = Problem::new(10, 4, 3, dtype).with_scaling(scaling);
            let wrong = on_ranks(5, host, |rank| {
                first_wrong(&rank, &configuration, &problem, 4, |_| {})
            });
            assert_eq!(wrong, [None; 5], "{configuration}, {dtype}");
        }
    }
}

/// A rank that stays away from a fused kernel is named by the others, and the plan recovers.
fn is_named<B: ExecuteBackend>(
    world: usize,
    device: impl Fn(usize) -> B + Sync,
    (configuration, problem): (&Configuration, &Problem),
) {
    let away = world - 1;
    let errors = on_ranks(world, device, |rank| {
        let (me, world) = rank.place();
        let operands = configuration.operands(me, world, problem);
        let plan = configuration.plan(me, world, problem).unwrap();
        let mut bound = rank.bind(plan).unwrap();
        write(&bound, &operands, problem, 0).unwrap();
        rank.exchange.barrier("written").unwrap();
        let error = (me != away).then(|| {
            bound.run().unwrap();
            bound.synchronize().unwrap_err()
        });
        rank.exchange.barrier("after the fault").unwrap();
        bound.recover().unwrap();
        drop(bound);
        assert_eq!(first_wrong(&rank, configuration, problem, 2, |_| {}), None);
        error
    });
    for (rank, error) in errors.iter().enumerate() {
        let timeout = error.as_ref().map(ExecuteError::signal_fault);
        let named = timeout.map(|timeout| timeout.map(|t| (t.rank, t.peer)));
        let wanted = (rank != away).then_some(Some((rank, away)));
        assert_eq!(named, wanted, "{configuration}: {error:?}");
    }
}

#[test]
fn a_rank_that_stays_away_from_a_fused_kernel_is_named() {
    let impatient = |_| Host::with_timeout(Duration::from_millis(300));
    for configuration in fused(3).into_iter().chain(by_multimem(3)) {
        let problem = Problem::new(14, 4, 6, DType::Bf16);
        is_named(2, impatient, (&configuration, &problem));
    }
}

#[test]
#[ignore = "needs two GPUs of compute capability 9.0 and the feature `nvcc`"]
fn gpus_multiply_and_sum_in_one_launch() {
    let world = cuda::world();
    // Whole groups and tiles, ragged ones, fewer rows than ranks.
    for (m, n, k) in [
        (256 * world, 72, 16 * world),
        (160 * world + 5, 136, 24 * world),
        (world - 1, 8, 8 * world),
    ] {
        // Each rank's rows of e4m3 have whole 16 bytes, too.
        for (k, dtype, scaling) in [
            (k, DType::Bf16, Scaling::None),
            (k, DType::F16, Scaling::None),
            (2 * k, DType::E4m3, Scaling::Row),
            (2 * k, DType::E4m3, Scaling::Tensor),
        ] {
            let one_shot = algorithms::find("fusedAllReduce:shots=1").unwrap();
            let configurations = fused(256).into_iter().chain(fused(128));
            for configuration in configurations.chain([one_shot]) {
                let problem = Problem::new(m, n, k, dtype).with_scaling(scaling);
                let wrong = on_ranks(world, gpu, |rank| {
                    first_wrong(&rank, &configuration, &problem, 4, |_| {})
                });
                assert_eq!(wrong, vec![None; world], "{configuration}, {problem:?}");
            }
        }
    }
}

#[test]
#[ignore = "needs two GPUs of compute capability 9.0 and the feature `nvcc`"]
fn a_gpu_that_stays_away_from_a_fused_kernel_is_named() {
    let impatient = |rank| gpu(rank).with_timeout(Duration::from_secs(2));
    for configuration in fused(128) {
        let problem = Problem::new(300, 136, 64, DType::Bf16);
        is_named(2, impatient, (&configuration, &problem));
    }
}
