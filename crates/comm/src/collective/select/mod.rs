//! Selection of the fastest variant of a call, from measurements.

mod costs;
mod measure;

use std::collections::HashMap;

use parking_lot::Mutex;
use warpweave_symm_mem::{Backend, BackendKind, Error, Exchange, Result};

pub use costs::{Costs, MalformedCosts, interpolate};

use super::Collectives;
use super::backend::CollectiveKernels;
use super::call::Call;
use super::operation::Operation;
use super::variant::Variant;
use crate::measured::{Figures, Measured};

/// Measurements of the machines in the project's `docs/results`.
const BUILT_IN: &str = include_str!("built_in.tsv");

/// The orders of reduction that a caller accepts: the order determines rounding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReductionOrder {
    /// The order of ranks: all variants give the same bits, in every run.
    #[default]
    Rank,
    /// Any order, which may differ between runs: adds [`Variant::Multimem`] where the operands have multicast
    /// addresses.
    Any,
}

/// The variants to try, in order, where nothing was measured.
const UNMEASURED: [Variant; 7] = [
    Variant::TwoShot,
    Variant::Push,
    Variant::Pull,
    Variant::TwoShotPush,
    Variant::Packets,
    Variant::Sentinel,
    Variant::Staged,
];

impl Costs {
    /// The measurements built in for this kind of device: of GPUs those of H200s of one host, of the host
    /// none.
    pub fn built_in<B: Backend>() -> Self {
        match B::KIND {
            BackendKind::Cuda => BUILT_IN.parse().unwrap_or_default(),
            BackendKind::Host => Costs::default(),
        }
    }

    /// The measurements of these ranks' machine: what rank 0 finds [kept](crate::measured), and for other
    /// operations what is [built in](Costs::built_in). Collective; the same on all ranks.
    ///
    /// # Errors
    /// Errors of the exchange.
    pub fn of_machine<B: Backend>(backend: &B, exchange: &dyn Exchange) -> Result<Self> {
        let measured = Measured::of_ranks(backend, exchange)?;
        let mine = measured
            .filter(|_| exchange.rank() == 0)
            .and_then(|measured| measured.read(Figures::Costs, str::parse::<Costs>))
            .unwrap_or_default();
        let all = exchange.all_gather("measured.costs", mine.to_string().as_bytes())?;
        let first = all.first().map(|text| String::from_utf8_lossy(text));
        let kept = first.unwrap_or_default().parse::<Costs>();
        let kept = kept.map_err(|error| Error::InvalidArgument {
            what: "costs of rank 0",
            why: error.to_string(),
        })?;
        let mut costs = Costs::built_in::<B>();
        costs.replace(kept);
        Ok(costs)
    }

    /// Predicted time of a call through multicast addresses in microseconds, for an all-reduce alone: of `n`
    /// ranks each link carries `1 + 1/n` of the message in each direction, where pushing carries
    /// `2 (n - 1) / n`. The other operations put no fewer bytes on any link, so they are selected only where
    /// they were measured.
    fn predict_multimem(&self, operation: Operation, world: usize, size: usize) -> Option<f64> {
        if operation != Operation::AllReduce {
            return None;
        }
        let carried = (size + size / world) as f64;
        let pushed = operation.incoming(size, world).max(1) as f64;
        let alike = size as f64 * carried / pushed;
        self.predict(operation, Variant::TwoShotPush, world, alike as usize)
    }
}

/// Most selections that are kept.
const MOST_SELECTED: usize = 4096;

/// What was selected before, so that a call does not weigh all variants again.
#[derive(Debug, Default)]
pub(super) struct Selected(Mutex<HashMap<Alike, Variant>>);

/// All that a selection depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Alike {
    operation: Operation,
    bytes: usize,
    symmetric: [bool; 2],
    in_place: bool,
    order: ReductionOrder,
}

impl Alike {
    /// `None` for operands with multicast addresses, where more matters.
    fn of(call: &Call, order: ReductionOrder) -> Option<Self> {
        let operands = [&call.input, &call.output];
        let is_plain = !operands.iter().any(|operand| operand.is_multicast());
        is_plain.then(|| Alike {
            operation: call.operation,
            bytes: call.bytes(),
            symmetric: operands.map(|operand| operand.is_symmetric()),
            in_place: call.in_place(),
            order,
        })
    }
}

impl<B: CollectiveKernels> Collectives<B> {
    /// The variant for `call` that is fastest according to [`Collectives::costs`], of those that can do it,
    /// reduce in the order of ranks, and do not
    /// [push outputs by copy engine](Variant::pushes_outputs_by_engine). The same on all ranks. Without any
    /// measurement of the operation: the first of a fixed order that can.
    ///
    /// # Errors
    /// As [`Collectives::validate`], if no variant can do it: make the operands symmetric, or let NCCL do it.
    pub fn select(&self, call: &Call) -> Result<Variant> {
        self.select_in(call, ReductionOrder::Rank)
    }

    /// As [`Collectives::select`], of the variants that reduce in an `order` that the caller accepts. All
    /// ranks pass the same.
    ///
    /// # Errors
    /// As [`Collectives::select`].
    pub fn select_in(&self, call: &Call, order: ReductionOrder) -> Result<Variant> {
        self.validate_operands(call)?;
        let Some(alike) = Alike::of(call, order) else {
            return self.select_anew(call, order);
        };
        if let Some(variant) = self.selected.0.lock().get(&alike) {
            return Ok(*variant);
        }
        let variant = self.select_anew(call, order)?;
        let mut selected = self.selected.0.lock();
        if selected.len() == MOST_SELECTED {
            selected.clear();
        }
        selected.insert(alike, variant);
        Ok(variant)
    }

    fn select_anew(&self, call: &Call, order: ReductionOrder) -> Result<Variant> {
        let mut refused = None;
        let mut able = Vec::new();
        let accepted = |variant: &&Variant| {
            let in_order = order == ReductionOrder::Any
                || variant.reduces_in_rank_order()
                || !call.operation.reduces();
            in_order && !variant.pushes_outputs_by_engine(call.operation)
        };
        for &variant in Variant::of(call.operation).iter().filter(accepted) {
            match self.validate(call, variant) {
                Ok(()) => able.push(variant),
                Err(error) if error.is_unavailable() => refused = Some(error),
                Err(error) => return Err(error),
            }
        }
        let size = call.operation.size(call.bytes(), self.world);
        let cost = |&variant: &Variant| {
            let measured = self
                .costs
                .predict(call.operation, variant, self.world, size);
            let time = measured.or_else(|| match variant {
                Variant::Staged => self.predict_staged(&self.costs, call),
                Variant::Multimem => self
                    .costs
                    .predict_multimem(call.operation, self.world, size),
                _ => None,
            })?;
            Some((variant, time))
        };
        let measured = able
            .iter()
            .filter_map(cost)
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(variant, _)| variant);
        measured
            .or_else(|| {
                UNMEASURED
                    .into_iter()
                    .find(|variant| able.contains(variant))
            })
            .or_else(|| able.first().copied())
            .ok_or_else(|| {
                refused.unwrap_or_else(|| Error::Unavailable {
                    what: call.operation.to_string(),
                    why: "it has no variants".into(),
                })
            })
    }

    /// Enqueues `call` in the variant that [`Collectives::select`] selects, and returns it.
    ///
    /// # Errors
    /// As [`Collectives::select`] and [`Collectives::enqueue`].
    ///
    /// # Safety
    /// As for [`Collectives::enqueue`].
    pub unsafe fn run(&self, stream: &B::Stream, call: &Call) -> Result<Variant> {
        // SAFETY: the caller's obligations.
        unsafe { self.run_in(stream, call, ReductionOrder::Rank) }
    }

    /// As [`Collectives::run`], in the variant that [`Collectives::select_in`] selects.
    ///
    /// # Errors
    /// As [`Collectives::run`].
    ///
    /// # Safety
    /// As for [`Collectives::enqueue`].
    pub unsafe fn run_in(
        &self,
        stream: &B::Stream,
        call: &Call,
        order: ReductionOrder,
    ) -> Result<Variant> {
        let variant = self.select_in(call, order)?;
        // SAFETY: the caller's obligations.
        unsafe { self.enqueue(stream, call, variant)? };
        Ok(variant)
    }

    /// The measurements that [`Collectives::select`] uses.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Makes [`Collectives::select`] use `costs`, which must be the same on all ranks.
    pub fn set_costs(&mut self, costs: Costs) {
        self.selected = Selected::default();
        self.costs = costs;
    }
}

impl Operation {
    /// The bytes by which calls are compared: of all that a rank gives (all-gather, reduce-scatter,
    /// all-to-all), or of the message (all-reduce, broadcast). `bytes`: of a call's `count` elements.
    pub const fn size(self, bytes: usize, world: usize) -> usize {
        match self {
            Operation::ReduceScatter | Operation::AllToAll => world * bytes,
            _ => bytes,
        }
    }

    /// Fewest bytes that a rank receives in a call of `size`.
    pub const fn incoming(self, size: usize, world: usize) -> usize {
        match self {
            Operation::AllGather => (world - 1) * size,
            Operation::ReduceScatter | Operation::AllToAll => (world - 1) * size / world,
            Operation::AllReduce => 2 * (world - 1) * size / world,
            Operation::Broadcast => size,
            Operation::Barrier => 0,
        }
    }
}
