//! What each version of NCCL has, and the error for what it lacks.

use std::path::Path;
use std::process::Command;
use std::ptr::null_mut;

use warpweave_comm::CommError;
use warpweave_comm::nccl::{
    CtaPolicy, Element, Launch, NcclComm, NcclLibrary, NcclMemory, NcclOptions, WindowKind,
};
use warpweave_symm_mem::ThreadExchange;

use crate::fake::{Fake, patient, single, soon};

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
            .args(["--exact", "versions::the_variable_points_at_the_library"])
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
fn ranks_with_different_versions_disagree() {
    let (new, old) = (Fake::new(&[]), Fake::new(&["VERSION=22105"]));
    let libraries = [new.open(), old.open()];
    std::thread::scope(|s| {
        for (exchange, library) in ThreadExchange::group(2).into_iter().zip(&libraries) {
            s.spawn(move || {
                let error =
                    NcclComm::init(library, &exchange, soon()).expect_err("versions differ");
                assert!(matches!(&error, CommError::Disagreement { .. }), "{error}");
                assert!(
                    error.to_string().contains("2.28.3") && error.to_string().contains("2.21.5")
                );
            });
        }
    });
}

#[test]
fn a_new_version_that_lacks_a_function_is_unusable() {
    let fake = Fake::new(&["LACKS_GATHER"]);
    let error = NcclLibrary::open(&fake.path).expect_err("incomplete");
    assert!(matches!(&error, CommError::NcclUnusable { .. }), "{error}");
    let error = error.to_string();
    assert!(
        error.contains("2.28.3") && error.contains("ncclGather"),
        "{error}"
    );
}

/// The option that was asked for, and the two versions.
fn too_old<T>(result: Result<T, CommError>) -> (String, String, String) {
    match result.err().expect("too old") {
        CommError::NcclTooOld {
            what,
            found,
            needed,
        } => (what.into(), found.to_string(), needed.to_string()),
        other => panic!("{other}"),
    }
}

fn answer(what: &str, found: &str, needed: &str) -> (String, String, String) {
    (what.into(), found.into(), needed.into())
}

#[test]
fn a_function_of_a_later_version_is_refused_with_both() {
    let exchange = &ThreadExchange::group(1)[0];
    let old = Fake::new(&["VERSION=21805"]);
    let comm = single(&old.open(), patient()).expect("comes up");
    assert_eq!(
        too_old(NcclMemory::new(&comm, 64)),
        answer("ncclMemFree", "2.18.5", "2.19.0")
    );
    // SAFETY: refused before the address is looked at, here and below.
    let registered = unsafe { comm.register_at(4096, 64) };
    assert_eq!(
        too_old(registered),
        answer("ncclCommRegister", "2.18.5", "2.19.0")
    );
    // SAFETY: as above.
    let gathered = unsafe { comm.all_gather(0, 0, 1, Element::F8E4M3, null_mut()) };
    assert_eq!(
        too_old(gathered),
        answer("8-bit floats", "2.18.5", "2.24.0")
    );
    comm.close().expect("closes");

    let newer = Fake::new(&["VERSION=22603"]);
    let comm = single(&newer.open(), patient()).expect("comes up");
    let memory = NcclMemory::new(&comm, 4096).expect("allocates");
    let window = comm.window(exchange, &memory, WindowKind::Symmetric);
    assert_eq!(
        too_old(window),
        answer("ncclCommWindowRegister", "2.26.3", "2.27.0")
    );
    drop(comm.register(&memory).expect("registers"));
    comm.close().expect("closes");
    drop(memory);
    for fake in [old, newer] {
        assert_eq!((fake.count("calls"), fake.count("allocations")), (0, 0));
        fake.was_used_well();
    }
}

#[test]
fn options_reach_the_library_and_what_it_lacks_is_refused_on_all_ranks() {
    let asked = |cta_policy| NcclOptions {
        cta_policy,
        min_ctas: Some(2),
        max_ctas: Some(8),
        name: Some("named".into()),
        traffic_class: Some(3),
        ..patient()
    };
    for launch in [Launch::NonBlocking, Launch::Blocking] {
        let fake = Fake::new(&[]);
        let options = NcclOptions {
            launch,
            ..asked(CtaPolicy::ZeroCta)
        };
        let comm = single(&fake.open(), options).expect("comes up");
        let counts = ["policy", "min_ctas", "max_ctas", "traffic_class"];
        assert_eq!(counts.map(|name| fake.count(name)), [2, 2, 8, 3]);
        drop(comm);
        fake.was_used_well();
    }

    // One rank asks for more than the others: none is left waiting.
    let fake = Fake::new(&["VERSION=22703"]);
    let library = &fake.open();
    std::thread::scope(|s| {
        for exchange in ThreadExchange::group(2) {
            s.spawn(move || {
                let policy = [CtaPolicy::Efficiency, CtaPolicy::ZeroCta][exchange_rank(&exchange)];
                let error = NcclComm::init(library, &exchange, asked(policy)).expect_err("refused");
                match error {
                    CommError::NcclTooOld { what, .. } => assert_eq!(what, "the zero-CTA policy"),
                    CommError::PeerFailed { peer: 1, cause, .. } => {
                        assert!(
                            cause.contains("2.28.0") && cause.contains("2.27.3"),
                            "{cause}"
                        )
                    }
                    other => panic!("{other}"),
                }
            });
        }
    });
    assert_eq!((fake.count("aborts"), fake.count("destroys")), (0, 0));
}

fn exchange_rank(exchange: &ThreadExchange) -> usize {
    use warpweave_symm_mem::Exchange;
    exchange.rank()
}
