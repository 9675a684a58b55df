//! One suite for the collectives of every backend: results are compared with simple reference arithmetic, bit
//! by bit, in every element and beyond both ends of every operand.
//!
//! `play` runs scripts of calls on one rank, `suite` has the scripts; `host` runs them on threads,
//! `processes` on processes, `cuda` on GPUs. Calls of a script follow each other with no synchronization, in
//! the same memory, with values that change from call to call.

mod calls;
mod case;
mod cuda;
mod faults;
mod host;
mod late;
mod model;
mod norm;
mod play;
mod processes;
mod random;
mod rank;
mod replays;
mod suite;
mod values;
