//! One node stands for all: what it predicts is what the simulation of all ranks does.

use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::plan::{Plan, Problem};
use warpweave_overlap::select::SelectError;
use warpweave_overlap::simulate::{SimulateError, first_node, simulate_configuration};
use warpweave_overlap::{Machine, Timeline, simulate};
use warpweave_symm_mem::DType;

fn machine(nodes: usize) -> Machine {
    Machine::named("h100x8").unwrap().with_nodes(nodes)
}

fn configuration(name: &str) -> Configuration {
    algorithms::find(name).unwrap()
}

fn problem(m: usize) -> Problem {
    Problem::new(m, 4096, 8192, DType::Bf16)
}

fn of_a_node(name: &str, nodes: usize, m: usize, calls: usize) -> Result<Timeline, SelectError> {
    let problem = (8 * nodes, &problem(m));
    first_node(&configuration(name), problem, &machine(nodes), calls).map(|(plans, timeline)| {
        assert_eq!(plans.len(), 8);
        timeline
    })
}

/// Every step of the first node begins and ends when it does among those of all ranks.
#[test]
fn the_first_node_does_alone_what_it_does_among_all() {
    let plans = [
        "hierarchical:nodes=N",
        "hierarchical:nodes=N:chunks=4",
        "hierarchicalColumnParallelLinear:nodes=N:chunks=2",
        "reduceScatterPipeline:nodes=N",
        "allReducePipeline:nodes=N",
        "rowParallelLinearPipeline:nodes=N",
        "linearReduceScatterPipeline:nodes=N",
    ];
    for (nodes, calls) in [(2, 2), (4, 1)] {
        for name in plans {
            let name = name.replace('N', &nodes.to_string());
            let alone = of_a_node(&name, nodes, 16384, calls).unwrap();
            let plans = configuration(&name)
                .plans(8 * nodes, &problem(16384))
                .unwrap();
            let among = simulate(&plans, &machine(nodes), calls).unwrap();
            let first: Vec<_> = among.spans.iter().filter(|span| span.rank < 8).collect();
            assert_eq!(alone.spans.len(), first.len(), "{name}");
            for (alone, among) in alone.spans.iter().zip(first) {
                let step =
                    |span: &warpweave_overlap::timeline::Span| (span.rank, span.call, span.site);
                assert_eq!(step(alone), step(among), "{name}");
                let apart = (alone.start - among.start)
                    .abs()
                    .max((alone.end - among.end).abs());
                assert!(apart < 1e-4, "{name}: {alone:?}, among all {among:?}");
            }
            let apart = (alone.total() - among.total()).abs();
            assert!(apart < 1e-4, "{name}: another node takes {apart} µs longer");
            assert_eq!(alone.world, among.world);
        }
    }
}

#[test]
fn nodes_that_differ_are_refused_with_the_ranks() {
    let refused = |name: &str, m| match of_a_node(name, 4, m, 1) {
        Err(SelectError::Simulate(SimulateError::NodesDiffer { what })) => what,
        other => panic!("{name}: {other:?}"),
    };
    // Shards of 512 rows, and of 513 on the first ranks.
    let uneven = refused("hierarchical:nodes=4", 16384 + 3);
    assert!(
        uneven.contains("rank 8 does not do what rank 0 does"),
        "{uneven}"
    );
    let flat = refused("baselineNcclAllgatherMatmul", 16384);
    assert!(flat.contains("32 ranks in nodes of 32"), "{flat}");
}

/// 512 ranks have a million steps, and almost two in two chunks: more than are simulated.
#[test]
fn plans_of_64_hosts_are_predicted() {
    let problem = problem(32768);
    for name in ["hierarchical:nodes=64", "hierarchical:nodes=64:chunks=2"] {
        let configuration = configuration(name);
        let steps = 512 * configuration.plan(0, 512, &problem).unwrap().steps();
        let begun = std::time::Instant::now();
        let machine = machine(64);
        let (plans, timeline) =
            simulate_configuration::<SelectError>(&configuration, (512, &problem), &machine, 1)
                .unwrap();
        println!(
            "{name}: {steps} steps, {:.1} µs, simulated in {:?}",
            timeline.total(),
            begun.elapsed()
        );
        let chunked = name.ends_with("chunks=2");
        assert_eq!(steps > Plan::MOST_STEPS, chunked, "{steps}");
        assert_eq!((plans.len(), timeline.world), (8, 512));
    }
}
