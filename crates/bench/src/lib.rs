//! The bench: every implementation timed by one clock, with the same inputs and the same protocol, each
//! result verified.
//!
//! The binary `warpweave` runs on every rank of a job; `cargo xtask bench` starts it. This library is what it
//! is made of.
//!
//! # Protocol
//!
//! - **Inputs** change with every verified call and every single timed call: before it, one of several sets
//!   is copied into the plan's input. Every element is a function of its place ([`inputs`]), so each rank
//!   makes what it needs.
//! - **Verification** ([`verification`]) comes before and after the timing. Calls are made back to back, once
//!   directly and once as graph launches, with the outputs poisoned before each; then every element of every
//!   rank is compared. With small integers each element has one right value; with reals ‖out − reference‖ /
//!   ‖reference‖ is given too. The reference is computed on the host.
//! - **Times** ([`timing`], [`clock`]) are of device events, of the slowest rank, with the ranks aligned on
//!   the device before each call and launches hidden by a delay; medians over interleaved rounds. Calls and
//!   graph launches back to back are timed too.
//! - **The limit** ([`limit`]) of an operation on a problem is the larger of the GEMM that a rank computes
//!   and the fewest bytes that must come into it over the bandwidth of a copy-engine all-gather, both of the
//!   same run; efficiency is limit over time.
//! - **Groups**: where a suite has more plans than memory takes, they are bound, verified, timed and dropped
//!   in groups, with the baseline and the GEMM alone in the rounds of each.
//! - **Candidates** ([`candidate`]): a plan ([`plans`]) and a collective ([`collectives`]) implement one
//!   trait, by which they are called, loaded, verified and timed.
//! - **The breakdown** of one implementation times its parts as plans of their own, in the same rounds.
//!
//! A function returns the errors of the layers below it. Its documentation names errors only if it adds some,
//! or if its caller treats one in a special way.
//!
//! What is found is a [`Report`](warpweave_report::Report): that crate writes, reads, compares and draws it.

mod alone;
pub mod candidate;
pub mod cli;
pub mod clock;
pub mod collectives;
pub mod command;
pub mod error;
mod inject;
pub mod inputs;
pub mod job;
pub mod limit;
mod logging;
mod measure;
pub mod plans;
mod probes;
mod progress;
mod provenance;
pub mod session;
pub mod suite;
pub mod timing;
mod transport;
pub mod verification;

pub use error::{BenchError, Result};

/// The README's examples are compiled; its text is about the program, not the library.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
