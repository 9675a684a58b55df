//! The NCCL layer against a stand-in library, compiled here with the system's C compiler: loading, refusals,
//! codes, arguments and layouts of every call, windows, initialization within a deadline, and teardown. Real
//! NCCL is tested where there are GPUs.

mod collectives;
mod fake;
mod life;
mod versions;
mod windows;
