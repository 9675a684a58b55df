//! The functions of a cuBLASLt that was opened at run time.
//!
//! cudarc's own loader panics when the library or a symbol is missing, so it is not used. Statuses cross the
//! boundary as plain numbers: a newer library may answer with one that no enumeration here knows.

use std::error::Error as _;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::Error;

use super::header as sys;
use super::search;

pub(super) type Status = u32;

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*) -> $ret:ty;)*) => {
        /// One pointer for each function that this crate calls.
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($arg),*) -> $ret,)*
        }

        impl Functions {
            /// # Safety
            /// `library` is a cuBLASLt and stays open for as long as the functions may be called.
            unsafe fn resolve(library: &libloading::Library, path: &Path) -> Result<Self, Error> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the symbol has this signature in every cuBLASLt of CUDA 12 and 13.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($arg),*) -> $ret>($symbol.as_bytes())
                        };
                        *symbol.map_err(|_| Error::MissingSymbol {
                            library: path.to_path_buf(),
                            symbol: $symbol,
                        })?
                    },)*
                })
            }
        }
    };
}

functions! {
    create = "cublasLtCreate": fn(*mut sys::cublasLtHandle_t) -> Status;
    destroy = "cublasLtDestroy": fn(sys::cublasLtHandle_t) -> Status;
    version = "cublasLtGetVersion": fn() -> usize;
    status_name = "cublasLtGetStatusName": fn(Status) -> *const c_char;
    desc_create = "cublasLtMatmulDescCreate": fn(*mut sys::cublasLtMatmulDesc_t, u32, u32) -> Status;
    desc_destroy = "cublasLtMatmulDescDestroy": fn(sys::cublasLtMatmulDesc_t) -> Status;
    desc_set = "cublasLtMatmulDescSetAttribute":
        fn(sys::cublasLtMatmulDesc_t, u32, *const c_void, usize) -> Status;
    layout_create = "cublasLtMatrixLayoutCreate":
        fn(*mut sys::cublasLtMatrixLayout_t, u32, u64, u64, i64) -> Status;
    layout_destroy = "cublasLtMatrixLayoutDestroy": fn(sys::cublasLtMatrixLayout_t) -> Status;
    layout_set = "cublasLtMatrixLayoutSetAttribute":
        fn(sys::cublasLtMatrixLayout_t, u32, *const c_void, usize) -> Status;
    preference_create = "cublasLtMatmulPreferenceCreate": fn(*mut sys::cublasLtMatmulPreference_t) -> Status;
    preference_destroy = "cublasLtMatmulPreferenceDestroy": fn(sys::cublasLtMatmulPreference_t) -> Status;
    preference_set = "cublasLtMatmulPreferenceSetAttribute":
        fn(sys::cublasLtMatmulPreference_t, u32, *const c_void, usize) -> Status;
    heuristic = "cublasLtMatmulAlgoGetHeuristic":
        fn(sys::cublasLtHandle_t, sys::cublasLtMatmulDesc_t, sys::cublasLtMatrixLayout_t,
           sys::cublasLtMatrixLayout_t, sys::cublasLtMatrixLayout_t, sys::cublasLtMatrixLayout_t,
           sys::cublasLtMatmulPreference_t, c_int, *mut HeuristicResult, *mut c_int) -> Status;
    algorithm_check = "cublasLtMatmulAlgoCheck":
        fn(sys::cublasLtHandle_t, sys::cublasLtMatmulDesc_t, sys::cublasLtMatrixLayout_t,
           sys::cublasLtMatrixLayout_t, sys::cublasLtMatrixLayout_t, sys::cublasLtMatrixLayout_t,
           *const sys::cublasLtMatmulAlgo_t, *mut HeuristicResult) -> Status;
    matmul = "cublasLtMatmul":
        fn(sys::cublasLtHandle_t, sys::cublasLtMatmulDesc_t, *const c_void, *const c_void,
           sys::cublasLtMatrixLayout_t, *const c_void, sys::cublasLtMatrixLayout_t, *const c_void,
           *const c_void, sys::cublasLtMatrixLayout_t, *mut c_void, sys::cublasLtMatrixLayout_t,
           *const sys::cublasLtMatmulAlgo_t, *mut c_void, usize, *mut c_void) -> Status;
}

/// `cublasLtMatmulHeuristicResult_t` with its status as a number.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct HeuristicResult {
    pub(super) algorithm: sys::cublasLtMatmulAlgo_t,
    pub(super) workspace: usize,
    pub(super) state: Status,
    pub(super) waves: f32,
    pub(super) reserved: [c_int; 4],
}

impl HeuristicResult {
    /// A place for one.
    pub(super) const EMPTY: Self = Self {
        algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
        workspace: 0,
        state: 0,
        waves: 0.0,
        reserved: [0; 4],
    };
}

/// An opened cuBLASLt.
pub struct Library {
    pub(super) functions: Functions,
    path: PathBuf,
    // Closed after the last function pointer is gone.
    _library: libloading::Library,
}

impl Library {
    /// The library of this process: searched for at the first call that finds one, and kept.
    ///
    /// The search tries `WARPWEAVE_CUBLASLT` alone if it is set, else the executable's folder and `lib`
    /// next to it, the pinned libraries of `cargo xtask setup` (if no other user may write them), the dynamic
    /// loader's own search for CUDA 13 and then 12, and the wheels of active or installed Python
    /// environments.
    pub fn global() -> Result<Arc<Self>, Error> {
        static LIBRARY: OnceLock<Arc<Library>> = OnceLock::new();
        if let Some(library) = LIBRARY.get() {
            return Ok(library.clone());
        }
        let (paths, refused) = search::paths();
        let library = Arc::new(Self::open_first(paths, refused)?);
        Ok(LIBRARY.get_or_init(|| library).clone())
    }

    /// Opens the library at `path`.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        Self::open_first([path.into()], Vec::new())
    }

    /// Opens the first usable one; `tried` says why earlier ones are none.
    fn open_first(
        tilings: impl IntoIterator<Item = PathBuf>,
        mut tried: Vec<String>,
    ) -> Result<Self, Error> {
        let mut incomplete = None;
        for path in tilings {
            // SAFETY: cuBLASLt's initialisers only set up its own state; a library that the user or the
            // loader's configuration names is as trusted as the program itself.
            let library = match unsafe { libloading::Library::new(&path) } {
                Ok(library) => library,
                Err(error) => {
                    let cause = error
                        .source()
                        .map_or_else(|| error.to_string(), ToString::to_string);
                    tried.push(format!("{}: {cause}", path.display()));
                    continue;
                }
            };
            // SAFETY: the library is kept open as long as the functions.
            match unsafe { Functions::resolve(&library, &path) } {
                Ok(functions) => {
                    let opened = Self {
                        functions,
                        path,
                        _library: library,
                    };
                    let (path, version) = (opened.path.display(), opened.version());
                    tracing::debug!(%path, version, "cuBLASLt opened");
                    return Ok(opened);
                }
                Err(error) => incomplete = incomplete.or(Some(error)),
            }
        }
        Err(incomplete.unwrap_or(Error::LibraryNotFound { tried }))
    }

    /// Where it was found, as given to the dynamic loader.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version: 10000·major + 100·minor + patch for CUDA 12 and later.
    pub fn version(&self) -> usize {
        // SAFETY: the function takes nothing and reads a constant.
        unsafe { (self.functions.version)() }
    }

    /// Turns a status into a result.
    pub(super) fn check(&self, call: &'static str, status: Status) -> Result<(), Error> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function accepts any number and answers with a static string or null.
        let name = unsafe {
            let text = (self.functions.status_name)(status);
            if text.is_null() {
                "an unknown status".to_owned()
            } else {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        };
        Err(Error::CublasLt { call, name, status })
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}
