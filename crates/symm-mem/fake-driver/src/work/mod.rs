//! Enqueuing work on streams, and running it.

pub(crate) mod capture;
pub(crate) mod kernels;
pub(crate) mod queue;
pub(crate) mod run;
