//! What a simulation predicts.

mod closed_forms;
mod fused;
mod machines;
mod measured;
mod push_chunks;
mod reductions;
mod schedules;
mod waiting;
mod worlds;
