//! The stand-in library, compiled with the system's C compiler.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use warpweave_comm::CommError;
use warpweave_comm::nccl::{NcclComm, NcclLibrary, NcclOptions};
use warpweave_symm_mem::ThreadExchange;

/// A compiled stand-in, deleted at the end.
pub struct Fake {
    pub path: PathBuf,
}

impl Fake {
    pub fn new(macros: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static COMPILED: Mutex<BTreeMap<String, Vec<u8>>> = Mutex::new(BTreeMap::new());
        let unique = format!(
            "{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("libnccl-fake-{unique}.so"));
        let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
        // A file for each, since the loader would give two of one path the same state.
        match compiled.get(&macros.join(" ")) {
            Some(bytes) => std::fs::write(&path, bytes).expect("a place for the stand-in"),
            None => {
                compile(&path, macros);
                let bytes = std::fs::read(&path).expect("it was compiled");
                compiled.insert(macros.join(" "), bytes);
            }
        }
        Self { path }
    }

    pub fn open(&self) -> Arc<NcclLibrary> {
        NcclLibrary::open(&self.path).expect("the stand-in is complete")
    }

    /// One of the stand-in's own counters.
    pub fn count(&self, counter: &str) -> i32 {
        // SAFETY: the stand-in has no constructors.
        let library =
            unsafe { libloading::Library::new(&self.path) }.expect("it is loaded already");
        let symbol = format!("fake_{counter}");
        // SAFETY: the counters take nothing and return an int.
        let counter = unsafe { library.get::<unsafe extern "C" fn() -> i32>(symbol.as_bytes()) };
        // SAFETY: as above.
        unsafe { counter.expect("a counter")() }
    }

    /// Checks that nothing was done that NCCL forbids: calls on what has ended, frees of registered memory,
    /// aborts during calls.
    pub fn was_used_well(&self) {
        assert_eq!((self.count("misuses"), self.count("config_errors")), (0, 0));
    }
}

fn compile(path: &Path, macros: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nccl/fake_nccl.c");
    let status = Command::new(std::env::var_os("CC").unwrap_or("cc".into()))
        .args(["-shared", "-fPIC", "-O1", "-pthread", "-o"])
        .args([path, &source])
        .args(macros.iter().map(|m| format!("-D{m}")))
        .status()
        .expect("a C compiler, as Rust's linker needs one");
    assert!(status.success());
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

pub fn within(deadline: Duration) -> NcclOptions {
    NcclOptions {
        deadline,
        ..NcclOptions::default()
    }
}

pub fn soon() -> NcclOptions {
    within(Duration::from_millis(100))
}

pub fn patient() -> NcclOptions {
    within(Duration::from_secs(10))
}

pub fn single(library: &Arc<NcclLibrary>, options: NcclOptions) -> Result<NcclComm, CommError> {
    NcclComm::init(library, &ThreadExchange::group(1)[0], options)
}

/// Runs `rank` on a thread for each of `world` ranks.
pub fn ranks(
    library: &Arc<NcclLibrary>,
    world: usize,
    options: &NcclOptions,
    rank: impl Fn(NcclComm, &ThreadExchange) + Sync,
) {
    std::thread::scope(|s| {
        for exchange in ThreadExchange::group(world) {
            let (rank, options) = (&rank, options.clone());
            s.spawn(move || {
                let comm = NcclComm::init(library, &exchange, options).expect("comes up");
                rank(comm, &exchange);
            });
        }
    });
}

pub fn address<T>(buffer: &[T]) -> u64 {
    buffer.as_ptr() as u64
}

pub fn writable<T>(buffer: &mut [T]) -> u64 {
    buffer.as_mut_ptr() as u64
}
