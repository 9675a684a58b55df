//! The fastest variant of a call, from measurements.

mod costs;
mod measure;

use warpweave_symm_mem::{Backend, BackendKind, Error, Result};

pub use costs::{Costs, MalformedCosts, interpolate};

use super::Collectives;
use super::backend::CollectiveKernels;
use super::call::{Call, Operation};
use super::variant::Variant;

/// What was measured on machines whose results are in the project's `docs/results`.
const H200: &str = include_str!("h200.tsv");

/// The order in which variants are tried where nothing was measured.
const UNMEASURED: [Variant; 7] = [
    Variant::TwoShot,
    Variant::Push,
    Variant::Pull,
    Variant::TwoShotPush,
    Variant::Packets,
    Variant::PacketsTwoShot,
    Variant::Staged,
];

impl Costs {
    /// What is known of this kind of device before anything is measured: of GPUs what H200s of one host took, of the host
    /// nothing.
    pub fn built_in<B: Backend>() -> Self {
        match B::KIND {
            BackendKind::Cuda => H200.parse().unwrap_or_default(),
            BackendKind::Host => Costs::default(),
        }
    }
}

impl<B: CollectiveKernels> Collectives<B> {
    /// The variant for `call` that takes the least time according to [`Collectives::costs`], of those that can do it
    /// and give the same result in every run. The same on all ranks. Without any measurement of the operation the first of a fixed order that can.
    ///
    /// # Errors
    /// As [`Collectives::validate`], if no variant can do it: make the operands symmetric, or let NCCL do it.
    pub fn select(&self, call: &Call) -> Result<Variant> {
        let mut refused = None;
        let mut able = Vec::new();
        let reliable = |variant: &&Variant| variant.is_deterministic();
        for &variant in Variant::of(call.operation).iter().filter(reliable) {
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

    /// Enqueues `call` in the variant that [`Collectives::select`] picks, and says which.
    ///
    /// # Errors
    /// As [`Collectives::select`] and [`Collectives::enqueue`].
    ///
    /// # Safety
    /// As for [`Collectives::enqueue`].
    pub unsafe fn run(&self, stream: &B::Stream, call: &Call) -> Result<Variant> {
        let variant = self.select(call)?;
        // SAFETY: the caller's obligations.
        unsafe { self.enqueue(stream, call, variant)? };
        Ok(variant)
    }

    /// What [`Collectives::select`] goes by.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Makes [`Collectives::select`] go by `costs`, which must be the same on all ranks.
    pub fn set_costs(&mut self, costs: Costs) {
        self.costs = costs;
    }
}

impl Operation {
    /// The bytes by which calls are compared: of all that a rank gives (all-gather, reduce-scatter, all-to-all), or of the
    /// message (all-reduce, broadcast). `bytes`: of a call's `count` elements.
    pub const fn size(self, bytes: usize, world: usize) -> usize {
        match self {
            Operation::ReduceScatter | Operation::AllToAll => world * bytes,
            _ => bytes,
        }
    }

    /// The fewest bytes that come into a rank in a call of `size`.
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
