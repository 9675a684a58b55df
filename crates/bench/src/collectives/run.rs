//! The sizes of a run, one after the other: the memory of each, its operations, and the rows of each.

use std::rc::Rc;

use warpweave_comm::collective::Call as Collective;
use warpweave_report::{Bytes, Kind, Limit, Operands, Outcome, Report, Row, SELECT};

use super::candidate::{Libraries, Row as Entry, bytes_of, call_of};
use super::memory::{Arena, SETS};
use super::method::{Method, wants};
use super::nccl::NcclBackend;
use super::operation::{least_bytes, place};
use crate::candidate::{Call, Entrant};
use crate::error::Result;
use crate::inputs::Numbers;
use crate::suite::{Run, Stage};
use crate::verification::{Batch, Verifier, batch};

/// Outputs of at most so many bytes are verified again after the timing.
const VERIFIED_TWICE: usize = 4 << 20;

/// Outputs that are kept side by side, for calls that follow each other without synchronisation, take this
/// many bytes at the most, but for two calls.
const KEPT: usize = 256 << 20;

/// The calls that are verified, in order: as they are and as graphs, every set in both forms where outputs
/// are small.
fn calls(output_bytes: usize) -> Batch {
    let [run, replay] = [Call::Run, Call::Replay].map(|how| batch(how, Numbers::Integers, SETS));
    match output_bytes * 2 * SETS <= KEPT {
        true => [run, replay].concat(),
        false => vec![run[0], replay[1]],
    }
}

/// Adds the results of all sizes to `report`, by operation. Collective.
pub(crate) fn measure<B: NcclBackend>(
    run: &Run<'_, B>,
    report: &mut Report,
    each: &mut dyn FnMut(&Report) -> Result<()>,
) -> Result<()> {
    let peers = run.settings.peers.as_ref();
    report.peers = peers.map(|peers| peers.by.clone());
    measure_sizes(run, 0, report, each, of_size)
}

/// Adds the results of all sizes to `report`, by the places that `of_size` gives them. Ours have staging
/// memory for messages of at least so many bytes. Collective.
pub(super) fn measure_sizes<'a, B: NcclBackend>(
    run: &'a Run<'_, B>,
    least_staging: usize,
    report: &mut Report,
    each: &mut dyn FnMut(&Report) -> Result<()>,
    of_size: impl Fn(&Rc<Libraries<'a, B>>, Stage<'a, B>, Bytes) -> Result<Vec<(usize, Outcome)>>,
) -> Result<()> {
    let Run {
        session, settings, ..
    } = run;
    let largest = settings.sizes.last().map_or(0, |size| size.0);
    let largest = largest.max(least_staging);
    run.progress.at(0, 1, "NCCL");
    let libraries = Libraries::new(session, largest, &settings.implementations)?;
    let libraries = Rc::new(libraries);
    let mut results = Vec::new();
    for (i, &size) in settings.sizes.iter().enumerate() {
        let span = tracing::info_span!("bench.size", size = %size);
        let _entered = span.enter();
        let stage = Stage {
            run,
            place: (i, settings.sizes.len()),
            label: size.to_string(),
        };
        results.extend(of_size(&libraries, stage, size)?);
        // Sizes come in order, and the sort is stable.
        results.sort_by_key(|(place, _)| *place);
        let outcomes = results.iter().map(|(_, outcome)| outcome.clone());
        report.results = outcomes.collect();
        each(report)?;
    }
    match Rc::into_inner(libraries) {
        Some(all) => Ok(all.ours.close(&session.stream, session.exchange.as_ref())?),
        None => Ok(()),
    }
}

/// Measures every operation at a size. Collective.
fn of_size<'a, B: NcclBackend>(
    libraries: &Rc<Libraries<'a, B>>,
    stage: Stage<'a, B>,
    size: Bytes,
) -> Result<Vec<(usize, Outcome)>> {
    let (session, settings) = (stage.run.session, stage.run.settings);
    stage.at("inputs");
    let (dtype, world) = (settings.message_dtype(), session.world());
    let operations = settings.operations.iter();
    let calls = operations.map(|&operation| call_of(operation, dtype, size.0, world));
    let calls: Vec<_> = calls.collect();
    let all = calls.iter().map(|call| bytes_of(call, world));
    let most = all.fold([1, 1], |[a, b], [c, d]| [a.max(c), b.max(d)]);
    let arena = Rc::new(libraries.arena(most, dtype, false)?);
    let mut verifier = Verifier::default();
    let mut outcomes = Vec::new();
    for call in calls {
        let stage = Stage {
            label: format!("{size}: {}", call.operation),
            ..stage
        };
        let outcome = of_call(&stage, libraries, &arena, (call, size), &mut verifier)?;
        outcomes.push((place(call.operation), outcome));
    }
    if let Some(arena) = Rc::into_inner(arena) {
        arena.close(session)?;
    }
    Ok(outcomes)
}

/// One operation at a size.
fn of_call<'a, B: NcclBackend>(
    stage: &Stage<'a, B>,
    libraries: &Rc<Libraries<'a, B>>,
    arena: &Rc<Arena<B>>,
    (call, size): (Collective, Bytes),
    verifier: &mut Verifier<B>,
) -> Result<Outcome> {
    let (settings, world) = (stage.run.settings, stage.run.session.world());
    let operation = call.operation;
    let selected = match wants(&settings.implementations, SELECT) {
        true => arena.select(&libraries.ours, call)?,
        false => None,
    };
    let mut methods = Method::of(operation, &settings.implementations);
    // A choice has a row, also where only the choice was asked for.
    let chosen = selected.map(Method::Ours);
    methods.extend(chosen.filter(|method| !methods.contains(method)));
    let mut entrants = Vec::new();
    for method in methods {
        let kind = match method {
            Method::Nccl | Method::NcclWindow => Kind::Nccl,
            Method::Ours(_) => Kind::Ours,
        };
        let made = Entry::new(libraries, arena, method, call, None)?;
        entrants.push(Entrant::new(method.name(), kind, made));
    }
    let mut outcome = outcome_of(stage, entrants, (operation.name(), call, size), verifier)?;
    if let Some(peers) = &settings.peers {
        let figures = peers.of_size(operation.name(), size, world, call.dtype.name());
        let figures = figures.map(|(name, ms)| Row::of_peer(name, ms));
        outcome.rows.extend(figures);
    }
    outcome.selected = selected.map(|variant| variant.name().into());
    Ok(outcome.compared())
}

/// Measures `entrants`, which compute `name` by calls like this one. The limit is that of its links.
/// Collective.
pub(super) fn outcome_of<B: NcclBackend>(
    stage: &Stage<'_, B>,
    mut entrants: Vec<Entrant<'_>>,
    (name, call, size): (&str, Collective, Bytes),
    verifier: &mut Verifier<B>,
) -> Result<Outcome> {
    let world = stage.run.session.world();
    let bytes = bytes_of(&call, world);
    let all: Vec<_> = (0..entrants.len()).collect();
    let verified = [calls(bytes[1])];
    let again = match bytes[1] <= VERIFIED_TWICE {
        true => &verified[..],
        false => &[],
    };
    let times = stage.measure(&mut entrants, &all, verifier, [&verified, again])?;
    let rows = entrants.iter().zip(&times);
    let on = Operands::Message {
        size,
        input_bytes: bytes[0],
        output_bytes: bytes[1],
    };
    let least = least_bytes(call.operation, bytes[0], world);
    let links = stage.run.links.as_ref().filter(|_| least > 0);
    let dtype = call.dtype.name().into();
    Ok(Outcome {
        limit: links.map(|links| Limit::of_transfer(least, links.bandwidth_gb_s)),
        rows: rows.map(|(one, times)| one.row(times.as_ref())).collect(),
        ..Outcome::new(Some(name.to_owned()), on, dtype, world)
    })
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
