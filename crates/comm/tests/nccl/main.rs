//! The NCCL layer against a stand-in library, compiled here with the system's C compiler: loading, refusals,
//! codes, arguments and layouts of every call, windows, coming up within a deadline, and letting go. What
//! real NCCL does on GPUs is tested where there are GPUs.

mod collectives;
mod fake;
mod life;
mod versions;
mod windows;
