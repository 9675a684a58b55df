//! Standard output.

use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use crate::error::{Error, Result};

/// Writes to standard output. A reader that has closed the pipe, as `head` does, wants no more.
pub fn print(text: impl Display) -> Result<()> {
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let why = format!("cannot write to standard output: {error}");
            Err(Error::Failed(why))
        }
        _ => Ok(()),
    }
}
