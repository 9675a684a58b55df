//! How a test controls the fake driver that it has loaded.

use std::ffi::{CStr, c_void};

use crate::failure::{Failure, When};
use crate::journal::{self, JOURNAL};
use crate::state::lock;

/// What [`Control::find`] expects of the loaded driver.
const MARKER: u64 = 0x5757_4641_4b45_0001;

/// One line of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The rank that called.
    pub rank: usize,
    /// Which of its calls, from 1.
    pub number: u64,
    /// The function.
    pub function: String,
    /// The answer.
    pub code: u32,
}

type Text = unsafe extern "C" fn(*mut u8, usize) -> usize;

/// The loaded driver, verified to be the fake one.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    rank: extern "C" fn(usize),
    restart: extern "C" fn(usize, u64, u32, usize),
    fired: extern "C" fn() -> bool,
    calls: Text,
    faults: Text,
    live: Text,
    wipe: extern "C" fn(),
}

impl Control {
    /// The control functions of the driver whose symbols `lookup` finds; `None` if it is not the fake one.
    ///
    /// # Safety
    /// - `lookup` returns the address of the symbol, or null.
    /// - The library stays loaded.
    pub unsafe fn find(lookup: impl Fn(&CStr) -> *const c_void) -> Option<Control> {
        let symbol = |name| Some(lookup(name)).filter(|found| !found.is_null());
        let marker = symbol(c"warpweave_fake_marker")?;
        // SAFETY: only this driver has a function of this name, and `calls` below has this type.
        let marker: extern "C" fn() -> u64 = unsafe { std::mem::transmute(marker) };
        if marker() != MARKER {
            return None;
        }
        let text = |name| -> Option<Text> {
            // SAFETY: as above; the marker says that the library is of this version.
            Some(unsafe { std::mem::transmute::<*const c_void, Text>(symbol(name)?) })
        };
        // SAFETY: as above.
        unsafe {
            Some(Control {
                rank: std::mem::transmute::<*const c_void, extern "C" fn(usize)>(symbol(
                    c"warpweave_fake_rank",
                )?),
                restart: std::mem::transmute::<*const c_void, extern "C" fn(usize, u64, u32, usize)>(
                    symbol(c"warpweave_fake_restart")?,
                ),
                fired: std::mem::transmute::<*const c_void, extern "C" fn() -> bool>(symbol(
                    c"warpweave_fake_fired",
                )?),
                calls: text(c"warpweave_fake_calls")?,
                faults: text(c"warpweave_fake_faults")?,
                live: text(c"warpweave_fake_live")?,
                wipe: std::mem::transmute::<*const c_void, extern "C" fn()>(symbol(
                    c"warpweave_fake_wipe",
                )?),
            })
        }
    }

    /// Declares that this thread makes the calls of `rank`.
    pub fn rank(&self, rank: usize) {
        (self.rank)(rank);
    }

    /// Clears the journal and sets the failure to inject.
    pub fn restart(&self, failure: Option<Failure>) {
        let none = Failure {
            rank: 0,
            call: 0,
            code: 0,
            when: When::Instead,
        };
        let f = failure.unwrap_or(none);
        (self.restart)(f.rank, f.call, f.code, f.when as usize);
    }

    /// Whether the injected failure has happened.
    pub fn fired(&self) -> bool {
        (self.fired)()
    }

    /// The calls since the last [`Control::restart`].
    pub fn calls(&self) -> Vec<Call> {
        let parse = |line: String| {
            let mut fields = line.split(' ');
            Some(Call {
                rank: fields.next()?.parse().ok()?,
                number: fields.next()?.parse().ok()?,
                function: fields.next()?.to_owned(),
                code: fields.next()?.parse().ok()?,
            })
        };
        lines(self.calls).into_iter().filter_map(parse).collect()
    }

    /// The rules broken since then, one per line: every call that the driver refused, and misuse that a real
    /// driver would not report.
    pub fn faults(&self) -> Vec<String> {
        lines(self.faults)
    }

    /// What is still allocated, mapped, open or bound.
    pub fn live(&self) -> Vec<String> {
        lines(self.live)
    }

    /// Frees everything that is live and unused: what remains when a call that would have freed it failed.
    pub fn wipe(&self) {
        (self.wipe)();
    }
}

fn lines(of: Text) -> Vec<String> {
    let mut text = Vec::new();
    loop {
        // SAFETY: the function writes at most the given number of bytes.
        let bytes = unsafe { of(text.as_mut_ptr(), text.len()) };
        if bytes <= text.len() {
            text.truncate(bytes);
            break;
        }
        text.resize(bytes, 0);
    }
    let text = String::from_utf8_lossy(&text);
    text.lines().map(str::to_owned).collect()
}

/// # Safety
/// `to` is valid for writes of `bytes`.
unsafe fn give(lines: &[String], to: *mut u8, bytes: usize) -> usize {
    let text = lines.join("\n");
    if text.len() <= bytes && !text.is_empty() {
        // SAFETY: the caller's obligation, and the text fits.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), to, text.len()) };
    }
    text.len()
}

#[unsafe(no_mangle)]
extern "C" fn warpweave_fake_marker() -> u64 {
    MARKER
}

#[unsafe(no_mangle)]
extern "C" fn warpweave_fake_rank(rank: usize) {
    journal::set_rank(rank);
}

#[unsafe(no_mangle)]
extern "C" fn warpweave_fake_restart(rank: usize, call: u64, code: u32, when: usize) {
    let when = When::ALL[when.min(When::ALL.len() - 1)];
    let failure = Failure {
        rank,
        call,
        code,
        when,
    };
    JOURNAL.lock().restart((call > 0).then_some(failure));
}

#[unsafe(no_mangle)]
extern "C" fn warpweave_fake_fired() -> bool {
    JOURNAL.lock().fired()
}

/// # Safety
/// `to` is valid for writes of `bytes`; so below.
#[unsafe(no_mangle)]
unsafe extern "C" fn warpweave_fake_calls(to: *mut u8, bytes: usize) -> usize {
    // SAFETY: the caller's obligation.
    unsafe { give(&JOURNAL.lock().lines, to, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn warpweave_fake_faults(to: *mut u8, bytes: usize) -> usize {
    // SAFETY: the caller's obligation.
    unsafe { give(&JOURNAL.lock().faults, to, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn warpweave_fake_live(to: *mut u8, bytes: usize) -> usize {
    let live = lock().live();
    // SAFETY: the caller's obligation.
    unsafe { give(&live, to, bytes) }
}

#[unsafe(no_mangle)]
extern "C" fn warpweave_fake_wipe() {
    lock().wipe();
}
