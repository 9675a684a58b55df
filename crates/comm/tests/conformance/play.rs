//! Plays a script of calls on a rank, and compares the results.

use std::time::Duration;

use warpweave_comm::CollectiveKernels;
use warpweave_symm_mem::host::encode;
use warpweave_symm_mem::{DevicePtr, Error, Memory};

use crate::case::Case;
use crate::rank::{Rank, message};
use crate::values::{given, result};

/// What memory holds before a call.
const POISON: u8 = 0xa5;

/// One step of a script; all ranks play the same.
#[derive(Clone, Debug)]
pub enum Step {
    /// A call; one that the variant cannot do is refused on all ranks.
    Call(Case),
    /// The stream of a rank is delayed.
    Delay { rank: usize, micros: u64 },
    /// The host thread of a rank is delayed.
    Sleep { rank: usize, micros: u64 },
    /// A barrier.
    Barrier,
    /// Calls captured as a graph, which is then replayed a few times with other values.
    Replay { cases: Vec<Case>, times: usize },
}

/// What went wrong.
pub type Played = Result<(), String>;

/// A call of which the results are to be compared.
struct Pending {
    case: Case,
    seed: u64,
    log: usize,
}

impl<B: CollectiveKernels> Rank<B> {
    /// Plays `steps`, a batch at a time: within a batch nothing synchronizes. Every call has other values.
    pub fn play(&self, steps: &[Step], seed: u64) -> Played {
        let mut rest = steps;
        let mut seed = seed << 32;
        while !rest.is_empty() {
            let (mut sources, mut logs, mut taken) = (0, 0, 0);
            for step in rest.iter().take(self.sizes.ahead) {
                let (source, log) = self.bytes(step);
                sources += source;
                logs += log;
                if sources.max(logs) > self.sizes.batch {
                    break;
                }
                taken += 1;
            }
            let (now, later) = rest.split_at(taken);
            if now.is_empty() {
                return Err(format!("{:?} does not fit in a batch", rest[0]));
            }
            seed = self.batch(now, seed)?;
            rest = later;
        }
        Ok(())
    }

    /// Bytes of inputs and results that a step keeps.
    fn bytes(&self, step: &Step) -> (usize, usize) {
        let (cases, times) = match step {
            Step::Call(case) => (std::slice::from_ref(case), 1),
            Step::Replay { cases, times } => (&cases[..], *times),
            _ => (&[][..], 0),
        };
        let all = cases.iter().map(|case| self.kept(case));
        let (sources, logs) = all.fold((0, 0), |sum, kept| (sum.0 + kept.0, sum.1 + kept.1));
        (sources * times, logs * times)
    }

    fn batch(&self, steps: &[Step], first_seed: u64) -> Result<u64, String> {
        let limits = self.limits();
        let mut pending = Vec::new();
        let mut sources = Vec::new();
        let mut logs = 0;
        let mut seed = first_seed;
        for case in steps.iter().flat_map(calls) {
            seed += 1;
            let (source, log) = self.kept(case);
            let end = sources.len() + source;
            let elements = case.operation.elements(case.count, self.world()).0;
            let input = given(case.dtype, seed, self.rank(), 0..elements);
            sources.extend(encode(case.dtype, &input));
            sources.resize(end, 0);
            if case.applies(&limits) {
                let case = *case;
                pending.push(Pending {
                    case,
                    seed,
                    log: logs,
                });
            }
            logs += log;
        }
        let failed = |error: Error| format!("rank {}: {error}", self.rank());
        // SAFETY: the sources have the bytes of a batch, and no work of this rank is in flight.
        unsafe {
            let at = self.sources.address();
            self.backend
                .upload(&self.stream, at, &sources)
                .map_err(failed)?;
        }
        self.enqueue(steps).map_err(failed)?;
        self.backend.synchronize(&self.stream).map_err(failed)?;
        self.collectives.check(&self.stream).map_err(failed)?;
        let mut log = vec![0; logs];
        // SAFETY: the logs have the bytes of a batch.
        unsafe {
            let at = self.logs.address();
            self.backend
                .download(&self.stream, at, &mut log)
                .map_err(failed)?;
        }
        for call in &pending {
            self.compare(call, &log)?;
        }
        self.exchange
            .barrier("batch")
            .map_err(|error| failed(error.into()))?;
        Ok(seed)
    }

    /// Makes `times` calls back to back with values of their own, and compares them all; the fault, if one
    /// was reported.
    pub fn call(&self, case: &Case, times: usize, seed: u64) -> Result<Option<Error>, String> {
        let failed = |error: Error| format!("rank {}: {case:?}: {error}", self.rank());
        let (source, log) = self.kept(case);
        let elements = case.operation.elements(case.count, self.world()).0;
        let seeds = seed..seed + times as u64;
        let sources: Vec<u8> = seeds
            .clone()
            .flat_map(|seed| {
                let input = given(case.dtype, seed, self.rank(), 0..elements);
                let mut bytes = encode(case.dtype, &input);
                bytes.resize(source, 0);
                bytes
            })
            .collect();
        let mut logs = vec![0; times * log];
        // SAFETY: sources and logs have the bytes of a batch, and no work of this rank is in flight.
        unsafe {
            let at = self.sources.address();
            self.backend
                .upload(&self.stream, at, &sources)
                .map_err(failed)?;
            for call in 0..times {
                let (source, log) = (at.add(call * source), call * log);
                self.perform(case, source, self.logs.address().add(log))
                    .map_err(failed)?;
            }
            self.backend.synchronize(&self.stream).map_err(failed)?;
            if let Err(error) = self.collectives.check(&self.stream) {
                return Ok(Some(error));
            }
            let at = self.logs.address();
            self.backend
                .download(&self.stream, at, &mut logs)
                .map_err(failed)?;
        }
        for (call, seed) in seeds.enumerate() {
            let (case, log) = (*case, call * log);
            self.compare(&Pending { case, seed, log }, &logs)?;
        }
        Ok(None)
    }

    /// Overwrites both operands of a call, as their owner may once it has ended.
    pub fn spoil(&self, case: &Case) -> warpweave_symm_mem::Result<()> {
        let place = self.place(case)?;
        for (window, bytes) in [Some(place.output), place.input].into_iter().flatten() {
            // SAFETY: windows are ranges of this rank's live memory.
            unsafe { self.backend.fill(&self.stream, window, !POISON, bytes)? };
        }
        self.backend.synchronize(&self.stream)
    }

    fn enqueue(&self, steps: &[Step]) -> warpweave_symm_mem::Result<()> {
        // Where graphs are made no peer may wait for this rank yet.
        let mut graphs = Vec::new();
        for step in steps {
            if let Step::Replay { cases, .. } = step {
                let graph = self.backend.capture(&self.stream, || {
                    let (mut feed, mut result) = (self.feeds.address(), self.results.address());
                    for case in cases {
                        let (source, log) = self.kept(case);
                        self.perform(case, feed, result)?;
                        (feed, result) = (feed.add(source), result.add(log));
                    }
                    Ok::<_, Error>(())
                })?;
                graphs.push(graph);
            }
        }
        self.exchange.barrier("captured")?;
        let mut graphs = graphs.iter();
        let (mut source, mut log) = (self.sources.address(), self.logs.address());
        let is_here = |rank: &usize| rank % self.world() == self.rank();
        for step in steps {
            match step {
                Step::Call(case) => {
                    self.perform(case, source, log)?;
                    let kept = self.kept(case);
                    (source, log) = (source.add(kept.0), log.add(kept.1));
                }
                Step::Delay { rank, micros } if is_here(rank) => {
                    let time = Duration::from_micros(*micros);
                    self.backend.delay(&self.stream, time)?;
                }
                Step::Sleep { rank, micros } if is_here(rank) => {
                    std::thread::sleep(Duration::from_micros(*micros));
                }
                Step::Delay { .. } | Step::Sleep { .. } => {}
                Step::Barrier => {
                    let call = self.collectives.barrier_call();
                    let variant = warpweave_comm::collective::Variant::Packets;
                    // SAFETY: a barrier touches no operand.
                    unsafe { self.collectives.enqueue(&self.stream, &call, variant)? };
                }
                Step::Replay { cases, times } => {
                    let graph = graphs.next().expect("captured above");
                    let kept = |case: &Case| self.kept(case);
                    let each = cases.iter().map(kept);
                    let (feed, result) = each.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
                    for _ in 0..*times {
                        let backend = &self.backend;
                        // SAFETY: each has the bytes of a batch, and the stream orders what touches them.
                        unsafe {
                            backend.copy(&self.stream, self.feeds.address(), source, feed)?;
                            backend.launch_graph(graph, &self.stream)?;
                            backend.copy(&self.stream, log, self.results.address(), result)?;
                        }
                        (source, log) = (source.add(feed), log.add(result));
                    }
                }
            }
        }
        // A graph lives until its launches have ended.
        self.backend.synchronize(&self.stream)
    }

    /// Sets the memory up, calls, and keeps what the memory is then.
    fn perform(
        &self,
        case: &Case,
        source: DevicePtr,
        log: DevicePtr,
    ) -> warpweave_symm_mem::Result<()> {
        let (backend, stream) = (&self.backend, &self.stream);
        let place = self.place(case)?;
        let (input_bytes, _) = case.bytes(self.world());
        // SAFETY: windows, sources and logs are ranges of this rank's live memory, ordered by the stream;
        // peers touch the operands within calls alone.
        unsafe {
            for (window, bytes) in [Some(place.output), place.input].into_iter().flatten() {
                backend.fill(stream, window, POISON, bytes)?;
            }
            if input_bytes > 0 {
                backend.copy(stream, place.call.input.address(), source, input_bytes)?;
            }
            let outcome = self.collectives.enqueue(stream, &place.call, case.variant);
            match (outcome, case.applies(&self.limits())) {
                (Ok(()), true) => {}
                (Err(Error::Unavailable { .. }), false) => return Ok(()),
                (Err(error), _) => return Err(error),
                (Ok(()), false) => {
                    return Err(Error::InvalidArgument {
                        what: "case",
                        why: format!("{case:?} was to be refused"),
                    });
                }
            }
            let (window, bytes) = place.output;
            backend.copy(stream, log, window, bytes)?;
            if let Some((window, behind)) = place.input {
                backend.copy(stream, log.add(bytes), window, behind)?;
            }
        }
        Ok(())
    }

    fn compare(&self, call: &Pending, log: &[u8]) -> Played {
        let Pending {
            case,
            seed,
            log: at,
        } = call;
        let (limits, rank) = (self.limits(), self.rank());
        let place = self.place(case).map_err(message)?;
        let elements = case.operation.elements(case.count, self.world()).0;
        let input = encode(case.dtype, &given(case.dtype, *seed, rank, 0..elements));
        let output = encode(case.dtype, &result(case, &limits, *seed, rank));
        let mut wanted = vec![POISON; place.output.1];
        let mut behind = vec![POISON; place.input.map_or(0, |(_, bytes)| bytes)];
        let holder = if case.in_place {
            &mut wanted
        } else {
            &mut behind
        };
        holder[place.input_at..][..input.len()].copy_from_slice(&input);
        wanted[place.output_at..][..output.len()].copy_from_slice(&output);
        wanted.extend(behind);
        let got = &log[*at..][..wanted.len()];
        if got == wanted {
            return Ok(());
        }
        let differing = (0..wanted.len()).filter(|&at| got[at] != wanted[at]);
        let at = differing
            .clone()
            .next()
            .expect("slices of one length differ");
        Err(format!(
            "rank {rank} of {}: {case:?}: {} bytes differ, the first {} bytes after the output's \
             start ({} bytes): {:02x?}, not {:02x?}",
            self.world(),
            differing.count(),
            at as i64 - place.output_at as i64,
            output.len(),
            &got[at..got.len().min(at + 16)],
            &wanted[at..wanted.len().min(at + 16)],
        ))
    }
}

/// The calls of a step, in their order.
fn calls(step: &Step) -> impl Iterator<Item = &Case> {
    let (cases, times) = match step {
        Step::Call(case) => (std::slice::from_ref(case), 1),
        Step::Replay { cases, times } => (&cases[..], *times),
        _ => (&[][..], 0),
    };
    (0..times).flat_map(move |_| cases)
}
