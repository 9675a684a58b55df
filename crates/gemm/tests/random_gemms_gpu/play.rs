//! Rounds of problems: within a round nothing waits on the host, after it every element is compared.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use warpweave_gemm::matmul_reduce::ReduceOutput;
use warpweave_gemm::{
    AllGatherMatmul, AllGatherOperands, Error, GatheredScales, GemmProblem, MatmulReduce, Protocol,
    ReduceOperands,
};
use warpweave_symm_mem::host::decode;
use warpweave_symm_mem::{DType, DevicePtr, Memory};

use crate::problem::{Operation, Problem};
use crate::random::{Draw, Random, mixed};
use crate::rank::{
    DONE, EAGER, Kernels, Placed, Played, READY, Rank, a_bytes, b_bytes, c_bytes, guard_of_staging,
    on_rank, staging_bytes,
};
use crate::values::POISON;

/// Problems of a round.
pub const ROUND: usize = 16;

enum Prepared<B: Kernels> {
    Gathers(B::PreparedAllGather, Box<AllGatherOperands>),
    Reduction(B::PreparedReduce, Box<ReduceOperands>),
}

/// What a rank runs of a problem.
struct Job<B: Kernels> {
    placed: Placed,
    /// By run.
    prepared: Vec<Prepared<B>>,
    graphs: Vec<B::Graph>,
    a: DevicePtr,
    c: DevicePtr,
    a_bytes: usize,
    c_bytes: usize,
    /// Of what this rank pushes: to whom, and where to.
    pushes: Vec<(usize, DevicePtr)>,
    /// What lies after the memory through which ranks give each other something.
    guards: Vec<DevicePtr>,
}

impl<B: Kernels> Job<B> {
    /// Where the results of a call begin.
    fn kept(&self, run: usize, call: usize) -> usize {
        self.placed.at.kept + (run * self.placed.problem.calls + call) * self.c_bytes
    }

    fn calls(&self) -> usize {
        self.prepared.len() * self.placed.problem.calls
    }
}

impl<B: Kernels> Rank<B> {
    /// Plays problems. In the last call of problem `stale` one row of one rank's A is left as the call before
    /// had it.
    pub fn play(&mut self, numbers: Range<u64>, stale: Option<u64>) -> Played {
        let mut first = numbers.start;
        while first < numbers.end {
            first = self.round(first..numbers.end, stale)?;
        }
        Ok(())
    }

    fn round(&mut self, numbers: Range<u64>, stale: Option<u64>) -> Played<u64> {
        let failed = on_rank(self.me());
        let (placed, rooms) = self.place(numbers.clone(), ROUND)?;
        let next = numbers.start + placed.len() as u64;

        let mut given = vec![POISON; rooms.given];
        for Placed { problem, at, .. } in &placed {
            let mut at = at.given;
            let mut give = |window: Vec<u8>| {
                given[at..][..window.len()].copy_from_slice(&window);
                at += window.len();
            };
            (0..problem.calls).for_each(|call| give(problem.a(self.me(), call)));
            give(problem.b(self.me()));
            give(problem.bias(self.me()));
        }
        // SAFETY: `place` keeps to the rooms, and no rank has work under way.
        unsafe {
            let to = self.given.address();
            self.backend
                .upload(&self.stream, to, &given)
                .map_err(&failed)?;
            // What is read before it has come spoils C.
            let (work, shared) = (self.work.address(), self.shared.local());
            for (memory, bytes) in [(work, rooms.work), (shared, rooms.shared)] {
                let poisoned = self.backend.fill(&self.stream, memory, POISON, bytes);
                poisoned.map_err(&failed)?;
            }
        }
        let jobs = placed.into_iter().map(|placed| self.job(placed));
        let jobs = jobs
            .collect::<Result<Vec<_>, _>>()
            .map_err(on_rank(self.me()))?;
        self.backend.synchronize(&self.stream).map_err(&failed)?;
        self.barrier("set up")?;

        self.enqueue(&jobs, numbers.start, stale).map_err(&failed)?;
        self.backend.synchronize(&self.stream).map_err(&failed)?;
        let sound = self.check_pad();
        // No rank gives memory back that others may still reach.
        self.barrier("played")?;
        let rerun = |why: String| {
            let (world, first, count) = (self.limits.world, numbers.start, next - numbers.start);
            format!(
                "{why}\nIts round alone: WARPWEAVE_RANDOM_RANKS={world} WARPWEAVE_RANDOM_FIRST={first} \
                 WARPWEAVE_RANDOM_PROBLEMS={count}"
            )
        };
        sound.map_err(rerun)?;
        for Job { guards, placed, .. } in &jobs {
            let whose = |why: String| format!("problem {}, {why}", placed.problem.number);
            let whole = guards.iter().try_for_each(|&at| self.check_guard(at));
            whole.map_err(whose).map_err(rerun)?;
        }

        let mut kept = vec![0; rooms.kept];
        // SAFETY: as above.
        unsafe {
            let from = self.kept.address();
            self.backend
                .download(&self.stream, from, &mut kept)
                .map_err(&failed)?;
        }
        self.check(&jobs, &kept).map_err(rerun)?;
        Ok(next)
    }

    fn job(&self, placed: Placed) -> Result<Job<B>, Error> {
        let (problem, at, me) = (&placed.problem, &placed.at, self.me());
        let staging = at.staging(problem);
        let (a_bytes, c_bytes) = (a_bytes(problem, me), c_bytes(problem, me));
        let copy = at.shared + staging_bytes(problem);
        let work = self.work.address().add(at.work);
        let (a, c) = match problem.operation {
            Operation::AllGatherMatmul => (self.shared.local().add(at.shared), work),
            Operation::MatmulAllReduce => (work, self.shared.local().add(copy)),
            _ => (work, work.add(a_bytes + staging_bytes(problem))),
        };
        let guards = match problem.gathers() {
            true => vec![self.shared.local().add(staging + guard_of_staging(problem))],
            false => [self.shared.local().add(at.shared), work.add(a_bytes)]
                .map(|partials| partials.add(guard_of_staging(problem)))
                .to_vec(),
        };
        let on_all = |offset: usize| -> Vec<DevicePtr> {
            let addresses = self.shared.addresses().into_iter();
            addresses.map(|address| address.add(offset)).collect()
        };
        let prepared = |blocks: &Vec<u32>| {
            let b = self.given.address().add(at.given + problem.calls * a_bytes);
            let bias = b.add(b_bytes(problem, me));
            let max_blocks = Some(blocks[me]);
            match problem.operation {
                Operation::AllGatherMatmul => {
                    let gemm = AllGatherMatmul {
                        problem: problem.gemms[me],
                        shards: problem.shards.clone(),
                        chunk_rows: problem.chunk_rows,
                        rank: me,
                        world: self.limits.world,
                        ready: match problem.protocol {
                            Protocol::Rendezvous { .. } => READY,
                            Protocol::Eager => EAGER,
                        },
                        done: DONE,
                        protocol: problem.protocol,
                        tiling: problem.tilings[me],
                        max_blocks,
                    };
                    let operands = AllGatherOperands {
                        a: on_all(at.shared).into(),
                        local_a: DevicePtr::NULL,
                        staging: on_all(staging).into(),
                        staging_stride: 2 * gemm.problem.m * gemm.problem.lda,
                        b,
                        c,
                        bias,
                        scales: GatheredScales::default(),
                        pad: self.pad.view(),
                    };
                    let prepared = self.backend.prepare_all_gather(&self.handle, &gemm);
                    prepared.map(|prepared| Prepared::Gathers(prepared, operands.into()))
                }
                _ => {
                    let groups = match problem.operation {
                        Operation::OneShotAllReduce => problem.units(),
                        _ => problem.most_rows().div_ceil(problem.chunk_rows),
                    };
                    let gemm = MatmulReduce {
                        problem: problem.gemms[me],
                        shards: problem.shards.clone(),
                        c: match problem.operation {
                            Operation::MatmulAllReduce => ReduceOutput::Everyone,
                            Operation::OneShotAllReduce => ReduceOutput::Each,
                            _ => ReduceOutput::Owner,
                        },
                        rank: me,
                        world: self.limits.world,
                        ready: placed.slot,
                        reduced: placed.slot + groups,
                        done: placed.slot + 2 * groups,
                        group_rows: problem.chunk_rows,
                        tiling: problem.tilings[me],
                        max_blocks,
                    };
                    let GemmProblem { m, ldc, .. } = gemm.problem;
                    let operands = ReduceOperands {
                        a,
                        b,
                        bias,
                        scales: [DevicePtr::NULL; 2],
                        c: match problem.operation {
                            Operation::MatmulAllReduce => on_all(copy).into(),
                            _ => c.into(),
                        },
                        local_c: DevicePtr::NULL,
                        staging: on_all(at.shared).into(),
                        staging_stride: 2 * gemm.world * m * ldc,
                        multicast: [DevicePtr::NULL; 2],
                        pulled: work.add(a_bytes),
                        pad: self.pad.view(),
                    };
                    let prepared = self.backend.prepare_reduce(&self.handle, &gemm);
                    prepared.map(|prepared| Prepared::Reduction(prepared, operands.into()))
                }
            }
        };
        let stride = 2 * problem.gemms[me].lda;
        let pushes = match problem.pushed_rows(me) {
            0 => Vec::new(),
            _ => {
                let own = problem.shards[me].start * stride;
                let to = on_all(staging + own).into_iter().enumerate();
                to.filter(|&(peer, _)| peer != me).collect()
            }
        };
        let prepared = problem
            .blocks
            .iter()
            .map(prepared)
            .collect::<Result<_, _>>()?;
        let mut job = Job {
            prepared,
            graphs: Vec::new(),
            a,
            c,
            a_bytes,
            c_bytes,
            pushes,
            guards,
            placed,
        };
        if job.placed.problem.replayed {
            let runs = 0..job.prepared.len();
            let graphs = runs.map(|run| {
                let gemm = || self.gemm(&job, run);
                self.backend.capture(&self.stream, gemm)
            });
            job.graphs = graphs.collect::<Result<_, _>>()?;
        }
        Ok(job)
    }

    /// Enqueues the GEMM into a C that is wrong everywhere, after what this rank pushes.
    fn gemm(&self, job: &Job<B>, run: usize) -> warpweave_symm_mem::Result<()> {
        let problem = &job.placed.problem;
        let pushed = 2 * problem.pushed_rows(self.me()) * problem.gemms[self.me()].lda;
        for &(peer, to) in &job.pushes {
            // SAFETY: this rank's rows in the peer's staging, which the call before has read everywhere when
            // it ends here.
            unsafe { self.backend.copy(&self.stream, to, job.a, pushed)? };
            self.pad.signal(&self.stream, READY, &[peer])?;
        }
        // SAFETY: all ranges are the job's own, in memory of this rank; all ranks launch as often and in the
        // same order.
        let launched = unsafe {
            self.backend
                .fill(&self.stream, job.c, POISON, job.c_bytes)?;
            match &job.prepared[run] {
                Prepared::Gathers(prepared, operands) => {
                    self.backend
                        .all_gather_matmul(&self.stream, prepared, operands)
                }
                Prepared::Reduction(prepared, operands) => {
                    self.backend.matmul_reduce(&self.stream, prepared, operands)
                }
            }
        };
        launched.map_err(|error| warpweave_symm_mem::Error::Stream {
            device: self.backend.device().name.clone(),
            cause: error.to_string(),
        })
    }

    /// All calls of a round, some of them late on some ranks.
    fn enqueue(
        &self,
        jobs: &[Job<B>],
        first: u64,
        stale: Option<u64>,
    ) -> warpweave_symm_mem::Result<()> {
        let order = order(&mut Random::with_seed(first), jobs.iter().map(Job::calls));
        let mine = &mut Random::with_seed(mixed(first) ^ self.me() as u64);
        for (job, nth) in order {
            let job = &jobs[job];
            let problem = &job.placed.problem;
            let (run, call) = (nth / problem.calls, nth % problem.calls);
            if mine.once_in(4) {
                let most = if mine.once_in(64) { 2000 } else { 100 };
                let time = Duration::from_micros(1 + mine.usize(..most) as u64);
                self.backend.delay(&self.stream, time)?;
            }
            if mine.once_in(16) {
                thread::sleep(Duration::from_micros(mine.u64(..100)));
            }
            let given = self
                .given
                .address()
                .add(job.placed.at.given + call * job.a_bytes);
            let kept = self.kept.address().add(job.kept(run, call));
            let mut bytes = job.a_bytes;
            if stale == Some(problem.number)
                && nth + 1 == job.calls()
                && self.me() == victim(problem)
            {
                let rows = problem.rows_of_a(self.me()).len();
                bytes = 2 * (rows - 1) * problem.gemms[self.me()].lda;
            }
            // SAFETY: all ranges are the job's own, in memory of this rank, whose work is all on one stream.
            unsafe {
                if bytes > 0 {
                    self.backend.copy(&self.stream, job.a, given, bytes)?;
                }
                match job.graphs.get(run) {
                    // A launch between replays goes on with their epochs.
                    Some(graph) if !mine.once_in(4) => {
                        self.backend.launch_graph(graph, &self.stream)?
                    }
                    _ => self.gemm(job, run)?,
                }
                self.backend.copy(&self.stream, kept, job.c, job.c_bytes)?;
            }
        }
        Ok(())
    }

    /// Compares all results, on this rank's share of the processors.
    fn check(&self, jobs: &[Job<B>], kept: &[u8]) -> Played {
        let me = self.me();
        let tasks: Vec<_> = jobs
            .iter()
            .flat_map(|job| (0..job.placed.problem.calls).map(move |call| (job, call)))
            .map(|(job, call)| {
                let result = |run: usize| &kept[job.kept(run, call)..][..job.c_bytes];
                let results: Vec<&[u8]> = (0..job.prepared.len()).map(result).collect();
                (&job.placed.problem, call, results)
            })
            .collect();
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let (next, wrong) = (AtomicUsize::new(0), Mutex::new(None));
        thread::scope(|scope| {
            for _ in 0..(processors / self.limits.world).max(1) {
                scope.spawn(|| {
                    while let Some((problem, call, results)) =
                        tasks.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        if let Err(why) = compare(problem, me, *call, results) {
                            wrong.lock().unwrap().get_or_insert(why);
                        }
                    }
                });
            }
        });
        wrong.into_inner().unwrap().map_or(Ok(()), Err)
    }
}

/// The rank that gets a stale row: one that has rows.
fn victim(problem: &Problem) -> usize {
    let ranks = 0..problem.shards.len();
    ranks
        .max_by_key(|&rank| problem.rows_of_a(rank).len())
        .unwrap_or(0)
}

/// The calls of a round, as (job, call): those of a job in their order, interleaved with those of the next.
fn order(random: &mut Random, calls: impl Iterator<Item = usize>) -> Vec<(usize, usize)> {
    let mut open: Vec<_> = calls.map(|calls| 0..calls).enumerate().collect();
    let mut order = Vec::new();
    while !open.is_empty() {
        let at = random.usize(..open.len().min(2));
        let (job, calls) = &mut open[at];
        match calls.next() {
            Some(call) => order.push((*job, call)),
            None => drop(open.remove(at)),
        }
    }
    order
}

/// Compares the results of a call, one for each run: integers with the reference, reals with each other.
fn compare(problem: &Problem, rank: usize, call: usize, results: &[&[u8]]) -> Played {
    let gemm = &problem.gemms[rank];
    let row = 2 * gemm.ldc;
    let end = row * problem.rows_of_c(rank).len();
    let is_element = |at: usize| at < end && at % row < 2 * gemm.n;
    let got = results[results.len() - 1];
    let wanted = match problem.real {
        true => results[0].to_vec(),
        false => problem.c(rank, call),
    };
    let is_odd = |at: usize| match (problem.real, is_element(at)) {
        (true, true) => !is_finite(gemm.dtype, got[at & !1], got[at | 1]),
        (true, false) => got[at] != POISON,
        (false, _) => false,
    };
    let wrong = (0..wanted.len()).find(|&at| got[at] != wanted[at] || is_odd(at));
    let Some(at) = wrong else {
        return Ok(());
    };
    let place = match is_element(at) {
        true => format!("row {}, column {}", at / row, at % row / 2),
        false => format!("byte {at}, which is not an element"),
    };
    let Problem { number, .. } = problem;
    Err(format!(
        "problem {number}, rank {rank}, call {call}: {place} is {:02x?} and wrong\n{problem:?}",
        &got[at & !1..][..2]
    ))
}

/// What was computed of something that is no number is none.
fn is_finite(dtype: DType, low: u8, high: u8) -> bool {
    decode(dtype, &[low, high])[0].is_finite()
}
