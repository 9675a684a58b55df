//! Every driver call of every rank of every scenario, each failing once.

use std::time::Duration;

use warpweave_fake_driver::{Call, Control, Failure, When};
use warpweave_symm_mem::Error;

use super::scenarios::{Ended, Scenario};

/// Functions that releases something. Their callers are mostly drops, which cannot return an error.
pub const RELEASES: [&str; 16] = [
    "cuCtxDisablePeerAccess",
    "cuDevicePrimaryCtxRelease_v2",
    "cuEventDestroy_v2",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuIpcCloseMemHandle",
    "cuMemAddressFree",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemRelease",
    "cuMemUnmap",
    "cuModuleUnload",
    "cuMulticastUnbind",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
];

/// Short, because a rank whose peer has failed waits this long for its signal. On a busy machine a peer may
/// need longer, and then the rank gives up before it reaches the call that should fail; a stream may too, and
/// then its memory stays allocated.
const TIMEOUTS: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(3)];

pub fn run(driver: &Control) {
    let part = std::env::var("PART").unwrap();
    let scenario = Scenario::named(&part);
    assert!(scenario.is_allowed());
    // Once to learn the calls.
    let whole = scenario.run(driver, None, Duration::from_secs(20));
    assert!(whole.iter().all(|ended| ended.outcome.is_ok()), "{whole:?}");
    let calls = driver.calls();
    assert!(calls.len() > 20, "{} calls", calls.len());
    let mut wrong = Vec::new();
    for call in &calls {
        let releases = RELEASES.contains(&call.function.as_str());
        wrong.extend(inject(driver, scenario, &calls, call, When::Instead));
        if releases {
            wrong.extend(inject(driver, scenario, &calls, call, When::After));
        }
    }
    println!("{part}: {} calls failed, one at a time", calls.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every query finds a stream busy once: no error, only another query.
pub fn busy(driver: &Control) {
    let scenario = Scenario::named(&std::env::var("PART").unwrap());
    let long = Duration::from_secs(20);
    scenario.run(driver, None, long);
    let looks = driver
        .calls()
        .into_iter()
        .filter(|c| c.function == "cuStreamQuery");
    let looks: Vec<_> = looks.collect();
    assert!(!looks.is_empty());
    for Call {
        rank, number: call, ..
    } in looks
    {
        let failure = Failure {
            rank,
            call,
            code: NOT_READY,
            when: When::Instead,
        };
        let ended = scenario.run(driver, Some(failure), long);
        assert!(driver.fired());
        assert!(
            ended.iter().all(|e| e.outcome.is_ok()),
            "look {call} of rank {rank}: {ended:?}"
        );
        assert_eq!(driver.faults(), [""; 0], "look {call} of rank {rank}");
        assert_eq!(driver.live(), [""; 0], "look {call} of rank {rank}");
    }
}

/// From each call on, once each, the rank's context is lost: no panic, no hang, an error on every rank, and
/// no open descriptors. The driver's objects are lost with the context.
pub fn lost(driver: &Control) {
    let scenario = Scenario::named(&std::env::var("PART").unwrap());
    let whole = scenario.run(driver, None, Duration::from_secs(20));
    let calls = driver.calls();
    let mut wrong = Vec::new();
    for call in &calls {
        let Call {
            rank,
            number,
            function,
            ..
        } = call;
        let what = format!(
            "{}: call {number} of rank {rank}, {function}: lost",
            scenario.name
        );
        println!("{what}");
        let when = When::Onward;
        let failure = Failure {
            rank: *rank,
            call: *number,
            code: LAUNCH_FAILED,
            when,
        };
        wrong.extend(fail(driver, scenario, failure, |ended| {
            let mut wrong = Vec::new();
            let of_work = number..=&whole[*rank].calls;
            let mut later = calls
                .iter()
                .filter(|c| c.rank == *rank && of_work.contains(&&c.number));
            if later.any(|later| !may_be_silent(&calls, later)) {
                wrong.extend(unnoticed(&what, ended));
            }
            let live = driver.live();
            if live.iter().any(|what| what == "descriptor") {
                wrong.push(format!("{what}: {live:?}"));
            }
            wrong
        }));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Runs the scenario with a failure, and `judge` on how it ended; returns what is wrong. Whatever is wrong
/// with the short deadline alone is due to that.
fn fail(
    driver: &Control,
    scenario: &Scenario,
    failure: Failure,
    judge: impl Fn(&[Ended]) -> Vec<String>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for timeout in TIMEOUTS {
        driver.wipe();
        let ended = scenario.run(driver, Some(failure), timeout);
        wrong = match driver.fired() {
            true => judge(&ended),
            false => vec![format!("{}: {failure:?} was not met", scenario.name)],
        };
        driver.wipe();
        if wrong.is_empty() {
            break;
        }
    }
    wrong
}

/// The ranks that ended as if nothing had failed.
fn unnoticed(what: &str, ended: &[Ended]) -> impl Iterator<Item = String> {
    let silent = ended.iter().enumerate().filter(|(_, e)| e.outcome.is_ok());
    silent.map(move |(rank, _)| format!("{what}: rank {rank} noticed nothing"))
}

const OUT_OF_MEMORY: u32 = 2;
const LAUNCH_FAILED: u32 = 719;
const NOT_READY: u32 = 600;

/// An error code that the function may return.
pub fn code(function: &str) -> u32 {
    const NOT_SUPPORTED: u32 = 801;
    match function {
        "cuMemCreate" | "cuMemAlloc_v2" | "cuMemAddressReserve" | "cuMulticastCreate" => {
            OUT_OF_MEMORY
        }
        // For a pointer, the default code is a valid answer: no such attribute.
        "cuPointerGetAttribute" => LAUNCH_FAILED,
        _ if function.contains("Attribute") || function.contains("Import") => NOT_SUPPORTED,
        _ => LAUNCH_FAILED,
    }
}

/// Runs the scenario with `call` failing. Returns what is wrong with the outcome.
fn inject(
    driver: &Control,
    scenario: &Scenario,
    calls: &[Call],
    call: &Call,
    when: When,
) -> Vec<String> {
    let Call {
        rank,
        number,
        function,
        ..
    } = call;
    let failure = Failure {
        rank: *rank,
        call: *number,
        code: code(function),
        when,
    };
    let what = format!(
        "{}: call {number} of rank {rank}, {function}, fails {when:?}",
        scenario.name
    );
    // Printed before the run, so that a hang or an abort names the call.
    println!("{what}");
    fail(driver, scenario, failure, |ended| {
        let releases = RELEASES.contains(&function.as_str());
        let mut wrong = Vec::new();
        let own = &ended[*rank];
        if *number <= own.calls && !may_be_silent(calls, call) {
            wrong.extend(unnoticed(&what, ended));
        }
        if let Err(Error::Driver { name, .. }) = &own.outcome
            && !name.starts_with("CUDA_ERROR")
        {
            wrong.push(format!("{what}: {name} is no name of a code"));
        }
        if failure.code == OUT_OF_MEMORY
            && function != "cuMulticastCreate"
            && let Err(error) = &own.outcome
            && !matches!(error, Error::OutOfMemory { bytes, .. } if *bytes > 0)
        {
            wrong.push(format!(
                "{what}: {error} is not the error of too little memory"
            ));
        }
        // What a skipped release should have freed stays allocated.
        let frees = releases && when == When::Instead;
        if !frees && !is_left_by_cudarc(calls, call) {
            let live = driver
                .live()
                .into_iter()
                .map(|live| format!("{what}: leaked: {live}"));
            wrong.extend(live);
            let refused = driver
                .faults()
                .into_iter()
                .filter(|f| !is_consequence(scenario, f));
            wrong.extend(refused.map(|fault| format!("{what}: {fault}")));
        }
        wrong
    })
}

/// Whether a failure of the call may pass without an error.
pub fn may_be_silent(calls: &[Call], call: &Call) -> bool {
    is_of_a_drop(calls, call) || is_a_doubt(calls, call)
}

/// Whether the call checks that registered memory is unchanged: on failure the memory counts as changed,
/// nothing else.
fn is_a_doubt(calls: &[Call], call: &Call) -> bool {
    let own: Vec<_> = calls.iter().filter(|c| c.rank == call.rank).collect();
    let names: Vec<_> = own.iter().map(|c| c.function.as_str()).collect();
    // An identity needs a context switch, some attributes and the range; here it follows another one.
    let last = "cuMemGetAddressRange_v2";
    let at = call.number as usize - 1;
    let Some(end) = (at..names.len()).find(|i| names[*i] == last) else {
        return false;
    };
    let attributes = |from: usize| {
        names[from + 1..end]
            .iter()
            .all(|n| *n == "cuPointerGetAttribute")
    };
    let begins = |i: &usize| names[*i] == "cuCtxSetCurrent" && attributes(*i);
    let first = (1..=at).rev().find(begins);
    first.is_some_and(|first| names[first - 1] == last)
}

/// Whether the call releases something, or prepares that: the last context switch before it, and the stream
/// queries after that. Drops make these calls, and a drop cannot report an error.
fn is_of_a_drop(calls: &[Call], call: &Call) -> bool {
    let later = calls
        .iter()
        .filter(|c| c.rank == call.rank && c.number > call.number);
    let looks = [
        "cuStreamIsCapturing",
        "cuStreamQuery",
        "cuEventQuery",
        "cuCtxGetCurrent",
    ];
    let next = later
        .map(|c| c.function.as_str())
        .find(|f| !looks.contains(f));
    let prepares = looks.contains(&call.function.as_str()) || call.function == "cuCtxSetCurrent";
    RELEASES.contains(&call.function.as_str())
        || prepares && next.is_some_and(|next| RELEASES.contains(&next))
}

/// `CudaContext::new` of cudarc 0.19 retains the context, asks whether there are memory pools, and leaks the
/// context if that fails.
pub fn is_left_by_cudarc(calls: &[Call], call: &Call) -> bool {
    let retained = |c: &Call| c.function == "cuDevicePrimaryCtxRetain" && c.rank == call.rank;
    calls
        .iter()
        .any(|c| retained(c) && c.number + 1 == call.number)
}

/// A broken capture is ended, and the driver reports that it was broken. A failing rank frees its own memory,
/// even if peers have it open.
pub fn is_consequence(scenario: &Scenario, fault: &str) -> bool {
    let gone = ["another process has opened", "nothing is at"];
    fault.contains("cuStreamEndCapture refused")
        || scenario.own_memory && gone.iter().any(|what| fault.contains(what))
}
