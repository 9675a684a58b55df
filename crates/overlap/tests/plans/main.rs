//! Plans, what *show* prints of them and what *check* proves about them.

mod algorithms;
mod arena;
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
mod matmul_overlapping_all_gather;
mod norms;
mod parameters;
mod pipelines;
mod printed;
mod pushes;
mod reductions;
mod schedule;
mod sequences;
mod sketch;
mod starvation;
mod values;
mod violations;
