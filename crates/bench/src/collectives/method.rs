//! The rows of a table: our variants, NCCL, and the variant that the library selects.

use warpweave_comm::collective::{Operation, Variant};
use warpweave_report::{Kind, SELECT};

/// An implementation of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// NCCL on plain buffers.
    Nccl,
    /// NCCL on memory of its own in symmetric windows.
    NcclWindow,
    /// One of ours, on symmetric operands.
    Ours(Variant),
}

impl Method {
    /// The name in tables and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Method::Nccl => "nccl",
            Method::NcclWindow => "nccl-window",
            Method::Ours(variant) => variant.name(),
        }
    }

    /// Whose it is.
    pub const fn kind(self) -> Kind {
        match self {
            Method::Nccl | Method::NcclWindow => Kind::Nccl,
            Method::Ours(_) => Kind::Ours,
        }
    }

    /// All methods of `operation` that are among `wanted`; all of them where nothing is wanted.
    pub fn of(operation: Operation, wanted: &[String]) -> Vec<Self> {
        let ours = Variant::of(operation).iter().map(|&v| Method::Ours(v));
        [Method::Nccl, Method::NcclWindow]
            .into_iter()
            .chain(ours)
            .filter(|method| wants(wanted, method.name()))
            .collect()
    }
}

/// Whether a row of this name is among `wanted`.
pub(super) fn wants(wanted: &[String], name: &str) -> bool {
    wanted.is_empty() || wanted.iter().any(|w| w == name)
}

/// Every row by name with a sentence, the baseline first.
pub fn catalogue() -> Vec<(&'static str, &'static str)> {
    let variants = Variant::ALL.into_iter();
    let variants = variants.map(|variant| (variant.name(), summary(variant)));
    [
        ("nccl", "NCCL on plain buffers, the baseline"),
        ("nccl-window", "NCCL on its own memory in symmetric windows"),
    ]
    .into_iter()
    .chain(variants)
    .chain([(
        SELECT,
        "the row of the variant that is chosen by size and machine",
    )])
    .collect()
}

fn summary(variant: Variant) -> &'static str {
    match variant.name() {
        "packets" => "data with its epoch in packets, one launch",
        "sentinel" => "all-reduce of data without flags in two steps, one launch",
        "push" => "SMs store to all outputs",
        "pull" => "SMs load from all inputs",
        "push-tma" => "TMA bulk copies to all outputs",
        "pull-tma" => "TMA bulk copies from all inputs",
        "push-copy-engine" => "copy engines write to the peers",
        "push-batched" => "the same in one batch of the driver",
        "one-shot" => "every rank reduces all inputs",
        "two-shot" => "each rank reduces a chunk and stores it to all",
        "two-shot-push" => "two-shot, chunks pushed to staging memory",
        "two-shot-tma" => "two-shot by TMA bulk copies",
        "scatter-all-gather" => "the root scatters, the others pass on",
        "staged" => "any operands, in pieces by method of memory of ours",
        "tree" => "two binary trees of packets",
        "multimem" => "stores and loads by multicast, the switch adds",
        "multicast-copy" => "a copy engine writes to a multicast address",
        _ => "over symmetric memory",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_comes_first_and_names_choose() {
        let all = Method::of(Operation::AllReduce, &[]);
        assert_eq!(all[..2], [Method::Nccl, Method::NcclWindow]);
        assert_eq!(all.len(), 2 + Variant::of(Operation::AllReduce).len());
        let wanted = ["push", "nccl"].map(String::from);
        let two = Method::of(Operation::AllGather, &wanted);
        assert_eq!(two, [Method::Nccl, Method::Ours(Variant::Push)]);
        // An all-reduce has no variant `push`.
        assert_eq!(Method::of(Operation::AllReduce, &wanted), [Method::Nccl]);
    }

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let mut names: Vec<_> = catalogue().into_iter().map(|(name, _)| name).collect();
        let suite = crate::suite::named("collectives").unwrap();
        let all: Vec<_> = names.iter().map(|&n| n.to_owned()).collect();
        assert!(suite.cases(&all).unwrap().is_empty());
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 3 + Variant::ALL.len());
    }
}
