//! Requests to end that reach the launcher.

use std::io;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};

/// Listens for Ctrl-C and its relatives for as long as it lives.
///
/// Afterwards they are ignored rather than fatal: a launcher ends soon after its job.
pub(super) struct Listener(Handle);

impl Listener {
    /// Calls `received` with the number of every SIGINT, SIGTERM and SIGHUP.
    pub fn new(mut received: impl FnMut(i32) + Send + 'static) -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        let handle = signals.handle();
        thread::spawn(move || {
            for signal in signals.forever() {
                received(signal);
            }
        });
        Ok(Self(handle))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.close();
    }
}
