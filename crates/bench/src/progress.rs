//! A bar on the terminal of rank 0. Silent in pipes, and on every other rank.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How far a run is.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// The progress of `rank`.
    pub fn new(rank: usize) -> Self {
        let target = if rank == 0 && std::io::stderr().is_terminal() {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        let bar = ProgressBar::with_draw_target(Some(1), target);
        if let Ok(style) = ProgressStyle::with_template("{elapsed:>4} [{bar:24}] {msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar }
    }

    /// At step `done` of `total`, doing `what`.
    pub fn at(&self, done: usize, total: usize, what: impl Into<String>) {
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
        self.bar.set_message(what.into());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
