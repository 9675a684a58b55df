//! Running a host reference as a kernel: in stream order, on the stream's thread.

use std::sync::Arc;

use super::stream::{HostStream, Item, Work};
use super::{Host, record};
use crate::error::Result;

impl Host {
    /// Enqueues `work` on `stream`. It may run more than once if the stream is being captured. An error or a panic of
    /// `work` is reported by the next synchronisation of the stream; later work still runs.
    pub fn launch(
        &self,
        stream: &HostStream,
        name: &'static str,
        work: impl Fn() -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        let recorder = record::current();
        let work = Work {
            name,
            run: Arc::new(move || record::with(recorder.clone(), &work)),
        };
        self.0.streams.submit(stream, Item::Work(work))
    }
}
