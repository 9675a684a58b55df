//! How near pushing in chunks is predicted to come to what bounds it.

use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::plan::Problem;
use warpweave_overlap::{Machine, Operation, simulate};
use warpweave_symm_mem::DType;

/// M, N, K at which products are long enough to hide the gather.
const SHAPES: [(usize, usize, usize); 3] = [
    (16384, 6656, 16384),
    (16384, 3584, 8192),
    (32768, 8192, 16384),
];

fn time(configuration: &Configuration, world: usize, problem: &Problem) -> f64 {
    let machine = Machine::named("h200x4").unwrap();
    let plans = configuration.plans(world, problem).unwrap();
    simulate(&plans, &machine, 1).unwrap().total()
}

/// The larger of the product alone and of the bytes that must come in, at the rate of the best all-gather by copy engines.
fn limit(problem: &Problem) -> f64 {
    let push = algorithms::find("pushChunks").unwrap();
    let bytes = Operation::AllGatherMatmul.bytes_in(4, problem);
    time(&push, 1, problem).max(bytes / 381e3)
}

#[test]
fn the_usual_configuration_is_within_seven_percent_of_the_limit() {
    let usual = algorithms::find("pushChunks").unwrap();
    for (m, n, k) in SHAPES {
        let problem = Problem::new(m, n, k, DType::Bf16);
        let efficiency = limit(&problem) / time(&usual, 4, &problem);
        println!("{m}x{n}x{k} {efficiency:.3}");
        assert!(efficiency >= 0.93, "{m}x{n}x{k}: {efficiency:.3}");
    }
}

#[test]
fn no_other_configuration_is_better_where_it_is_worst() {
    let mut worst: Vec<(f64, String)> = algorithms::candidates(Operation::AllGatherMatmul)
        .iter()
        .filter(|c| c.algorithm().name == "pushChunks")
        .map(|configuration| {
            let efficiencies = SHAPES.map(|(m, n, k)| {
                let problem = Problem::new(m, n, k, DType::Bf16);
                limit(&problem) / time(configuration, 4, &problem)
            });
            let worst = efficiencies.into_iter().fold(f64::INFINITY, f64::min);
            (worst, configuration.name())
        })
        .collect();
    worst.sort_by(|one, other| other.0.total_cmp(&one.0));
    // A third stream gains less than the model can tell.
    let (best, usual) = (
        worst[0].0,
        worst.iter().find(|(_, name)| name == "pushChunks"),
    );
    assert!(usual.unwrap().0 > 0.99 * best, "{worst:?}");
}
