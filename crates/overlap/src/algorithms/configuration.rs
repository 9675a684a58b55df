//! An algorithm with a value for each parameter.

use super::{Algorithm, Capabilities, Value};
use crate::error::PlanError;
use crate::former;
use crate::operation::{Operand, Operation};
use crate::plan::{OpKind, Plan, Problem, Provider};
use std::fmt;
use warpweave_gemm::{Activation, Scaling};
use warpweave_symm_mem::DType;

/// An algorithm with a value for each of its parameters. Its name is the algorithm's, followed by the
/// parameters that differ from their defaults: `rowParallelLinear:chunks=8:reduce=symmetric`.
#[derive(Clone, PartialEq)]
pub struct Configuration {
    algorithm: &'static Algorithm,
    options: Options,
}

/// A value for each parameter of an algorithm.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Options(Vec<(&'static str, Value)>);

impl Options {
    /// The number that `key` was given; 1 if the algorithm has no such parameter.
    pub fn count(&self, key: &str) -> usize {
        match self.value(key) {
            Some(Value::Count(count)) => count,
            _ => 1,
        }
    }

    /// The choice that `key` was given; empty if the algorithm has no such parameter.
    pub fn choice(&self, key: &str) -> &'static str {
        match self.value(key) {
            Some(Value::Choice(choice)) => choice,
            _ => "",
        }
    }

    fn value(&self, key: &str) -> Option<Value> {
        let found = self.0.iter().find(|(own, _)| *own == key);
        found.map(|(_, value)| *value)
    }
}

impl Configuration {
    /// The algorithm with its default parameters.
    pub fn with_defaults(algorithm: &'static Algorithm) -> Self {
        let default = algorithm.parameters.iter().filter_map(|parameter| {
            let value = parameter.tries().into_iter().next()?;
            Some((parameter.key, value))
        });
        Configuration {
            algorithm,
            options: Options(default.collect()),
        }
    }

    /// Every combination of the values worth trying, the default first, without those that give the same plan
    /// twice.
    pub fn combinations(algorithm: &'static Algorithm) -> Vec<Self> {
        let mut all = vec![Options(Vec::new())];
        for parameter in algorithm.parameters {
            all = all
                .into_iter()
                .flat_map(|Options(chosen)| {
                    parameter.tries().into_iter().map(move |value| {
                        let mut chosen = chosen.clone();
                        chosen.push((parameter.key, value));
                        Options(chosen)
                    })
                })
                .collect();
        }
        let redundant = algorithm.redundant.unwrap_or(|_| false);
        all.into_iter()
            .filter(|options| !redundant(options))
            .map(|options| Configuration { algorithm, options })
            .collect()
    }

    /// The default configuration and those that differ from it in one parameter.
    pub fn variations(algorithm: &'static Algorithm) -> Vec<Self> {
        let default = Configuration::with_defaults(algorithm);
        let mut all = vec![default.clone()];
        for (place, parameter) in algorithm.parameters.iter().enumerate() {
            for value in parameter.tries().into_iter().skip(1) {
                let mut other = default.clone();
                other.options.0[place].1 = value;
                all.push(other);
            }
        }
        all
    }

    /// This configuration with one parameter set by `text`, which reads `key=value`; `None` if the algorithm
    /// has no such parameter or value. Former names of parameters are read too.
    pub fn with(mut self, text: &str) -> Option<Self> {
        let (key, value) = text.split_once('=')?;
        let key = former::current(key);
        let mut parameters = self.algorithm.parameters.iter();
        let place = parameters.position(|parameter| parameter.key == key)?;
        self.options.0[place].1 = self.algorithm.parameters[place].parse(value)?;
        Some(self)
    }

    /// The algorithm.
    pub fn algorithm(&self) -> &'static Algorithm {
        self.algorithm
    }

    /// The values of the parameters.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// What it computes.
    pub fn operation(&self) -> Operation {
        self.algorithm.operation
    }

    /// What it needs on a GPU; the host backend runs all of them.
    pub fn needs(&self) -> Capabilities {
        let needs = self.algorithm.needs;
        Capabilities {
            multicast: needs.multicast || (self.algorithm.multicast)(&self.options),
            ..needs
        }
    }

    /// Whether it takes operands of this element type, with these scales or without, and has this activation.
    pub fn takes(&self, problem: &Problem) -> bool {
        self.has_activation(problem) && self.takes_operands(problem)
    }

    fn has_activation(&self, problem: &Problem) -> bool {
        problem.activation == Activation::None || (self.algorithm.has_activation)(&self.options)
    }

    fn takes_operands(&self, problem: &Problem) -> bool {
        match problem.dtype.is_arithmetic() {
            true => problem.scaling == Scaling::None,
            false => (self.algorithm.scalings)(&self.options).contains(&problem.scaling),
        }
    }

    /// The name in tables, on command lines and in plans.
    pub fn name(&self) -> String {
        self.to_string()
    }

    /// The plan of one rank.
    ///
    /// # Errors
    /// The problem is empty or too large, `rank` is not below `world`, there are too many ranks, or the plan
    /// has more than [`Plan::MOST_STEPS`] steps.
    pub fn plan(&self, rank: usize, world: usize, problem: &Problem) -> Result<Plan, PlanError> {
        problem.validate(rank, world)?;
        if !self.has_activation(problem) {
            return Err(PlanError::Activation { name: self.name() });
        }
        if !self.takes_operands(problem) {
            return Err(PlanError::NarrowOperands {
                name: self.name(),
                scaling: problem.scaling,
            });
        }
        let mut plan = (self.algorithm.build)(&self.options, rank, world, problem)?;
        plan.name = self.name();
        if problem.batch_invariant {
            keep_rows_apart(&mut plan);
        }
        Ok(plan)
    }

    /// Whether the bits of a row of C depend on nothing but the row and the weight, for problems that
    /// [ask for it](Problem::batch_invariant): not on M, the row's place, or which of these configurations of
    /// an operation runs. Their GEMMs are so by their provider; reductions add partials that were rounded to
    /// the element type, in the order of ranks, in f32, and round once. Over nodes, NCCL adds what each node
    /// has rounded, in an order of its own.
    pub fn is_batch_invariant(&self) -> bool {
        (self.algorithm.batch_invariant)(&self.options)
    }

    /// This configuration over so many nodes, if its plans can span several and no number was chosen.
    #[must_use]
    pub fn over_nodes(self, nodes: usize) -> Self {
        let default = Self::with_defaults(self.algorithm);
        match self.options.value("nodes") == default.options.value("nodes") {
            true => self.clone().with(&format!("nodes={nodes}")).unwrap_or(self),
            false => self,
        }
    }

    /// The plans of all ranks.
    ///
    /// # Errors
    /// As [`Configuration::plan`]; a world of no ranks; plans that have more than [`Plan::MOST_STEPS`] steps
    /// among them.
    pub fn plans(&self, world: usize, problem: &Problem) -> Result<Vec<Plan>, PlanError> {
        problem.validate(0, world)?;
        let first = self.plan(0, world, problem)?;
        // Ranks have about as many each: those of many large plans would fill the memory before they are
        // counted.
        let steps = first.steps().saturating_mul(world);
        if steps > Plan::MOST_STEPS {
            return Err(PlanError::TooManySteps {
                plan: first.name,
                steps,
                most: Plan::MOST_STEPS,
            });
        }
        let others = (1..world).map(|rank| self.plan(rank, world, problem));
        std::iter::once(Ok(first)).chain(others).collect()
    }

    /// The caller's buffers of `rank`.
    pub fn operands(&self, rank: usize, world: usize, problem: &Problem) -> Vec<Operand> {
        let rows = self
            .algorithm
            .rows
            .map(|rows| rows(&self.options, rank, world, problem));
        self.operation().operands((rank, world), problem, rows)
    }
}

/// Gives the GEMMs of a plan a provider that computes each row alike, whatever else is multiplied.
fn keep_rows_apart(plan: &mut Plan) {
    for op in &mut plan.ops {
        if let OpKind::Gemm { a, provider, .. } = &mut op.kind
            && plan.buffers[a.buffer.0].dtype != DType::F32
        {
            *provider = Provider::Sm90;
        }
    }
}

/// The name. Processes compare such texts, and the addresses of an algorithm's functions are others in each.
impl fmt::Debug for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Configuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.algorithm.name)?;
        for (parameter, (key, value)) in self.algorithm.parameters.iter().zip(&self.options.0) {
            if parameter.tries().first() != Some(value) {
                write!(f, ":{key}={value}")?;
            }
        }
        Ok(())
    }
}
