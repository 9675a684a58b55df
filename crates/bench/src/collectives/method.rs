//! The rows of a table (our variants, NCCL, and the variant that the library selects), and the libraries that
//! make their calls.

use warpweave_comm::Collectives;
use warpweave_comm::collective::{CollectiveOptions, Operation, Variant};
use warpweave_report::{Kind, SELECT};

use super::nccl::NcclBackend;
use crate::error::{Result, if_available};
use crate::session::Session;

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

/// A communicator, or why there is none on some rank.
type Communicator<C> = Result<C, String>;

/// The libraries that make the calls of rows.
pub struct Libraries<'a, B: NcclBackend> {
    pub(super) session: &'a Session<B>,
    /// The names of rows, or none for all.
    pub(super) wanted: Vec<String>,
    pub(super) ours: Collectives<B>,
    /// Of plain memory, and of windows.
    pub(super) nccl: [Communicator<B::Group>; 2],
}

impl<'a, B: NcclBackend> Libraries<'a, B> {
    /// For `wanted` rows of messages of up to `largest` bytes. Collective.
    pub fn new(session: &'a Session<B>, largest: usize, wanted: &[String]) -> Result<Self> {
        let options = CollectiveOptions {
            // A rank's share of the largest message, rounded up, for each rank.
            staging_bytes: largest + 4096,
            ..CollectiveOptions::default()
        };
        let ours = Collectives::new(&session.backend, &session.exchange, "bench", options)?;
        let communicator = |method: Method| -> Result<Communicator<B::Group>> {
            if !wants(wanted, method.name()) {
                return Ok(Err("it was not asked for".into()));
            }
            let comm = if_available(session.backend.nccl(&session.exchange));
            session.if_all_can(&format!("start of {}", method.name()), comm)
        };
        Ok(Self {
            nccl: [
                communicator(Method::Nccl)?,
                communicator(Method::NcclWindow)?,
            ],
            session,
            wanted: wanted.to_vec(),
            ours,
        })
    }

    /// NCCL's communicator of a method that is NCCL's, or why there is none.
    pub(super) fn communicator(&self, method: Method) -> Option<&Communicator<B::Group>> {
        let [plain, windows] = &self.nccl;
        match method {
            Method::Nccl => Some(plain),
            Method::NcclWindow => Some(windows),
            Method::Ours(_) => None,
        }
    }
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
