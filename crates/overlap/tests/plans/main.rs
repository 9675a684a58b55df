//! Plans, what *show* prints of them and what *check* proves about them.

mod algorithms;
mod deletions;
mod faults;
mod fixtures;
mod generated;
mod interpreter;
mod pipelines;
mod printed;
mod sequences;
mod sketch;
mod violations;
