//! How work gets onto a stream, and how it is carried out.

pub(crate) mod capture;
pub(crate) mod kernels;
pub(crate) mod queue;
pub(crate) mod run;
