//! Ranks that die, stall, disagree or miscalculate: the job ends in bounded time, and every surviving rank
//! names the culprit. The same on both backends.

use crate::job::{self, Patience, has, names_one_of};

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// The exit status of a rank that another one brought down.
const BROUGHT_DOWN: Option<i32> = Some(76);

/// How long the others may take once a rank is dead, on a machine with more ranks than cores.
const AT_ONCE: Duration = Duration::from_secs(3);

/// A backend, and what suits it.
struct Device {
    name: &'static str,
    world: usize,
    patience: Patience,
    /// For a whole run: every wait, and the time that an idle machine does not need.
    bound: Duration,
    /// Implementations that wait on the device in different ways, each with what it needs of the device
    /// alone.
    waiting: [&'static str; 2],
    /// Iterations of a job that goes on until a fault ends it.
    iterations: u32,
    /// What a process has mapped once it works on its device, and how long it may take from there to have
    /// joined the job.
    joins: (&'static str, Duration),
    /// How long NCCL takes after that to connect the ranks. A rank that is stopped meanwhile costs the others
    /// the deadline of NCCL's calls, a multiple of that of waits.
    connects: Duration,
}

impl Device {
    fn host() -> Self {
        Self {
            name: "host",
            world: 4,
            patience: Duration::from_secs(2).into(),
            bound: Duration::from_secs(60),
            waiting: ["baselineCudaAllgatherMatmul", "multimemGatherThenCutlass"],
            iterations: 5000,
            // Memory that peers map.
            joins: ("/memfd:", Duration::ZERO),
            connects: Duration::ZERO,
        }
    }

    /// One rank for each GPU, four at most.
    fn cuda() -> Self {
        Self {
            name: "cuda",
            world: job::gpus(),
            // The ranks take differently long to bring their devices up.
            patience: Patience {
                device: Duration::from_secs(2),
                exchange: Duration::from_secs(10),
            },
            bound: Duration::from_secs(90),
            waiting: [
                "baselineCudaAllgatherMatmul",
                "threadloadGatherScalarCompute",
            ],
            iterations: 50_000,
            joins: ("libcublasLt", Duration::from_secs(3)),
            connects: Duration::from_secs(5),
        }
    }

    fn args(&self, more: &str) -> Vec<String> {
        let line = format!("bench --device {} {more}", self.name);
        line.split(' ').map(str::to_owned).collect()
    }

    fn with_fault(&self, fault: &str, implementation: &str) -> job::Outcome {
        let line = format!("--shape 32x16x24 --inject {fault} --impl {implementation}");
        let args = self.args(&line);
        self.run(&vec![args; self.world])
    }

    fn run(&self, ranks: &[Vec<String>]) -> job::Outcome {
        let outcome = job::run(ranks, self.patience, self.bound);
        println!("{} ranks ended after {:?}", ranks.len(), outcome.took);
        assert!(outcome.took < self.bound, "{:?}", outcome.took);
        outcome
    }
}

fn a_rank_that_dies_is_named_by_all_others(device: &Device) {
    for (culprit, implementation) in [
        (device.world / 2, "baselineNcclAllgatherMatmul"),
        (0, "threadloadGatherScalarCompute"),
    ] {
        let outcome = device.with_fault(&format!("kill:{culprit}"), implementation);
        // It is killed by a signal.
        outcome.ended(culprit, None);
        for rank in (0..device.world).filter(|&rank| rank != culprit) {
            let error = outcome.ended(rank, BROUGHT_DOWN);
            let after = outcome.ends[rank].saturating_sub(outcome.ends[culprit]);
            println!("{implementation}: rank {rank} ended {after:?} after rank {culprit}");
            assert!(after < AT_ONCE, "rank {rank}, {after:?}: {error}");
            let lost = format!("lost rank {culprit}");
            has(&error, &[&lost, "the process ended", implementation]);
        }
    }
}

fn a_rank_that_stalls_is_named_by_all_others(device: &Device) {
    for implementation in device.waiting {
        let outcome = device.with_fault("stall:1", implementation);
        for rank in (0..device.world).filter(|&rank| rank != 1) {
            let error = outcome.ended(rank, BROUGHT_DOWN);
            has(&error, &["for rank 1", implementation]);
        }
        // Whoever comes to its deadline first ends the others' waits.
        let all = (0..device.world).map(|rank| outcome.errors(rank));
        assert!(all.into_iter().any(|error| {
            error.contains("for rank 1 to signal") && error.contains("rank 1 is dead, stalled")
        }));
        has(&outcome.errors(1), &["rank 1 stalled, as `--inject` asked"]);
    }
}

/// Killed by another process at any moment, in the middle of whatever the ranks do then.
fn whoever_is_killed_at_any_moment_is_named_by_all_others(device: &Device) {
    for turn in 0..4 {
        let culprit = turn % device.world;
        let moment = RandomState::new().build_hasher().finish() % 1500;
        let moment = Duration::from_millis(moment);
        let mut killed = Duration::ZERO;
        let outcome = long_job(device, |ranks, start| {
            await_join(device, &ranks[culprit], start);
            std::thread::sleep(moment);
            ranks[culprit].kill().unwrap();
            killed = start.elapsed();
        });
        for rank in (0..device.world).filter(|&rank| rank != culprit) {
            let error = outcome.errors(rank);
            let after = outcome.ends[rank].saturating_sub(killed);
            let story = format!("turn {turn}, {moment:?}, rank {rank} after {after:?}: {error}");
            println!("{story}");
            assert_eq!(outcome.ranks[rank].status.code(), BROUGHT_DOWN, "{story}");
            assert!(after < AT_ONCE, "{story}");
            let names = [
                format!("lost rank {culprit}"),
                format!("rank {culprit} is lost"),
            ];
            assert!(names.iter().any(|name| error.contains(name)), "{story}");
        }
    }
}

/// A rank that the system holds up costs the others one deadline, whichever steps they take afterwards.
fn a_stopped_rank_costs_the_others_one_deadline(device: &Device) {
    let culprit = device.world - 1;
    let outcome = long_job(device, |ranks, start| {
        await_join(device, &ranks[culprit], start);
        std::thread::sleep(device.connects + Duration::from_millis(500));
        let pid = Pid::from_raw(ranks[culprit].id() as i32).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        let stopped = start.elapsed();
        let end = |ranks: &mut [Child]| {
            let ended = |child: &mut Child| child.try_wait().unwrap().is_some();
            ranks[..culprit].iter_mut().all(ended)
        };
        while !end(ranks) && start.elapsed() < device.bound {
            std::thread::sleep(Duration::from_millis(10));
        }
        let after = start.elapsed() - stopped;
        println!("the others ended {after:?} after rank {culprit} was stopped");
        // If it was stopped on its way to a barrier, the others wait for as long as that does.
        let Patience { device, exchange } = device.patience;
        assert!(after < device + exchange, "{after:?}");
        kill_process(pid, Signal::CONT).unwrap();
    });
    for rank in 0..device.world {
        let error = outcome.ended(rank, BROUGHT_DOWN);
        let is_named = names_one_of(&error, culprit..culprit + 1);
        assert!(is_named || rank == culprit, "rank {rank}: {error}");
    }
}

/// A job that goes on for longer than `meanwhile`.
fn long_job(device: &Device, meanwhile: impl FnOnce(&mut [Child], Instant)) -> job::Outcome {
    let iterations = device.iterations;
    let args = device.args(&format!("--shape 64x32x48 --iterations {iterations}"));
    let start = Instant::now();
    let ranks = vec![args; device.world];
    job::run_with(&ranks, &[], device.patience, device.bound, |ranks| {
        meanwhile(ranks, start);
    })
}

/// Until all ranks have joined the job.
fn await_join(device: &Device, rank: &Child, start: Instant) {
    let (mapped, joins) = device.joins;
    let maps = format!("/proc/{}/maps", rank.id());
    while !std::fs::read_to_string(&maps).is_ok_and(|maps| maps.contains(mapped)) {
        std::thread::sleep(Duration::from_millis(1));
        assert!(start.elapsed() < device.bound, "{mapped} is not mapped");
    }
    std::thread::sleep(joins);
}

fn ranks_with_different_shapes_tell_both(device: &Device) {
    let last = device.world - 1;
    let shape = |rank| if rank == last { "32x16x40" } else { "32x16x24" };
    let ranks: Vec<_> = (0..device.world)
        .map(|rank| device.args(&format!("--shape {}", shape(rank))))
        .collect();
    let outcome = device.run(&ranks);
    for rank in 0..device.world {
        let error = outcome.ended(rank, Some(1));
        let other = if rank == last { 0 } else { last };
        let wanted = format!(
            "the list of shapes differs between ranks: {} bf16 on rank {rank}, {} bf16 on rank {other}",
            shape(rank),
            shape(other)
        );
        assert!(error.contains(&wanted), "rank {rank}: {error}");
    }
}

fn one_wrong_element_on_one_rank_fails_the_run(device: &Device) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    let line = "--shape 12x8x6 --iterations 2 --impl naiveRemoteRead --inject corrupt:1";
    let args = device.args(&format!("{line} --json {}", file.display()));
    let outcome = device.run(&[args.clone(), args]);
    for rank in [0, 1] {
        outcome.ended(rank, Some(1));
    }
    let report = job::read_json(file);
    let row = &report["results"][0]["rows"][0];
    assert_eq!(row["implementation"], "naiveRemoteRead");
    assert_eq!(row["status"], "wrong", "{row}");
    // One element of rank 1 in each of twenty calls.
    assert_eq!(row["verification"]["wrong"], 20, "{row}");
    assert_eq!(row["verification"]["elements"], 20 * 2 * 12 * 8, "{row}");
    let reason = row["reason"].as_str().unwrap();
    has(reason, &["rank 1, call 0", "C[0, 0]"]);
    let parts = ["WRONG: 20 of 3840", "naiveRemoteRead was WRONG", reason];
    has(&outcome.report(), &parts);
}

/// Tests of a backend.
macro_rules! on {
    ($backend:ident, $($(#[$needs:meta])* $test:ident,)+) => {
        mod $backend {
            $(
                #[test]
                $(#[$needs])*
                fn $test() {
                    super::$test(&super::Device::$backend());
                }
            )+
        }
    };
}

on!(
    host,
    a_rank_that_dies_is_named_by_all_others,
    a_rank_that_stalls_is_named_by_all_others,
    whoever_is_killed_at_any_moment_is_named_by_all_others,
    a_stopped_rank_costs_the_others_one_deadline,
    ranks_with_different_shapes_tell_both,
    one_wrong_element_on_one_rank_fails_the_run,
);

on!(
    cuda,
    #[ignore = "needs two GPUs and NCCL"]
    a_rank_that_dies_is_named_by_all_others,
    #[ignore = "needs two GPUs"]
    a_rank_that_stalls_is_named_by_all_others,
    #[ignore = "needs two GPUs and NCCL"]
    whoever_is_killed_at_any_moment_is_named_by_all_others,
    #[ignore = "needs two GPUs and NCCL"]
    a_stopped_rank_costs_the_others_one_deadline,
    #[ignore = "needs two GPUs"]
    ranks_with_different_shapes_tell_both,
    #[ignore = "needs two GPUs"]
    one_wrong_element_on_one_rank_fails_the_run,
);
