//! Umbrella crate: symmetric memory, communicator, kernels, matrix products and provable schedules.
