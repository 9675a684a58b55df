//! What a simulation predicts.

mod closed_forms;
mod machines;
mod measured;
mod waiting;
mod worlds;
