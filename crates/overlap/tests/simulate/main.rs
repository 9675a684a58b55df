//! What a simulation predicts.

mod chunked_matmul;
mod closed_forms;
mod fused;
mod machines;
mod measured;
mod nodes;
mod norms;
mod pulls;
mod push_chunks;
mod reductions;
mod schedules;
mod worlds;
