//! Progress bars on the terminal of rank 0. Nothing is shown in pipes and on the other ranks; there `--log
//! info` logs the same steps.

use std::sync::LazyLock;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// All bars on standard error: a long step may be part of a longer one. Nothing is drawn where standard error
/// is no terminal.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Writes to the terminal while the bars are hidden.
pub fn aside<T>(write: impl FnOnce() -> T) -> T {
    BARS.suspend(write)
}

/// How far a run is.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// The progress of `rank`.
    pub fn new(rank: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::hidden());
        let bar = if rank == 0 { BARS.add(bar) } else { bar };
        if let Ok(style) = ProgressStyle::with_template("{elapsed:>4} [{bar:24}] {msg}") {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar }
    }

    /// At step `done` of `total`, doing `what`.
    pub fn at(&self, done: usize, total: usize, what: impl Into<String>) {
        let what = what.into();
        tracing::info!(done, total, "{what}");
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
        self.bar.set_message(what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        BARS.remove(&self.bar);
    }
}
