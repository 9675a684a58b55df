//! NCCL's own error texts.

use std::ffi::{CStr, c_char};
use std::ptr::null_mut;

use super::api::{code_name, hint};
use super::library::NcclLibrary;
use crate::error::CommError;

/// The error of `call`, which has just returned `code` on this thread.
pub(super) fn failure(
    library: &NcclLibrary,
    rank: usize,
    call: &'static str,
    code: i32,
) -> CommError {
    let meaning = library.api.get_error_string.get().ok();
    // SAFETY: takes any code, and returns a constant of NCCL's.
    let meaning = meaning.map(|get| text(unsafe { get(code) }));
    let last = library.api.get_last_error.get().ok();
    // SAFETY: the communicator may be null; the string is NCCL's until its next call on this thread.
    let last = last.map(|get| text(unsafe { get(null_mut()) }));
    let message: Vec<String> = [meaning, last]
        .into_iter()
        .flatten()
        .filter(|message| !message.is_empty())
        .collect();
    CommError::Nccl {
        rank,
        call,
        code,
        name: code_name(code),
        detail: format!("{}; {}", message.join(": "), hint(code)),
    }
}

/// A string of NCCL, zero-terminated or null.
fn text(message: *const c_char) -> String {
    if message.is_null() {
        return String::new();
    }
    // SAFETY: not null, and the callers pass what NCCL has just returned.
    let message = unsafe { CStr::from_ptr(message) };
    message.to_string_lossy().trim().to_owned()
}
