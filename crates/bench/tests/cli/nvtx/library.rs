//! A stand-in for the NVTX library: writes each call, with the thread that made it, to a file for the
//! process.
//!
//! The test compiles it with the folder of these files as `FOLDER`.

use std::ffi::{CStr, c_char, c_int};
use std::io::Write;

fn note(what: &str) -> c_int {
    let path = format!("{}/{}", env!("FOLDER"), std::process::id());
    let file = std::fs::File::options()
        .append(true)
        .create(true)
        .open(path);
    let line = format!("{:?} {what}\n", std::thread::current().id());
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .is_ok() as c_int
        - 1
}

/// # Safety
/// `text` must be a string that ends with a null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvtxRangePushA(text: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    note(&unsafe { CStr::from_ptr(text) }.to_string_lossy())
}

#[unsafe(no_mangle)]
pub extern "C" fn nvtxRangePop() -> c_int {
    note("pop")
}
