//! Plans, what *show* prints of them and what *check* proves about them.

mod algorithms;
mod beside;
mod candidates;
mod column_parallel;
mod deletions;
mod faults;
mod fixtures;
mod flow;
mod fused;
mod generated;
mod hierarchical;
mod host_ir;
mod interpreter;
mod parameters;
mod pipelines;
mod printed;
mod reductions;
mod sequences;
mod sketch;
mod values;
mod violations;
