//! Plans run by the executor on the host backend under shuttle, which takes the streams of all ranks in random order:
//! what *check* passes never goes wrong, and what it rejects goes wrong in the way that it says.
//!
//! ```text
//! RUSTFLAGS="--cfg shuttle" cargo test -p warpweave-overlap --test shuttle
//! ```
//!
//! Plans and schedules follow from a seed, `WARPWEAVE_SHUTTLE_SEED`; a failure prints it with its place in the sequence, and
//! shuttle prints the seed of the one schedule that failed, which `SHUTTLE_RANDOM_SEED` repeats. `WARPWEAVE_SHUTTLE_EFFORT`
//! multiplies the number of schedules.
#![cfg(shuttle)]

mod algorithms;
mod cases;
mod ranks;
mod rejected;
#[path = "../plans/sketch.rs"]
mod sketch;
mod sound;
mod unrolled;
