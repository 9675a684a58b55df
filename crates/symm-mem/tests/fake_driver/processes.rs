//! Scenarios with processes as ranks: what crosses between drivers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{env, fs};

use warpweave_fake_driver::{ASYNCHRONOUS, Call, Control, Failure, When};
use warpweave_symm_mem::Exchange;

use super::child::{Child, run_all};
use super::exchange::ProcessExchange;
use super::injection::{RELEASES, code, is_consequence, is_left_by_cudarc, may_be_silent};
use super::scenarios::{Ended, Rank, Scenario};

const WAIT: Duration = Duration::from_secs(20);

/// Runs the ranks of a scenario in processes, first with nothing failing, then with every call failing in
/// turn.
pub fn start(name: &str) {
    run_ranks(name, |child| child);
}

/// Runs them with asynchronous streams. The calls then differ from run to run, so nothing fails.
pub fn start_asynchronous(name: &str) {
    run_ranks(name, |child| child.set(ASYNCHRONOUS, "1"));
}

fn run_ranks(name: &str, prepare: fn(Child) -> Child) {
    let scenario = Scenario::named(name);
    let place = folder();
    let children = (0..scenario.world).map(|rank| {
        let child = Child::new("process")
            .set("PART", name)
            .set("RANK", &rank.to_string())
            .set("PLACE", place.to_str().unwrap())
            .set(warpweave_fake_driver::DEVICES, &scenario.world.to_string())
            .set(warpweave_fake_driver::GRANULARITY, "65536")
            .set(warpweave_fake_driver::WITH, scenario.needs);
        let child = prepare(child);
        if scenario.multicast {
            child.multicast()
        } else {
            child
        }
    });
    run_all(children.collect());
    fs::remove_dir_all(place).unwrap();
}

/// A folder for the sockets of one group.
fn folder() -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // Short, for the path of a socket.
    let place = env::temp_dir().join(format!("warpweave-{}-{number}", std::process::id()));
    fs::create_dir_all(&place).unwrap();
    place
}

/// One rank's process.
pub struct Process {
    driver: Control,
    scenario: &'static Scenario,
    rank: usize,
    place: PathBuf,
    barriers: usize,
}

impl Process {
    /// The exchange for what comes next.
    fn connect(&mut self) -> ProcessExchange {
        self.barriers += 1;
        let place = self.place.join(self.barriers.to_string());
        ProcessExchange::connect(&place, self.rank, self.scenario.world).expect("the other ranks")
    }

    fn run(&mut self, failure: Option<Failure>, timeout: Duration) -> Ended {
        let exchange: Arc<dyn Exchange> = Arc::new(self.connect());
        self.driver.restart(failure);
        let (rank, world) = (self.rank, self.scenario.world);
        let rank = Rank {
            rank,
            world,
            exchange,
            timeout,
        };
        let ended = catch_unwind(AssertUnwindSafe(|| (self.scenario.body)(&rank)));
        let calls = self.driver.calls().len() as u64;
        Ended {
            outcome: ended.expect("a rank panicked").map(drop),
            calls,
        }
    }

    /// Every rank's calls, by all ranks.
    fn share(&mut self, calls: &[Call]) -> Vec<Vec<Call>> {
        let names: Vec<_> = calls.iter().map(|c| c.function.as_str()).collect();
        let all = self
            .connect()
            .all_gather("calls", names.join(" ").as_bytes())
            .unwrap();
        let parse = |(rank, text): (usize, Vec<u8>)| -> Vec<Call> {
            let text = String::from_utf8(text).unwrap();
            let call = |(number, name): (u64, &str)| Call {
                rank,
                number,
                function: name.into(),
                code: 0,
            };
            (1..).zip(text.split(' ')).map(call).collect()
        };
        all.into_iter().enumerate().map(parse).collect()
    }

    fn inject(&mut self, calls: &[Call], call: &Call, when: When) -> Vec<String> {
        let what = format!(
            "{}, process {}: call {} of rank {}, {}, fails {when:?}",
            self.scenario.name, self.rank, call.number, call.rank, call.function
        );
        println!("{what}");
        let failure = Failure {
            rank: call.rank,
            call: call.number,
            code: code(&call.function),
            when,
        };
        let mine = call.rank == self.rank;
        self.driver.wipe();
        let ended = self.run(Some(failure).filter(|_| mine), WAIT);
        let mut wrong = Vec::new();
        if mine && !self.driver.fired() {
            wrong.push(format!("{what}: it was not made"));
        }
        let words = if mine { ended.calls } else { 0 }.to_ne_bytes();
        let worked = self.connect().all_gather("worked", &words).unwrap();
        let worked = worked
            .into_iter()
            .map(|w| u64::from_ne_bytes(w.try_into().unwrap()))
            .max();
        if Some(call.number) <= worked && !may_be_silent(calls, call) && ended.outcome.is_ok() {
            wrong.push(format!("{what}: noticed nothing"));
        }
        let frees = RELEASES.contains(&call.function.as_str()) && when == When::Instead;
        if !(mine && (frees || is_left_by_cudarc(calls, call))) {
            wrong.extend(
                self.driver
                    .live()
                    .into_iter()
                    .map(|l| format!("{what}: leaked: {l}")),
            );
            // A rank that fails frees its own memory, whoever has opened it.
            let expected = |f: &String| is_consequence(self.scenario, f);
            let faults = self.driver.faults().into_iter().filter(|f| !expected(f));
            wrong.extend(faults.map(|f| format!("{what}: {f}")));
        }
        wrong
    }
}

/// What a rank's process does.
pub fn run(driver: &Control) {
    let (part, rank) = (env::var("PART").unwrap(), env::var("RANK").unwrap());
    let scenario = Scenario::named(&part);
    let mut process = Process {
        driver: *driver,
        scenario,
        rank: rank.parse().unwrap(),
        place: env::var_os("PLACE").unwrap().into(),
        barriers: 0,
    };
    driver.rank(process.rank);
    let sound = process.run(None, WAIT);
    sound.outcome.unwrap();
    assert_eq!(driver.faults(), [""; 0]);
    assert_eq!(driver.live(), [""; 0]);
    if env::var_os(ASYNCHRONOUS).is_some() {
        return;
    }
    let own = driver.calls();
    let mut wrong = Vec::new();
    for calls in process.share(&own) {
        for call in &calls {
            wrong.extend(process.inject(&calls, call, When::Instead));
            if RELEASES.contains(&call.function.as_str()) {
                wrong.extend(process.inject(&calls, call, When::After));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
