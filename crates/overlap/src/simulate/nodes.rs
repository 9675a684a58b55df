//! Plans over so many nodes that the steps of all ranks are too many: one node stands for all.
//!
//! Let all ranks move on by the size of a node, around. Where every plan is then that of the rank in whose
//! place it came, so is the whole program: a node's steps, costs, signals and collectives are those of the
//! node before it. Nodes do not wait for each other's signals and share no GPU, link or port; what one node
//! does reaches another in collectives alone, and their ranks are the same ranks after the move. So if all
//! nodes have done the same up to some moment, they enter the next collective at the same moment, and go on
//! alike. The steps of the first node, with its own entries for those of the other nodes, then take the time
//! that they take among all.
//!
//! [`first_node`] compares what that relies on: of each plan every step, with its cost on the machine. What
//! it compares is dropped at once, so that memory holds one node's plans.

use super::cost::{Cost, PlanCosts};
use super::{Machine, SimulateError, engine, simulate};
use crate::algorithms::Configuration;
use crate::check::program::{Node, Program, steps_of};
use crate::check::{Site, faults_of};
use crate::error::PlanError;
use crate::plan::{Plan, Problem};
use crate::timeline::Timeline;

/// Steps of all ranks up to which all are simulated although one node would do: a second at most.
const SIMULATED_WHOLE: usize = 1 << 17;

/// As [`simulate`], of a configuration: of all ranks, or, where they have many steps, of
/// [the first node's](first_node). Also gives the plans of the ranks of the timeline.
///
/// # Errors
/// As [`Configuration::plan`] and [`simulate`]; [`SimulateError::NodesDiffer`] if all ranks have more than
/// [`Plan::MOST_STEPS`] steps and one node does not stand for all.
pub fn simulate_configuration<E: From<PlanError> + From<SimulateError>>(
    configuration: &Configuration,
    (world, problem): (usize, &Problem),
    machine: &Machine,
    calls: usize,
) -> Result<(Vec<Plan>, Timeline), E> {
    let first = configuration.plan(0, world, problem)?;
    let each = first.steps().saturating_mul(calls.max(1));
    let steps = each.saturating_mul(world);
    if steps > SIMULATED_WHOLE && first.node_size < world {
        match plans_alike::<E>(configuration, (world, problem), machine)? {
            Ok(plans) => return run(plans, world, machine, calls),
            Err(what) if steps > Plan::MOST_STEPS => {
                return Err(SimulateError::NodesDiffer { what }.into());
            }
            Err(_) => {}
        }
    }
    let plans = configuration.plans(world, problem)?;
    let timeline = simulate(&plans, machine, calls)?;
    Ok((plans, timeline))
}

/// The plans of the ranks of the first node, and the timeline of `calls` calls of theirs among those of all
/// nodes, which do the same.
///
/// # Errors
/// [`SimulateError::NodesDiffer`] for plans of one node, and where a node does not do what the first does, as
/// with shards of different sizes; else as [`Configuration::plan`] and [`simulate`].
pub fn first_node<E: From<PlanError> + From<SimulateError>>(
    configuration: &Configuration,
    (world, problem): (usize, &Problem),
    machine: &Machine,
    calls: usize,
) -> Result<(Vec<Plan>, Timeline), E> {
    match plans_alike::<E>(configuration, (world, problem), machine)? {
        Ok(plans) => run(plans, world, machine, calls),
        Err(what) => Err(SimulateError::NodesDiffer { what }.into()),
    }
}

/// Runs the plans of the first of nodes that are alike.
fn run<E: From<SimulateError>>(
    plans: Vec<Plan>,
    world: usize,
    machine: &Machine,
    calls: usize,
) -> Result<(Vec<Plan>, Timeline), E> {
    let (calls, most) = (calls.max(1), Plan::MOST_STEPS);
    let steps = steps_of(&plans, calls);
    if steps > most {
        return Err(SimulateError::TooManySteps { steps, most }.into());
    }
    let program = Program::unroll(plans.iter().collect(), calls);
    let timeline = Timeline {
        world,
        ..engine::run(&program, machine)?
    };
    Ok((plans, timeline))
}

/// The plans of the first node, or how the nodes differ.
fn plans_alike<E: From<PlanError> + From<SimulateError>>(
    configuration: &Configuration,
    (world, problem): (usize, &Problem),
    machine: &Machine,
) -> Result<Result<Vec<Plan>, String>, E> {
    machine.admits(world)?;
    let plan = |rank| configuration.plan(rank, world, problem);
    let size = plan(0)?.node_size;
    if size >= world || !world.is_multiple_of(size) {
        return Ok(Err(format!("{world} ranks in nodes of {size}")));
    }
    machine.holds_nodes_of(size, world)?;
    let plans = (0..size).map(plan).collect::<Result<Vec<_>, _>>()?;
    let outlines: Vec<_> = plans
        .iter()
        .map(|plan| Outline::of(plan, machine))
        .collect();
    let closed = outlines
        .iter()
        .map(|outline| outline.require_closed(size, world));
    if let Err(what) = closed.collect::<Result<(), _>>() {
        return Ok(Err(what));
    }
    for rank in 0..world {
        let theirs = plan(rank)?;
        if let Some(fault) = faults_of(&theirs).into_iter().next() {
            let what = fault.to_string();
            return Err(SimulateError::Unsound { what }.into());
        }
        let (first, by) = (rank % size, rank - rank % size);
        if !Outline::of(&theirs, machine).is_moved(&outlines[first], by, world) {
            return Ok(Err(format!(
                "rank {rank} does not do what rank {first} does"
            )));
        }
    }
    drop(outlines);
    Ok(Ok(plans))
}

/// The steps of one call of a rank, and what each costs.
struct Outline<'a> {
    plan: &'a Plan,
    program: Program<'a>,
    costs: Vec<Cost>,
}

impl<'a> Outline<'a> {
    fn of(plan: &'a Plan, machine: &Machine) -> Self {
        let program = Program::of_rank(plan);
        let costs = PlanCosts::new(machine, plan);
        Self {
            plan,
            costs: program.nodes.iter().map(|node| costs.of(node)).collect(),
            program,
        }
    }

    /// That ranks of other nodes are only met in collectives, which are the same after a move by a node.
    fn require_closed(&self, size: usize, world: usize) -> Result<(), String> {
        let inside = |rank: usize| rank < size;
        let waits_inside =
            |node: &Node<'_>| node.wait.is_none_or(|w| w.from.iter().all(|r| inside(*r)));
        let signals_inside = |node: &Node<'_>| {
            node.signal
                .is_none_or(|(_, to)| to.iter().all(|r| inside(*r)))
        };
        let uses = |cost: &Cost| {
            let gpus = cost.loads.iter().map(|(resource, _)| resource.gpu());
            gpus.chain(cost.engine).all(inside)
        };
        let rank = self.plan.rank;
        if !self
            .program
            .nodes
            .iter()
            .all(|node| waits_inside(node) && signals_inside(node))
        {
            return Err(format!("signals of rank {rank} cross nodes"));
        }
        if !self.costs.iter().all(uses) {
            return Err(format!("rank {rank} uses GPUs or links of other nodes"));
        }
        let moved = |ranks: &[usize]| same_ranks(ranks, ranks, size, world);
        match self.program.collectives[rank]
            .iter()
            .all(|entry| moved(entry.ranks))
        {
            true => Ok(()),
            false => Err(format!(
                "a collective of rank {rank} is of some of the nodes"
            )),
        }
    }

    /// Whether this is `first` after all ranks have moved on by so many.
    fn is_moved(&self, first: &Self, by: usize, world: usize) -> bool {
        let same = |ours: &[usize], theirs: &[usize]| same_ranks(ours, theirs, by, world);
        let mut nodes = self.program.nodes.iter().zip(&first.program.nodes);
        let of = |outline: &Self, site| match site {
            Site::CallerWrites | Site::CallerReads => None,
            Site::Op(op) | Site::Begin(op) | Site::End(op) | Site::Effect { op, .. } => {
                let op = &outline.plan.ops[op];
                Some((op.stream, std::mem::discriminant(&op.kind)))
            }
        };
        let alike = |(ours, theirs): (&Node<'_>, &Node<'_>)| {
            ours.site == theirs.site
                && ours.preds == theirs.preds
                && of(self, ours.site) == of(first, theirs.site)
                && match (ours.wait, theirs.wait) {
                    (Some(ours), Some(theirs)) => {
                        (ours.slot, ours.lag) == (theirs.slot, theirs.lag)
                            && same(ours.from, theirs.from)
                    }
                    (ours, theirs) => ours.is_none() && theirs.is_none(),
                }
                && match (ours.signal, theirs.signal) {
                    (Some(ours), Some(theirs)) => ours.0 == theirs.0 && same(ours.1, theirs.1),
                    (ours, theirs) => ours.is_none() && theirs.is_none(),
                }
        };
        let [ours, theirs] =
            [self, first].map(|outline| &outline.program.collectives[outline.plan.rank]);
        let meet = ours.iter().zip(theirs).all(|(ours, theirs)| {
            (ours.begin, ours.end) == (theirs.begin, theirs.end) && same(ours.ranks, theirs.ranks)
        });
        let mut costs = self.costs.iter().zip(&first.costs);
        self.plan.streams == first.plan.streams
            && self.program.nodes.len() == first.program.nodes.len()
            && ours.len() == theirs.len()
            && nodes.all(alike)
            && meet
            && costs.all(|(ours, theirs)| ours.is_moved(theirs, |gpu| (gpu + by) % world))
    }
}

/// Whether `ours` are `theirs` after these have moved on by so many.
fn same_ranks(ours: &[usize], theirs: &[usize], by: usize, world: usize) -> bool {
    let mut ours = ours.to_vec();
    let mut theirs: Vec<_> = theirs.iter().map(|rank| (rank + by) % world).collect();
    ours.sort_unstable();
    theirs.sort_unstable();
    ours == theirs
}
