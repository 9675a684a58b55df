//! The NCCL layer against a stand-in library, compiled here with the system's C compiler: loading, refusals, codes,
//! coming up within a deadline, and letting go. What real NCCL does on GPUs is tested where there are GPUs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use warpweave_comm::nccl::{Element, Launch, NcclComm, NcclLibrary, NcclOptions, ReduceOp};
use warpweave_comm::{CommError, Communicator, ExchangeError};
use warpweave_symm_mem::ThreadExchange;

/// A compiled stand-in, deleted at the end.
struct Fake {
    path: PathBuf,
}

impl Fake {
    fn new(macros: &[&str]) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = format!(
            "{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("libnccl-fake-{unique}.so"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake_nccl.c");
        let status = Command::new(std::env::var_os("CC").unwrap_or("cc".into()))
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([&path, &source])
            .args(macros.iter().map(|m| format!("-D{m}")))
            .status()
            .expect("a C compiler, as Rust's linker needs one");
        assert!(status.success());
        Self { path }
    }

    fn open(&self) -> Arc<NcclLibrary> {
        NcclLibrary::open(&self.path).expect("the stand-in is complete")
    }

    /// One of the stand-in's own counters.
    fn count(&self, symbol: &str) -> i32 {
        // SAFETY: the stand-in has no constructors.
        let library =
            unsafe { libloading::Library::new(&self.path) }.expect("it is loaded already");
        // SAFETY: the counters take nothing and return an int.
        let counter = unsafe { library.get::<unsafe extern "C" fn() -> i32>(symbol.as_bytes()) };
        // SAFETY: as above.
        unsafe { counter.expect("a counter")() }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn options(deadline: Duration) -> NcclOptions {
    NcclOptions {
        deadline,
        ..NcclOptions::default()
    }
}

fn soon() -> NcclOptions {
    options(Duration::from_millis(100))
}

fn single(library: &Arc<NcclLibrary>, options: NcclOptions) -> Result<NcclComm, CommError> {
    NcclComm::init(library, &ThreadExchange::group(1)[0], options)
}

fn address<T>(buffer: &[T]) -> u64 {
    buffer.as_ptr() as u64
}

fn writable<T>(buffer: &mut [T]) -> u64 {
    buffer.as_mut_ptr() as u64
}

#[test]
fn an_old_version_is_refused_by_its_number() {
    let fake = Fake::new(&["VERSION=21703"]);
    let error = NcclLibrary::open(&fake.path).expect_err("too old");
    assert!(matches!(&error, CommError::NcclUnusable { .. }), "{error}");
    assert!(error.to_string().contains("version 2.17.3"), "{error}");
}

#[test]
fn the_variable_points_at_the_library() {
    // The variable is the process's own: so it is set in a child, which runs this test again.
    const ASKED: &str = "WARPWEAVE_TEST_LOADS";
    if let Ok(expected) = std::env::var(ASKED) {
        match NcclLibrary::load() {
            Ok(library) => assert_eq!(format!("{library:?}"), expected),
            Err(e) => assert!(e.to_string().contains(&expected), "{e}"),
        }
        return;
    }
    let fake = Fake::new(&[]);
    let runs = |path: &Path, expected: &str| {
        let output = Command::new(std::env::current_exe().expect("this binary"))
            .args(["--exact", "the_variable_points_at_the_library"])
            .env("WARPWEAVE_NCCL", path)
            .env(ASKED, expected)
            .output()
            .expect("starting this binary");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
    };
    runs(
        &fake.path,
        &format!("NCCL 2.28.3 at {}", fake.path.display()),
    );
    runs(Path::new("/nowhere/libnccl.so.2"), "/nowhere/libnccl.so.2");
}

#[test]
fn ranks_come_up_and_gather() {
    let fake = Fake::new(&[]);
    let library = fake.open();
    std::thread::scope(|s| {
        for exchange in ThreadExchange::group(3) {
            let library = &library;
            s.spawn(move || {
                let comm = NcclComm::init(library, &exchange, options(Duration::from_secs(5)))
                    .expect("comes up");
                let me = comm.rank();
                let mine = [me as u16 + 1; 4];
                let mut all = [0u16; 12];
                // SAFETY: the stand-in reads 4 and writes 4 of 12 elements of host memory, before it returns.
                unsafe {
                    comm.all_gather(
                        address(&mine),
                        writable(&mut all),
                        4,
                        Element::F16,
                        null_mut(),
                    )
                }
                .expect("launches");
                let expected: Vec<_> = (0..12)
                    .map(|n| if n / 4 == me { me as u16 + 1 } else { 0 })
                    .collect();
                assert_eq!(all[..], expected);

                let counts = [1, 0, 3];
                let mut ragged = [0u32; 4];
                let part = [me as u32 + 7; 3];
                // SAFETY: as above, with 4 elements in all and at most 3 of this rank.
                unsafe {
                    comm.all_gather_uneven(
                        address(&part),
                        writable(&mut ragged),
                        &counts,
                        Element::I32,
                        null_mut(),
                    )
                }
                .expect("launches");
                let expected = match me {
                    0 => [7, 0, 0, 0],
                    1 => [0; 4],
                    _ => [0, 9, 9, 9],
                };
                assert_eq!(ragged, expected);
                // SAFETY: the call is refused before the addresses are looked at.
                let error =
                    unsafe { comm.all_gather_uneven(0, 0, &[1, 2], Element::U8, null_mut()) };
                assert!(matches!(error, Err(CommError::InvalidArgument { .. })));
                comm.check().expect("healthy");
                comm.close().expect("closes");
            });
        }
    });
    assert_eq!(
        (fake.count("fake_finalizes"), fake.count("fake_destroys")),
        (3, 3)
    );
    assert_eq!(
        (fake.count("fake_aborts"), fake.count("fake_config_errors")),
        (0, 0)
    );
    assert_eq!(
        fake.count("fake_calls"),
        3 + 3 * 2,
        "a rank with no rows is not broadcast"
    );
}

#[test]
fn every_call_reaches_the_library() {
    let fake = Fake::new(&[]);
    let comm = single(&fake.open(), options(Duration::from_secs(5))).expect("comes up");
    let (from, mut to) = ([1.5f32, 2.5], [0f32; 2]);
    let (a, b, stream) = (address(&from), writable(&mut to), null_mut());
    // SAFETY: the stand-in reads and writes two elements of host memory, before each call returns.
    unsafe {
        comm.all_reduce(a, b, 2, Element::F32, ReduceOp::Sum, stream)
            .expect("launches");
        comm.reduce_scatter(a, b, 2, Element::F32, ReduceOp::Max, stream)
            .expect("launches");
        comm.broadcast(a, b, 2, Element::F32, 0, stream)
            .expect("launches");
        comm.barrier(b, stream).expect("launches");
        let crossed = comm.group(|comm| {
            comm.send(a, 2, Element::F32, 0, stream)?;
            comm.recv(b, 2, Element::F32, 0, stream)
        });
        crossed.expect("launches");
        assert!(matches!(
            comm.send(a, 2, Element::F32, 1, stream),
            Err(CommError::InvalidArgument { .. })
        ));
        assert!(matches!(
            comm.broadcast(a, b, 2, Element::F32, 9, stream),
            Err(CommError::InvalidArgument { .. })
        ));
    }
    assert_eq!(to, from);
    assert_eq!(fake.count("fake_calls"), 6);
    let failed = comm.group(|_| {
        Err::<(), _>(CommError::Protocol {
            what: "on purpose".into(),
        })
    });
    assert!(
        failed
            .expect_err("the closure failed")
            .to_string()
            .contains("on purpose")
    );
    comm.group(|_| Ok(())).expect("the failed group was ended");
}

#[test]
fn a_peer_that_never_comes_ends_at_the_deadline_and_is_aborted() {
    let fake = Fake::new(&["POLLS=-1"]);
    let start = Instant::now();
    let error = single(&fake.open(), soon()).err().expect("never comes up");
    assert!(
        matches!(&error, CommError::Timeout { rank: 0, what, .. } if what.contains("ncclCommInitRankConfig")),
        "{error}"
    );
    assert!(start.elapsed() < Duration::from_secs(2));
    assert_eq!(fake.count("fake_aborts"), 1);
}

#[test]
fn a_failure_that_the_store_hears_of_ends_the_initialisation_early() {
    let fake = Fake::new(&["POLLS=-1"]);
    let library = fake.open();
    let mut comms = Communicator::threads(2).expect("a job");
    let b = comms.pop().expect("two ranks");
    let a = comms.pop().expect("two ranks");
    let start = Instant::now();
    std::thread::scope(|s| {
        let waiting = s.spawn(|| {
            a.nccl_from(Ok(library.clone()), options(Duration::from_secs(30)))
                .err()
        });
        b.nccl_from(Ok(library.clone()), soon())
            .err()
            .expect("times out");
        b.abort("gave up on NCCL");
        let error = waiting.join().expect("no panic").expect("ends early");
        assert!(
            matches!(&error, CommError::PeerFailed { peer: 1, cause, .. } if cause == "gave up on NCCL"),
            "{error}"
        );
    });
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(fake.count("fake_aborts"), 2);
}

#[test]
fn a_rank_without_the_library_is_an_error_on_all() {
    let fake = Fake::new(&[]);
    let library = fake.open();
    std::thread::scope(|s| {
        for comm in Communicator::threads(2).expect("a job") {
            let library = library.clone();
            s.spawn(move || {
                let mine = match comm.rank() {
                    0 => Ok(library),
                    _ => NcclLibrary::open(Path::new("/nowhere/libnccl.so.2")),
                };
                match (
                    comm.rank(),
                    comm.nccl_from(mine, soon()).err().expect("rank 1 has none"),
                ) {
                    (0, CommError::PeerFailed { peer: 1, cause, .. }) => {
                        assert!(cause.contains("/nowhere"))
                    }
                    (1, CommError::NcclMissing { .. }) => {}
                    (rank, other) => panic!("rank {rank}: {other}"),
                }
            });
        }
    });
}

#[test]
fn ranks_with_different_versions_disagree() {
    let (new, old) = (Fake::new(&[]), Fake::new(&["VERSION=22105"]));
    let libraries = [new.open(), old.open()];
    std::thread::scope(|s| {
        for (exchange, library) in ThreadExchange::group(2).into_iter().zip(&libraries) {
            s.spawn(move || {
                let error = NcclComm::init(library, &exchange, soon())
                    .err()
                    .expect("versions differ");
                assert!(matches!(&error, CommError::Disagreement { .. }), "{error}");
                assert!(
                    error.to_string().contains("2.28.3") && error.to_string().contains("2.21.5")
                );
            });
        }
    });
}

#[test]
fn codes_come_back_with_their_names_and_the_librarys_words() {
    let fake = Fake::new(&["INIT_RESULT=4"]);
    let error = single(&fake.open(), soon())
        .err()
        .expect("refused")
        .to_string();
    assert!(
        error.contains("rank 0: ncclCommInitRankConfig failed with ncclInvalidArgument (4)"),
        "{error}"
    );
    assert!(
        error.contains("invalid argument: the fake says no"),
        "{error}"
    );

    let fake = Fake::new(&["REDUCE_RESULT=99"]);
    let comm = single(&fake.open(), options(Duration::from_secs(5))).expect("comes up");
    // SAFETY: the stand-in fails before it looks at the addresses.
    let error = unsafe { comm.barrier(0, null_mut()) }.expect_err("a code from the future");
    assert!(
        matches!(
            error,
            CommError::Nccl {
                code: 99,
                call: "ncclAllReduce",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn dropping_aborts_and_later_calls_fail() {
    let fake = Fake::new(&[]);
    let library = fake.open();
    drop(single(&library, options(Duration::from_secs(5))).expect("comes up"));
    assert_eq!(fake.count("fake_aborts"), 1);
    let comm = single(&library, options(Duration::from_secs(5))).expect("comes up");
    assert!(comm.abort());
    assert!(comm.abort(), "the second time there is nothing to do");
    // SAFETY: the call is refused before the address is looked at.
    let error = unsafe { comm.barrier(0, null_mut()) }.expect_err("aborted");
    assert!(error.to_string().contains("aborted"), "{error}");
    drop(comm);
    assert_eq!(fake.count("fake_aborts"), 2);
}

#[test]
fn an_abort_that_hangs_does_not_hold_the_drop_up_for_ever() {
    let fake = Fake::new(&["ABORT_SECONDS=30"]);
    let comm = single(&fake.open(), options(Duration::from_secs(5))).expect("comes up");
    let start = Instant::now();
    assert!(!comm.abort());
    drop(comm);
    assert!(
        start.elapsed() < Duration::from_secs(8),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn blocking_launches_come_from_a_split() {
    let fake = Fake::new(&[]);
    let blocking = NcclOptions {
        deadline: Duration::from_secs(5),
        launch: Launch::Blocking,
    };
    let comm = single(&fake.open(), blocking).expect("comes up");
    let mut word = [5i32];
    // SAFETY: the stand-in reads and writes one element of host memory.
    unsafe { comm.barrier(writable(&mut word), null_mut()) }.expect("launches");
    assert_eq!(fake.count("fake_splits"), 1);
    comm.close().expect("closes");
    assert_eq!(
        (fake.count("fake_destroys"), fake.count("fake_aborts")),
        (1, 1),
        "the parent is let go too"
    );
}

#[test]
fn a_peer_that_is_gone_before_the_id_is_named() {
    let fake = Fake::new(&[]);
    let mut group = ThreadExchange::group(2);
    drop(group.pop());
    let error = NcclComm::init(&fake.open(), &group[0], soon())
        .err()
        .expect("alone");
    assert!(
        matches!(error, CommError::PeerLost { peer: 1, .. }),
        "{error}"
    );
    assert!(!matches!(
        error,
        CommError::Exchange(ExchangeError::PeerLost { .. })
    ));
}
