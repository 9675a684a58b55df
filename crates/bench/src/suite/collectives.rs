//! `collectives`: collectives over symmetric memory beside NCCL; no plans: [`crate::collectives`] measures them.

use super::Suite;

pub(super) const SUITE: Suite = Suite {
    name: "collectives",
    reproduces: "collectives over symmetric memory beside NCCL and, with --peers, PyTorch's, over sizes",
    operations: &[],
    entries: Vec::new,
    problems: |_, _| Vec::new(),
    figures: Vec::new,
};
