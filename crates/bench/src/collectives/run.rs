//! The sizes of a run, one after the other: the memory of each, its operations, and the rows of each.

use warpweave_comm::Collectives;
use warpweave_comm::collective::{
    Call as Collective, CollectiveOptions, Operand, Operation, Variant,
};
use warpweave_symm_mem::DevicePtr;

use super::candidate::{Means, Row as Entry};
use super::memory::{Arena, Place, SETS};
use super::method::{Method, wants};
use super::nccl::{Library, NcclBackend};
use super::operation::{count, least_bytes, place};
use crate::candidate::{Call, Candidate, Entrant, first_reason};
use crate::error::Result;
use crate::inputs::Numbers;
use crate::report::table::SELECT;
use crate::report::{Kind, Limit, Operands, Outcome, Report, Row};
use crate::session::Session;
use crate::size::Bytes;
use crate::suite::{Run, Stage};
use crate::verification::{Batch, Verifier, batch};

/// The rank whose data broadcasts spread.
const ROOT: usize = 0;

/// Outputs of at most so many bytes are verified again after the timing.
const VERIFIED_TWICE: usize = 4 << 20;

/// Outputs that are kept side by side, for calls that follow each other without synchronisation, take this
/// many bytes at the most, but for two calls.
const KEPT: usize = 256 << 20;

/// The calls that are verified, in order: as they are and as graphs, every set in both forms where outputs
/// are small.
pub(super) fn calls(output_bytes: usize) -> Batch {
    let [run, replay] = [Call::Run, Call::Replay].map(|how| batch(how, Numbers::Integers, SETS));
    match output_bytes * 2 * SETS <= KEPT {
        true => [run, replay].concat(),
        false => vec![run[0], replay[1]],
    }
}

/// NCCL's communicators, and ours.
struct Libraries<'a, B: NcclBackend> {
    run: &'a Run<'a, B>,
    ours: Collectives<B>,
    plain: Library<B::Comm>,
    windows: Library<B::Comm>,
}

/// Adds the results of all sizes to `report`, by operation. Collective.
pub(crate) fn measure<B: NcclBackend>(
    run: &Run<'_, B>,
    report: &mut Report,
    each: &mut dyn FnMut(&Report) -> Result<()>,
) -> Result<()> {
    let Run {
        session, settings, ..
    } = run;
    let largest = settings.sizes.last().map_or(0, |size| size.0);
    let options = CollectiveOptions {
        // A rank's share of the largest message, rounded up, for each rank.
        staging_bytes: largest + 4096,
        ..CollectiveOptions::default()
    };
    let ours = Collectives::new(&session.backend, &session.exchange, "bench", options)?;
    run.progress.at(0, 1, "NCCL");
    let libraries = Libraries {
        run,
        ours,
        plain: library(run, Method::Nccl)?,
        windows: library(run, Method::NcclWindow)?,
    };
    let mut results = Vec::new();
    for (i, &size) in settings.sizes.iter().enumerate() {
        let stage = Stage {
            run,
            place: (i, settings.sizes.len()),
            label: size.to_string(),
        };
        results.extend(libraries.measure(stage, size)?);
        results.sort_by_key(|(operation, size, _)| (place(*operation), *size));
        let outcomes = results.iter().map(|(.., outcome)| outcome.clone());
        report.results = outcomes.collect();
        each(report)?;
    }
    let closed = libraries
        .ours
        .close(&session.stream, session.exchange.as_ref());
    Ok(closed?)
}

/// NCCL's communicator for a row, if it is wanted. Collective.
pub(super) fn library<B: NcclBackend>(run: &Run<'_, B>, method: Method) -> Result<Library<B::Comm>> {
    let session = run.session;
    if !wants(&run.settings.implementations, method.name()) {
        return Ok((None, None));
    }
    let (mine, comm) = match session.backend.nccl(&session.exchange) {
        Ok(comm) => (Ok(Vec::new()), Some(comm)),
        Err(error) if error.is_unavailable() => (Ok(error.to_string().into_bytes()), None),
        Err(error) => (Err(error), None),
    };
    let refusal = first_reason(&session.agree(&format!("start of {}", method.name()), mine)?);
    Ok((comm.filter(|_| refusal.is_none()), refusal))
}

/// Opens the arena's windows; why there are none of this size, if there are none on some rank. Collective.
pub(super) fn open_windows<B: NcclBackend>(
    session: &Session<B>,
    arena: &mut Arena<B>,
    comm: &B::Comm,
) -> Result<Option<String>> {
    // A lost peer is found by the step that follows.
    let opened = arena.open_windows(session, comm);
    let mine = opened.err().map(|error| error.to_string());
    let mine = mine.unwrap_or_default().into_bytes();
    Ok(first_reason(&session.agree("windows of NCCL", Ok(mine))?))
}

impl<B: NcclBackend> Libraries<'_, B> {
    /// Measures every operation at a size. Collective.
    fn measure(
        &self,
        stage: Stage<'_, B>,
        size: Bytes,
    ) -> Result<Vec<(Operation, Bytes, Outcome)>> {
        let (session, settings) = (self.run.session, self.run.settings);
        let span = tracing::info_span!("bench.size", size = %size);
        let _entered = span.enter();
        stage.at("inputs");
        let operations = settings.operations.iter();
        let calls: Vec<_> = operations.map(|&o| self.call(o, size)).collect();
        let all = calls.iter().map(|call| self.bytes(call));
        let most = all.fold([1, 1], |[a, b], [c, d]| [a.max(c), b.max(d)]);
        let (plain, no_plain) = &self.plain;
        let mut arena = Arena::new(session, most, settings.message_dtype(), plain.is_some())?;
        let (windows, refusal) = &self.windows;
        let no_windows = match windows {
            Some(comm) => open_windows(session, &mut arena, comm)?,
            None => refusal.clone(),
        };
        let refusals = [no_plain.clone(), no_windows];
        let means = Means {
            session,
            ours: &self.ours,
            nccl: [plain.as_ref(), windows.as_ref()],
            arena: &arena,
        };
        let mut verifier = Verifier::default();
        let mut outcomes = Vec::new();
        for call in calls {
            let stage = Stage {
                label: format!("{size}: {}", call.operation),
                ..stage
            };
            let outcome = self.operation(&stage, &means, (call, size), &refusals, &mut verifier)?;
            outcomes.push((call.operation, size, outcome));
        }
        arena.close(session)?;
        Ok(outcomes)
    }

    fn call(&self, operation: Operation, size: Bytes) -> Collective {
        let nothing = Operand::local(DevicePtr::NULL);
        let dtype = self.run.settings.message_dtype();
        Collective {
            operation,
            dtype,
            count: count(operation, dtype, size.0, self.run.session.world()),
            root: ROOT,
            input: nothing,
            output: nothing,
        }
    }

    /// Bytes of input and output.
    fn bytes(&self, call: &Collective) -> [usize; 2] {
        let world = self.run.session.world();
        let (input, output) = call.operation.elements(call.count, world);
        [input, output].map(|elements| elements * call.dtype.size())
    }

    /// One operation at a size.
    fn operation(
        &self,
        stage: &Stage<'_, B>,
        means: &Means<'_, B>,
        (call, size): (Collective, Bytes),
        [no_plain, no_windows]: &[Option<String>; 2],
        verifier: &mut Verifier<B>,
    ) -> Result<Outcome> {
        let (operation, bytes) = (call.operation, self.bytes(&call));
        let (settings, world) = (self.run.settings, self.run.session.world());
        let selected = self.selected(means, call, bytes)?;
        let mut methods = Method::of(operation, &settings.implementations);
        // A choice has a row, also where only the choice was asked for.
        let chosen = selected.map(Method::Ours);
        methods.extend(chosen.filter(|method| !methods.contains(method)));
        let mut entrants = Vec::new();
        for method in methods {
            let (kind, reason) = match method {
                Method::Nccl => (Kind::Nccl, no_plain),
                Method::NcclWindow => (Kind::Nccl, no_windows),
                Method::Ours(_) => (Kind::Ours, &None),
            };
            let made = match reason {
                Some(reason) => Err(reason.clone()),
                None => Entry::new(means, method, call, bytes)?,
            };
            let boxed = made.map(|entry| Box::new(entry) as Box<dyn Candidate + '_>);
            entrants.push(Entrant::new(method.name(), kind, boxed));
        }
        let all: Vec<_> = (0..entrants.len()).collect();
        let verified = [calls(bytes[1])];
        let again = match bytes[1] <= VERIFIED_TWICE {
            true => &verified[..],
            false => &[],
        };
        let times = stage.measure(&mut entrants, &all, verifier, [&verified, again])?;
        let rows = entrants.iter().zip(&times);
        let mut rows: Vec<_> = rows.map(|(one, times)| one.row(times.as_ref())).collect();
        if let Some(peers) = &settings.peers {
            let figures = peers.of_size(operation, size, world, call.dtype);
            rows.extend(figures.map(|(name, ms)| Row::of_peer(name, ms)));
        }
        let on = Operands::Message {
            size,
            input_bytes: bytes[0],
            output_bytes: bytes[1],
        };
        let least = least_bytes(operation, bytes[0], world);
        let links = self.run.links.as_ref().filter(|_| least > 0);
        let (name, dtype) = (operation.name().into(), call.dtype.name().into());
        Ok(Outcome {
            limit: links.map(|links| Limit::of_transfer(least, links.bandwidth_gb_s)),
            selected: selected.map(|variant| variant.name().into()),
            rows,
            ..Outcome::new(Some(name), on, dtype, world)
        }
        .compared())
    }

    /// The variant that the library chooses for symmetric operands, where that is wanted.
    fn selected(
        &self,
        means: &Means<'_, B>,
        mut call: Collective,
        bytes: [usize; 2],
    ) -> Result<Option<Variant>> {
        let mut operands = means.arena.operands(Place::Multicast, bytes)?;
        if operands.is_none() {
            operands = means.arena.operands(Place::Symmetric, bytes)?;
        }
        let wanted = wants(&self.run.settings.implementations, SELECT);
        let Some([input, output]) = operands.filter(|_| wanted) else {
            return Ok(None);
        };
        (call.input, call.output) = (input, output);
        match self.ours.select(&call) {
            Err(error) if error.is_unavailable() => Ok(None),
            other => Ok(Some(other?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verification::possible;

    #[test]
    fn large_outputs_are_verified_by_fewer_calls() {
        let forms = |bytes: usize, has_graph| -> Vec<_> {
            let calls = possible(&calls(bytes), has_graph).into_iter();
            calls.map(|(how, set)| (how, set.index)).collect()
        };
        assert_eq!(forms(4096, true).len(), 6);
        assert_eq!(forms(4096, false).len(), 3);
        assert_eq!(forms(1 << 30, true), [(Call::Run, 0), (Call::Replay, 1)]);
        assert_eq!(forms(1 << 30, false), [(Call::Run, 0)]);
    }
}
