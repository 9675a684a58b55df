//! Plans run by the executor on the host backend under shuttle, which takes the streams of all ranks in
//! random order: what *check* passes never goes wrong, and what it rejects goes wrong in the way that it
//! says.
//!
//! ```text
//! RUSTFLAGS="--cfg shuttle" cargo test -p warpweave-overlap --test shuttle
//! ```
//!
//! Plans and schedules follow from `WARPWEAVE_SHUTTLE_SEED`, so a failure comes again. It prints the
//! variables that repeat it, `WARPWEAVE_SHUTTLE_CASE` for a single one of the random plans; where a rank
//! panics within a run, shuttle adds the seed of that one schedule, for `SHUTTLE_RANDOM_SEED`.
//! `WARPWEAVE_SHUTTLE_EFFORT` multiplies plans and schedules.
#![cfg(shuttle)]

mod algorithms;
mod cases;
mod ranks;
mod rejected;
#[path = "../plans/sketch.rs"]
mod sketch;
mod sound;
mod unrolled;
