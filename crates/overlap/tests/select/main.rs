//! What is chosen, and why.

mod recorded;

use warpweave_overlap::algorithms::{self, Algorithm, Capabilities, Configuration};
use warpweave_overlap::plan::{Activation, PlanBuilder, Problem, Scaling, StreamId};
use warpweave_overlap::select::{
    Basis, Measurement, Measurements, Request, SelectError, Selection, evaluate, select,
    select_among,
};
use warpweave_overlap::{Machine, Operation, PlanError};
use warpweave_symm_mem::DType;

const SM90: Capabilities = Capabilities {
    multicast: false,
    sm90: true,
};

const OPERATION: Operation = Operation::AllGatherMatmul;

fn machine() -> Machine {
    Machine::named("h200x4").unwrap()
}

fn problem(m: usize, n: usize, k: usize) -> Problem {
    Problem::new(m, n, k, DType::Bf16)
}

fn chosen(problem: Problem, capabilities: Capabilities, measurements: &Measurements) -> Selection {
    let request = Request {
        operation: OPERATION,
        problem,
        world: 4,
        machine: &machine(),
        capabilities,
        measurements,
    };
    select(&request).unwrap()
}

fn measured(name: &str, problem: Problem, us: f64) -> Measurement {
    Measurement {
        configuration: algorithms::find(name).unwrap(),
        world: 4,
        problem,
        us,
    }
}

fn all(list: impl IntoIterator<Item = Measurement>) -> Measurements {
    let mut measurements = Measurements::none();
    list.into_iter().for_each(|m| measurements.push(m));
    measurements
}

fn expected(selection: &Selection, name: &str) -> (f64, f64, Basis) {
    let named = |c: &&warpweave_overlap::select::Choice| c.configuration.name() == name;
    let choice = selection.ranking().iter().find(named).unwrap();
    (choice.expected_us, choice.predicted_us, choice.basis)
}

#[test]
fn without_measurements_the_model_ranks_and_nothing_beats_the_limit() {
    for problem in [problem(32768, 8192, 16384), problem(4096, 1792, 4096)] {
        let selection = chosen(problem, SM90, &Measurements::none());
        let ranking = selection.ranking();
        assert!(ranking[1..].is_sorted_by(|a, b| a.expected_us <= b.expected_us));
        assert!(ranking.iter().all(|c| c.basis == Basis::Model));
        assert!(selection.best().predicted_us >= selection.limit_us());
        // All that the machine can run is ranked or left out.
        let candidates = algorithms::candidates(OPERATION).len();
        assert_eq!(ranking.len() + selection.left_out().len(), candidates);
        // The pipelines win where there is something to hide.
        let baseline = expected(&selection, "baselineNcclAllgatherMatmul").0;
        assert!(selection.best().expected_us < 0.95 * baseline);
    }
}

/// Where the gather or the GEMM is short, there is little to hide.
#[test]
fn small_problems_are_gathered_by_one_collective_and_large_ones_in_the_launch_of_the_gemm() {
    let best = |m, n, k| {
        let selection = chosen(problem(m, n, k), SM90, &Measurements::none());
        selection.best().configuration.algorithm().name
    };
    for (m, n, k) in [(512, 1024, 1024), (256, 4096, 4096), (64, 8192, 8192)] {
        assert_eq!(best(m, n, k), "allGatherThenMatmul", "{m}x{n}x{k}");
    }
    for (m, n, k) in [(4096, 1792, 4096), (8192, 8192, 8192)] {
        assert_eq!(best(m, n, k), "fusedAllGather", "{m}x{n}x{k}");
    }
}

/// A rack of GPUs that reach each other's memory has more ranks than our collectives and fused kernels serve.
#[test]
fn what_serves_fewer_ranks_is_left_out_with_the_reason() {
    let (machine, none) = (Machine::named("nvl72").unwrap(), Measurements::none());
    let reasons = |world| {
        let request = Request {
            operation: OPERATION,
            problem: problem(1024, 1024, 1024),
            world,
            machine: &machine,
            capabilities: SM90,
            measurements: &none,
        };
        select(&request).unwrap().left_out().join("\n")
    };
    let (gathered, fused) = (
        "allGatherThenMatmul: all-gather by symmetric-memory serves 16 ranks at most",
        "fusedAllGather: all_gather_matmul serves 8 ranks at most",
    );
    let has = |world, reason| reasons(world).contains(reason);
    assert_eq!([has(8, gathered), has(8, fused)], [false, false]);
    assert_eq!([has(16, gathered), has(16, fused)], [false, true]);
    assert_eq!([has(72, gathered), has(72, fused)], [true, true]);
}

/// On the rows of decoding one launch for the all-reduce and the norm beats two.
#[test]
fn a_layer_with_its_norm_is_chosen_among_all_that_compute_it() {
    let request = Request {
        operation: Operation::RowParallelLinearNorm,
        problem: problem(64, 8192, 28672),
        world: 4,
        machine: &machine(),
        capabilities: Capabilities::NONE,
        measurements: &Measurements::none(),
    };
    let selection = select(&request).unwrap();
    let names = selection.ranking().iter().map(|c| c.configuration.name());
    let wanted = ["rowParallelLinearNorm", "rowParallelLinearNorm:reduce=nccl"];
    assert_eq!(names.collect::<Vec<_>>(), wanted);
    assert!(selection.best().predicted_us >= selection.limit_us());
}

#[test]
fn a_breakdown_adds_up_to_the_prediction() {
    let selection = chosen(problem(8192, 3584, 8192), SM90, &Measurements::none());
    for choice in selection.ranking() {
        let b = choice.breakdown;
        let sum =
            b.gemms_us + b.transfers_us + b.collectives_us + b.reductions_us + b.synchronisation_us;
        let off = (sum - choice.predicted_us).abs();
        assert!(
            off < 1e-6 * choice.predicted_us,
            "{}: {b}",
            choice.configuration
        );
        assert!(b.gemms_us > 0.0, "{}", choice.configuration);
    }
}

#[test]
fn what_was_measured_here_counts_as_it_stands() {
    let here = problem(8192, 3584, 8192);
    let measurements = all([700.0, 10.0, 600.0].map(|us| measured("ringGet", here, us)));
    let selection = chosen(here, SM90, &measurements);
    let (us, _, basis) = expected(&selection, "ringGet");
    assert_eq!((us, basis), (600.0, Basis::Measured { us: 600.0 }));
    let fast = all([measured("naiveRemoteRead", here, 1.0)]);
    let best = chosen(here, SM90, &fast);
    assert_eq!(best.best().configuration.name(), "naiveRemoteRead");
}

/// A thread for each element of C would leave nearly all SMs idle for a long time.
#[test]
fn few_long_sums_are_not_for_scalar_threads() {
    let selection = chosen(problem(5, 7, 65536), SM90, &Measurements::none());
    let least = selection.limit_us();
    for choice in selection.ranking() {
        let (name, us) = (&choice.configuration, choice.predicted_us);
        assert!(us >= least, "{name}: {us} µs, {least} at least");
    }
    assert_ne!(selection.best().configuration.name(), "naiveRemoteRead");
}

#[test]
fn another_activation_or_other_scales_are_another_problem() {
    let plain = problem(4096, 2048, 4096);
    let swiglu = plain.with_activation(Activation::SwiGlu);
    let measurements = all([measured("fusedColumnParallelLinear", swiglu, 600.0)]);
    let basis = |problem| {
        let selection = select(&Request {
            operation: Operation::ColumnParallelLinear,
            problem,
            world: 4,
            machine: &machine(),
            capabilities: SM90,
            measurements: &measurements,
        });
        expected(&selection.unwrap(), "fusedColumnParallelLinear").2
    };
    assert_eq!(basis(swiglu), Basis::Measured { us: 600.0 });
    assert_eq!(basis(plain), Basis::Model);

    let scaled = |scaling| Problem::new(4096, 2048, 4096, DType::E4m3).with_scaling(scaling);
    let measurements = all([measured("fusedAllGather", scaled(Scaling::Row), 600.0)]);
    let basis = |scaling| {
        let selection = chosen(scaled(scaling), SM90, &measurements);
        expected(&selection, "fusedAllGather").2
    };
    assert_eq!(basis(Scaling::Row), Basis::Measured { us: 600.0 });
    assert_eq!(basis(Scaling::Tensor), Basis::Model);
}

#[test]
fn the_nearer_a_measurement_the_more_it_corrects() {
    let here = problem(8192, 3584, 8192);
    let factor = |at: Problem, name: &str| {
        let model = chosen(at, SM90, &Measurements::none());
        let slow = 2.0 * expected(&model, "pushChunks").1;
        let selection = chosen(here, SM90, &all([measured("pushChunks", at, slow)]));
        let (us, predicted, basis) = expected(&selection, name);
        match basis {
            Basis::Corrected { factor, points } => {
                assert_eq!(points, 1);
                assert!((us - predicted * factor).abs() < 1e-9 * us);
                factor
            }
            other => panic!("{other:?}"),
        }
    };
    let elsewhere = problem(16384, 3584, 8192);
    let near = factor(elsewhere, "pushChunks");
    let far = factor(problem(512, 512, 512), "pushChunks");
    let [two, eight] =
        [2, 8].map(|chunks| factor(elsewhere, &format!("pushChunks:chunks={chunks}:streams=3")));
    let other = factor(elsewhere, "ringGet");
    assert!(near > 1.6 && near < 2.0, "{near}");
    assert!(far > 1.0 && far < two, "{far} {two}");
    // Of another algorithm it says least: how fast the GPUs were.
    assert!(two == eight && 1.0 < other && other < two && two < near);
    // Measurements of another element type tell nothing.
    let f16 = Problem::new(16384, 3584, 8192, DType::F16);
    let selection = chosen(here, SM90, &all([measured("pushChunks", f16, 1.0)]));
    assert_eq!(expected(&selection, "pushChunks").2, Basis::Model);
}

#[test]
fn what_agrees_counts_no_more_than_it_says() {
    // The same twice, in two runs that differ by noise, is not twice the evidence.
    let (here, elsewhere) = (problem(8192, 3584, 8192), problem(16384, 3584, 8192));
    let model = chosen(elsewhere, SM90, &Measurements::none());
    let slow = 1.2 * expected(&model, "pushChunks").1;
    let us = |times: usize| {
        let runs = (0..times).map(|_| measured("pushChunks", elsewhere, slow));
        expected(&chosen(here, SM90, &all(runs)), "pushChunks").0
    };
    assert!(us(1) < us(2) && us(2) < us(20));
    assert!(us(20) < 1.2 * expected(&chosen(here, SM90, &Measurements::none()), "pushChunks").0);
}

#[test]
fn of_what_is_equally_fast_the_one_with_fewer_launches_stands_first() {
    let here = problem(8192, 3584, 8192);
    let chosen_with = |us: f64| {
        let fast = [("pushChunks:chunks=8", 100.0), ("pushChunks:chunks=2", us)];
        let fast = fast.map(|(name, us)| measured(name, here, us));
        let selection = chosen(here, SM90, &all(fast));
        let [first, second] = [0, 1].map(|i| selection.ranking()[i].clone());
        assert!(first.launches < second.launches || us > 100.4);
        first.configuration.name()
    };
    assert_eq!(chosen_with(100.4), "pushChunks:chunks=2");
    assert_eq!(chosen_with(100.6), "pushChunks:chunks=8");
}

#[test]
fn what_the_machine_lacks_is_left_out_with_the_reason() {
    let selection = chosen(
        problem(64, 64, 64),
        Capabilities::NONE,
        &Measurements::none(),
    );
    let reasons = selection.left_out().join("\n");
    assert!(
        reasons.contains("multimemGatherThenCutlass needs multicast and compute capability 9.0")
    );
    assert!(reasons.contains("threadloadGatherThenCutlass needs compute capability 9.0"));
    assert!(
        selection
            .ranking()
            .iter()
            .all(|c| c.configuration.needs().is_empty())
    );
}

#[test]
fn the_switch_reduces_where_multicast_is_allowed_and_nowhere_else() {
    let name = "fusedAllReduce:reduce=multimem";
    let selection = |multicast| {
        let request = Request {
            operation: Operation::MatmulAllReduce,
            problem: problem(8192, 8192, 8192),
            world: 8,
            machine: &Machine::named("h200x8").unwrap(),
            capabilities: Capabilities { multicast, ..SM90 },
            measurements: &Measurements::none(),
        };
        select(&request).unwrap()
    };
    let without = selection(false).left_out().join("\n");
    assert!(
        without.contains(&format!("{name} needs multicast")),
        "{without}"
    );
    // The switches add and copy: the links carry less than where partials and results are pulled.
    let with = selection(true);
    let predicted = |name| expected(&with, name).0;
    assert!(predicted(name) < predicted("fusedAllReduce"), "{with}");
}

/// No plan can be built of it.
static BROKEN: Algorithm = Algorithm::new("broken", OPERATION, "has no plan", |_, rank, _, _| {
    Err(PlanError::Malformed {
        plan: "broken".into(),
        rank,
        what: "too many groups".into(),
    })
});

/// Every rank waits for a signal that nobody sends.
static STUCK: Algorithm = Algorithm {
    name: "stuck",
    build: |_, rank, world, _| {
        let mut plan = PlanBuilder::new("stuck", rank, world);
        let slot = plan.slot("never");
        let peers = plan.peers();
        plan.wait(StreamId::MAIN, slot, peers);
        plan.finish()
    },
    ..BROKEN
};

#[test]
fn a_candidate_that_cannot_be_built_or_simulated_is_left_out_with_the_reason() {
    let (none, machine) = (Measurements::none(), machine());
    let request = Request {
        operation: OPERATION,
        problem: problem(64, 64, 64),
        world: 4,
        machine: &machine,
        capabilities: SM90,
        measurements: &none,
    };
    let unsound = [&BROKEN, &STUCK].map(Configuration::with_defaults).to_vec();
    let mut candidates = unsound.clone();
    candidates.extend(algorithms::find("ringGet"));
    let selection = select_among(&request, candidates).unwrap();
    assert_eq!(selection.ranking().len(), 1);
    assert_eq!(selection.best().configuration.name(), "ringGet");
    let [broken, stuck] = selection.left_out() else {
        panic!("{:?}", selection.left_out())
    };
    assert!(broken.starts_with("broken: ") && broken.contains("too many groups"));
    assert!(stuck.starts_with("stuck: deadlock"), "{stuck}");
    // Nothing is left to choose: the reasons are in the error.
    let error = select_among(&request, unsound).unwrap_err();
    assert!(matches!(error, SelectError::NothingRuns { .. }));
    assert!(error.to_string().contains("too many groups"), "{error}");
}

#[test]
fn what_cannot_be_is_an_error() {
    let none = Measurements::none();
    let ask = |world, problem| {
        let request = Request {
            operation: OPERATION,
            problem,
            world,
            machine: &machine(),
            capabilities: SM90,
            measurements: &none,
        };
        select(&request).unwrap_err()
    };
    assert!(matches!(ask(5, problem(8, 8, 8)), SelectError::Simulate(_)));
    assert!(matches!(ask(0, problem(8, 8, 8)), SelectError::Plan(_)));
    assert!(matches!(ask(2, problem(8, 0, 8)), SelectError::Plan(_)));
}

#[test]
fn measurements_are_read_as_they_are_written() {
    let measurements = all([
        measured("pushChunks:chunks=4", problem(8192, 3584, 8192), 751.25),
        measured("ringPut", problem(131, 71, 90), 12.0),
    ]);
    let text = measurements.to_string();
    assert_eq!(Measurements::from_text(&text).unwrap(), measurements);
    assert_eq!(
        Measurements::from_text("\n# nothing\n"),
        Ok(Measurements::none())
    );
    for (line, what) in [
        ("ringPut\t4\t1x1x1\tbf16", "4 fields"),
        ("ring\t4\t1x1x1\tbf16\t1", "no algorithm `ring`"),
        ("ringPut\t0\t1x1x1\tbf16\t1", "`0`"),
        ("ringPut\t4\t1x1\tbf16\t1", "`1x1`"),
        ("ringPut\t4\t1x1x0\tbf16\t1", "`0`"),
        ("ringPut\t4\t1x1x1\tbf17\t1", "`bf17`"),
        ("ringPut\t4\t1x1x1\tbf16\t-1", "`-1`"),
    ] {
        let error = Measurements::from_text(&format!("# one\n{line}\n")).unwrap_err();
        assert!(error.line == 2 && error.what.contains(what), "{error}");
    }
}

#[test]
fn choices_are_judged_by_problems_that_they_have_not_seen() {
    // The model is wrong by the same factors everywhere: what was measured elsewhere tells.
    let factors = [
        ("ringGet", 0.5),
        ("pushChunks", 2.0),
        ("broadcastPipeline", 1.0),
    ];
    let problems = [problem(8192, 3584, 8192), problem(16384, 3584, 8192)];
    let mut measurements = Measurements::none();
    for at in problems {
        let model = chosen(at, SM90, &Measurements::none());
        for (name, factor) in factors {
            measurements.push(measured(name, at, factor * expected(&model, name).1));
        }
    }
    let evaluations = evaluate(&measurements, &machine(), SM90).unwrap();
    assert_eq!(evaluations.len(), 2);
    for e in &evaluations {
        assert_eq!(e.unseen.0.name(), "ringGet");
        assert_eq!(e.regret(), 1.0);
        assert!(e.model.1 >= e.best.1);
    }
}

#[test]
fn a_selection_says_why() {
    // Of one that the model puts among the first, which are printed.
    let elsewhere = problem(16384, 3584, 8192);
    let model = chosen(elsewhere, SM90, &Measurements::none());
    let (_, predicted, _) = expected(&model, "pushChunks");
    let near = all([measured("pushChunks", elsewhere, 0.9 * predicted)]);
    let text = chosen(problem(8192, 3584, 8192), SM90, &near).to_string();
    for part in [
        "all-gather-matmul 8192x3584x8192 bf16 by 4 ranks of h200x4",
        "limit ",
        "by 1 measurement",
        "left out: multimemGatherScalarCompute needs multicast",
        "Its critical path by the model: GEMMs ",
        "The next algorithm, ",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    println!("{text}");
}
