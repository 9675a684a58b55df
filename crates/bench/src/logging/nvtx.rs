//! Spans as NVTX ranges, which Nsight Systems shows above the kernels and copies that they enqueued.
//!
//! NVTX hands its calls to the tool that a program runs under, and does nothing where there is none. Version
//! 3 is headers of C; programs in other languages load the library of the same functions that comes with
//! CUDA. cudarc's binding knows only that of CUDA up to 12.8, and panics without it, so two functions are
//! looked up here.

use std::error::Error;
use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};

use libloading::Library;
use tracing::Subscriber;
use tracing::span::{Attributes, Id};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::spans::Fields;
use crate::error::{BenchError, Result};

/// The library, of CUDA 12.9 and later and of CUDA before that.
const NAMES: [&str; 2] = ["libnvtx3interop.so.1", "libnvToolsExt.so.1"];

type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;

/// The layer that opens a range of its thread where a span is entered, with the span's name and fields as the
/// text, and closes it where the span is left.
#[derive(Clone, Copy, Debug)]
pub struct Nvtx {
    push: Push,
    pop: Pop,
}

impl Nvtx {
    /// Loads NVTX from the file that is `named`, or from where the system's loader finds it.
    pub fn load(named: Option<&Path>) -> Result<Self> {
        let files = named.map_or_else(|| NAMES.map(PathBuf::from).into(), |path| vec![path.into()]);
        let mut tried = Vec::new();
        for file in files {
            match Self::open(&file) {
                Ok(nvtx) => return Ok(nvtx),
                Err(error) => {
                    // libloading names the function that failed, and the loader's reason as the source.
                    let why = error
                        .source()
                        .map_or(error.to_string(), <dyn Error>::to_string);
                    tried.push(format!("{} ({why})", file.display()));
                }
            }
        }
        Err(BenchError::NoNvtx { tried })
    }

    fn open(file: &Path) -> Result<Self, libloading::Error> {
        // SAFETY: a shared library's constructors run here. The file is NVTX by its name, or the user's
        // explicit wish.
        let library = unsafe { Library::new(file) }?;
        // SAFETY: nvtxRangePushA takes a string and gives the depth of the range, in every version of NVTX.
        let push = *unsafe { library.get::<Push>(b"nvtxRangePushA") }?;
        // SAFETY: nvtxRangePop gives the depth too.
        let pop = *unsafe { library.get::<Pop>(b"nvtxRangePop") }?;
        // Spans may end as long as the process runs.
        std::mem::forget(library);
        Ok(Self { push, pop })
    }
}

/// The text of a span's range, as `plan.bind plan=ringGet world=4`.
struct Text(CString);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Nvtx {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            let mut text = span.name().to_owned();
            for (name, value) in fields.0 {
                let value = value.as_str().map_or(value.to_string(), str::to_owned);
                text += &format!(" {name}={value}");
            }
            text.retain(|letter| letter != '\0');
            let text = CString::new(text).unwrap_or_default();
            span.extensions_mut().insert(Text(text));
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(Text(text)) = span.extensions().get()
        {
            // SAFETY: the string ends with its null and lives during the call; NVTX copies it.
            unsafe { (self.push)(text.as_ptr()) };
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && span.extensions().get::<Text>().is_some()
        {
            // SAFETY: spans of a thread are left in the reverse order in which they were entered, so this
            // ends the span's own.
            unsafe { (self.pop)() };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::ffi::CStr;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    thread_local!(static CALLS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) });

    unsafe extern "C" fn push(text: *const c_char) -> c_int {
        // SAFETY: the layer passes a string.
        let text = unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned();
        CALLS.with_borrow_mut(|calls| calls.push(text));
        0
    }

    unsafe extern "C" fn pop() -> c_int {
        CALLS.with_borrow_mut(|calls| calls.push("pop".into()));
        0
    }

    #[test]
    fn ranges_nest_as_spans_do_and_say_their_fields() {
        let subscriber = tracing_subscriber::registry().with(Nvtx { push, pop });
        tracing::subscriber::with_default(subscriber, || {
            let outer = tracing::info_span!("outer", bytes = 7, plan = "a\0b", shape = ?(1, 2));
            let _outer = outer.entered();
            for _ in 0..2 {
                tracing::info_span!("inner").in_scope(|| tracing::info!("events are no ranges"));
            }
        });
        let calls = CALLS.take();
        let expected = [
            "outer bytes=7 plan=ab shape=(1, 2)",
            "inner",
            "pop",
            "inner",
            "pop",
            "pop",
        ];
        assert_eq!(calls, expected);
    }
}
