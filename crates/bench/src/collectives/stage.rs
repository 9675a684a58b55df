//! One size of a run: its memory, its operations, and the rows of each.

use warpweave_comm::Collectives;
use warpweave_comm::collective::{Call, Operand, Operation, Variant};
use warpweave_symm_mem::DevicePtr;

use super::candidate::{Candidate, Means, first_reason};
use super::memory::{Arena, Place};
use super::method::{Method, wants};
use super::nccl::{Library, NcclBackend};
use super::operation::{count, least_bytes};
use super::peers;
use super::run::Setup;
use super::verify::{kept, verify};
use crate::error::Result;
use crate::report::table::SELECT;
use crate::report::{Kind, Limit, Operands, Outcome, Row, Status};
use crate::size::Bytes;
use crate::timing::{Contender, Times, Timing};
use crate::verification::Verdict;

/// The rank whose data broadcasts spread.
const ROOT: usize = 0;

/// Outputs of at most so many bytes are verified again after the timing.
const VERIFIED_TWICE: usize = 4 << 20;

/// One size of a run.
pub(super) struct Stage<'a, B: NcclBackend> {
    pub setup: &'a Setup<'a, B>,
    pub ours: &'a Collectives<B>,
    pub plain: &'a Library<B::Comm>,
    pub windows: &'a Library<B::Comm>,
    pub size: Bytes,
    pub progress: &'a dyn Fn(&str),
}

impl<B: NcclBackend> Stage<'_, B> {
    fn call(&self, operation: Operation) -> Call {
        let nothing = Operand::local(DevicePtr::NULL);
        let dtype = self.setup.settings.message_dtype();
        Call {
            operation,
            dtype,
            count: count(operation, dtype, self.size.0, self.setup.session.world()),
            root: ROOT,
            input: nothing,
            output: nothing,
        }
    }

    /// Bytes of input and output.
    fn bytes(&self, call: &Call) -> [usize; 2] {
        let (input, output) = call
            .operation
            .elements(call.count, self.setup.session.world());
        [input, output].map(|elements| elements * call.dtype.size())
    }

    /// Measures every operation of this size. Collective.
    pub fn measure(&self) -> Result<Vec<(Operation, Bytes, Outcome)>> {
        let session = self.setup.session;
        let span = tracing::info_span!("bench.size", size = %self.size);
        let _entered = span.enter();
        (self.progress)("inputs");
        let operations = self.setup.settings.operations.iter();
        let calls: Vec<_> = operations.map(|&o| self.call(o)).collect();
        let all = calls.iter().map(|call| self.bytes(call));
        let most = all
            .clone()
            .fold([1, 1], |[a, b], [c, d]| [a.max(c), b.max(d)]);
        let most_kept = all.map(|[_, output]| kept(output)).max();
        let plain = self.plain.comm.is_some();
        let mut arena = Arena::new(session, most, self.setup.settings.message_dtype(), plain)?;
        let no_windows = match &self.windows.comm {
            Some(comm) => self.open_windows(&mut arena, comm)?,
            None => self.windows.refusal.clone(),
        };
        // Outputs of calls that follow each other, one after the other.
        let (mine, aside) = match session.backend.allocate(most_kept.unwrap_or(0).max(1)) {
            Ok(memory) => (Ok(Vec::new()), Some(memory)),
            Err(error) => (Err(error.into()), None),
        };
        session.agree("memory for the outputs", mine)?;
        let refusals = [self.plain.refusal.clone(), no_windows];
        let mut outcomes = Vec::new();
        if let Some(aside) = aside {
            let means = Means {
                session,
                ours: self.ours,
                nccl: [self.plain.comm.as_ref(), self.windows.comm.as_ref()],
                arena: &arena,
            };
            for call in calls {
                let outcome = self.operation(&means, call, &refusals, &aside)?;
                outcomes.push((call.operation, self.size, outcome));
            }
        }
        arena.close(session)?;
        Ok(outcomes)
    }

    /// Why there are no windows of this size, if there are none on some rank.
    fn open_windows(&self, arena: &mut Arena<B>, comm: &B::Comm) -> Result<Option<String>> {
        // A lost peer is found by the step that follows.
        let session = self.setup.session;
        let opened = arena.open_windows(session, comm);
        let mine = opened
            .err()
            .map_or(String::new(), |error| error.to_string());
        let all = session.agree("windows of NCCL", Ok(mine.into_bytes()))?;
        Ok(first_reason(&all))
    }

    /// One operation of this size.
    fn operation(
        &self,
        means: &Means<'_, B>,
        call: Call,
        refusals: &[Option<String>; 2],
        aside: &B::Memory,
    ) -> Result<Outcome> {
        let operation = call.operation;
        let bytes = self.bytes(&call);
        let mut rows = Vec::new();
        let mut candidates = Vec::new();
        let selected = self.selected(means, call, bytes)?;
        let mut methods = Method::of(operation, &self.setup.settings.implementations);
        // A choice has a row, also where only the choice was asked for.
        let chosen = selected
            .map(Method::Ours)
            .filter(|method| !methods.contains(method));
        methods.extend(chosen);
        for method in methods {
            (self.progress)(&format!("{operation}, first call of {}", method.name()));
            let (kind, reason) = match method {
                Method::Nccl => (Kind::Nccl, &refusals[0]),
                Method::NcclWindow => (Kind::Nccl, &refusals[1]),
                Method::Ours(_) => (Kind::Ours, &None),
            };
            let made = match reason {
                Some(reason) => Err(reason.clone()),
                None => Candidate::new(means, method, call, bytes)?,
            };
            let made = match made {
                Ok(mut candidate) => candidate.warm_up()?.map(|no_graph| (candidate, no_graph)),
                Err(reason) => Err(reason),
            };
            let row = |status, reason| Row::new(method.name(), kind, status, reason);
            match made {
                Ok((candidate, no_graph)) => {
                    rows.push(row(Status::Ok, no_graph));
                    candidates.push((rows.len() - 1, candidate));
                }
                Err(reason) => rows.push(row(Status::NotRun, Some(reason))),
            }
        }
        let mut verdicts = self.verify(&candidates, aside)?;
        let times = self.time(operation, &candidates)?;
        if bytes[1] <= VERIFIED_TWICE {
            let again = self.verify(&candidates, aside)?;
            for (verdict, again) in verdicts.iter_mut().zip(again) {
                *verdict = std::mem::take(verdict).and(again);
            }
        }
        for (((at, _), times), verdict) in candidates.iter().zip(times).zip(verdicts) {
            rows[*at].fill(&times, verdict);
        }
        self.add_peers(operation, &mut rows);
        let world = self.setup.session.world();
        let on = Operands::Message {
            size: self.size,
            input_bytes: bytes[0],
            output_bytes: bytes[1],
        };
        let least = least_bytes(operation, bytes[0], world);
        let links = self.setup.links.filter(|_| least > 0);
        Ok(Outcome {
            limit: links.map(|links| Limit::of_transfer(least, links.bandwidth_gb_s)),
            selected: selected.map(|variant| variant.name().into()),
            rows,
            ..Outcome::new(
                Some(operation.name().into()),
                on,
                call.dtype.name().into(),
                world,
            )
        }
        .compared())
    }

    fn verify(
        &self,
        candidates: &[(usize, Candidate<'_, B>)],
        aside: &B::Memory,
    ) -> Result<Vec<Verdict>> {
        let verdicts = candidates.iter().map(|(_, candidate)| {
            (self.progress)(&format!(
                "{}, verifying {}",
                candidate.call.operation, candidate.name
            ));
            verify(self.setup.session, candidate, aside)
        });
        verdicts.collect()
    }

    fn time(
        &self,
        operation: Operation,
        candidates: &[(usize, Candidate<'_, B>)],
    ) -> Result<Vec<Times>> {
        let timing = Timing {
            session: self.setup.session,
            clock: self.setup.clock,
            effort: self.setup.effort,
        };
        let contenders: Vec<_> = candidates
            .iter()
            .map(|(_, c)| c as &dyn Contender)
            .collect();
        timing.measure(&contenders, |round, rounds| {
            (self.progress)(&format!("{operation}, round {} of {rounds}", round + 1));
        })
    }

    fn add_peers(&self, operation: Operation, rows: &mut Vec<Row>) {
        let Some(peers) = &self.setup.settings.peers else {
            return;
        };
        let world = self.setup.session.world();
        for (name, ms) in peers::of(
            peers,
            operation,
            self.size,
            world,
            self.setup.settings.message_dtype(),
        ) {
            rows.push(Row::of_peer(name, ms));
        }
    }

    /// The variant that the library chooses for symmetric operands, where that is wanted.
    fn selected(
        &self,
        means: &Means<'_, B>,
        mut call: Call,
        bytes: [usize; 2],
    ) -> Result<Option<Variant>> {
        let places = [Place::Multicast, Place::Symmetric];
        let mut operands = None;
        for place in places {
            if operands.is_none() {
                operands = means.arena.operands(place, bytes)?;
            }
        }
        let Some([input, output]) =
            operands.filter(|_| wants(&self.setup.settings.implementations, SELECT))
        else {
            return Ok(None);
        };
        (call.input, call.output) = (input, output);
        match self.ours.select(&call) {
            Err(error) if error.is_unavailable() => Ok(None),
            other => Ok(Some(other?)),
        }
    }
}
