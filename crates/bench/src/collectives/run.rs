//! Measures the sizes of a run one after the other: allocates memory, then measures the rows of each
//! operation.

use std::rc::Rc;

use warpweave_comm::collective::{Call, CollectiveOptions};
use warpweave_gemm::Gemm;
use warpweave_report::{Bytes, Limit, Operands, Outcome, Report, Row, SELECT};

use super::candidate::{Row as Entry, Table};
use super::decode;
use super::memory::{Arena, SETS};
use super::method::{Libraries, Method, wants};
use super::nccl::NcclBackend;
use super::operation::{bytes_of, call_of, least_bytes, place};
use crate::candidate::{Entrant, Form};
use crate::error::Result;
use crate::inputs::Numbers;
use crate::suite::{Run, Stage};
use crate::verification::{Batch, batch};

/// Outputs of at most this many bytes are verified again after the timing.
const VERIFIED_TWICE: usize = 4 << 20;

/// Bytes of outputs, at the most, that calls without synchronisation between them leave to be compared; two
/// calls are made however large their outputs are.
const KEPT: usize = 256 << 20;

/// The calls that are verified, in order, enqueued directly and as graph launches: every set in both forms
/// where outputs are small.
fn calls(output_bytes: usize) -> Batch {
    let [run, replay] = [Form::Run, Form::Replay].map(|form| batch(form, Numbers::Integers, SETS));
    match output_bytes * 2 * SETS <= KEPT {
        true => [run, replay].concat(),
        false => vec![run[0], replay[1]],
    }
}

/// Adds the results of all sizes to `report`, by the places of their tables. Collective.
pub(crate) fn measure<B: NcclBackend>(
    run: &Run<'_, B>,
    report: &mut Report,
    each: &mut dyn FnMut(&Report) -> Result<()>,
) -> Result<()> {
    let (session, settings) = (run.session, run.settings);
    let (dtype, world) = (settings.message_dtype(), session.world());
    report.peers = settings.peers.as_ref().map(|peers| peers.by.clone());
    // The suite `decode` has GEMMs, and, as an engine does, collectives with the default options on plain
    // memory.
    let (gemm, staging) = match settings.suite.is_of_decode() {
        true => {
            let staging = CollectiveOptions::default().staging_bytes;
            (Some(Rc::new(Gemm::new(&session.backend)?)), staging)
        }
        false => (None, 0),
    };
    let largest = settings.sizes.last().map_or(0, |size| size.0);
    run.progress.at(0, 1, "NCCL");
    let libraries = Libraries::new(session, largest.max(staging), &settings.implementations)?;
    let libraries = Rc::new(libraries);
    let mut results = Vec::new();
    for (i, &size) in settings.sizes.iter().enumerate() {
        let span = tracing::info_span!("bench.size", size = %size);
        let _entered = span.enter();
        let mut stage = Stage::new(run, (i, settings.sizes.len()), size.to_string());
        stage.at("inputs");
        let calls = match gemm.is_some() {
            true => vec![decode::call(dtype, size, world)],
            false => {
                let all = settings.operations.iter();
                all.map(|&operation| call_of(operation, dtype, size.0, world))
                    .collect()
            }
        };
        let all = calls.iter().map(|call| bytes_of(call, world));
        let most = all.fold([1, 1], |[a, b], [c, d]| [a.max(c), b.max(d)]);
        let arena = Rc::new(Arena::new(&libraries, most, dtype, gemm.is_some())?);
        for call in calls {
            let tables = match &gemm {
                Some(gemm) => decode::tables(&arena, gemm, call)?,
                None => vec![table(&arena, call)?],
            };
            for table in tables {
                stage.label = format!("{size}: {}", table.name);
                let place = table.place;
                results.push((place, outcome_of(&mut stage, table, (call, size))?));
            }
        }
        if let Some(arena) = Rc::into_inner(arena) {
            arena.close()?;
        }
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

/// The methods of one operation.
fn table<'a, B: NcclBackend>(arena: &Rc<Arena<'a, B>>, call: Call) -> Result<Table<'a>> {
    let (operation, wanted) = (call.operation, &arena.libraries.wanted);
    let selected = match wants(wanted, SELECT) {
        true => arena.select(call)?,
        false => None,
    };
    let mut methods = Method::of(operation, wanted);
    // A choice has a row, also where only the choice was asked for.
    let chosen = selected.map(Method::Ours);
    methods.extend(chosen.filter(|method| !methods.contains(method)));
    let entrant = |method: Method| {
        let made = Entry::new(arena, method, call, None)?;
        Ok(Entrant::new(method.name(), method.kind(), made))
    };
    Ok(Table {
        place: place(operation),
        name: operation.name(),
        entrants: methods.into_iter().map(entrant).collect::<Result<_>>()?,
        selected,
        is_call_alone: true,
    })
}

/// Measures the rows of a table, which make `call`. Collective.
fn outcome_of<B: NcclBackend>(
    stage: &mut Stage<'_, B>,
    mut table: Table<'_>,
    (call, size): (Call, Bytes),
) -> Result<Outcome> {
    let world = stage.run.session.world();
    let bytes = bytes_of(&call, world);
    let all: Vec<_> = (0..table.entrants.len()).collect();
    let verified = [calls(bytes[1])];
    let again = match bytes[1] <= VERIFIED_TWICE {
        true => &verified[..],
        false => &[],
    };
    let times = stage.measure(&mut table.entrants, &all, [&verified, again])?;
    let rows = table.entrants.iter().zip(&times);
    let rows = rows.map(|(one, times)| one.row(times.as_ref()));
    let on = Operands::Message {
        size,
        input_bytes: bytes[0],
        output_bytes: bytes[1],
    };
    let least = least_bytes(call.operation, bytes[0], world);
    let links = stage.run.links.as_ref();
    let links = links.filter(|_| least > 0 && table.is_call_alone);
    let dtype = call.dtype.name();
    let peers = stage.run.settings.peers.iter();
    let peers = peers.flat_map(|peers| peers.of_size(table.name, size, world, dtype));
    let outcome = Outcome {
        limit: links.map(|links| Limit::of_transfer(least, links.bandwidth_gb_s)),
        rows: rows
            .chain(peers.map(|(name, ms)| Row::of_peer(name, ms)))
            .collect(),
        selected: table.selected.map(|variant| variant.name().into()),
        ..Outcome::new(Some(table.name.into()), on, dtype.into(), world)
    };
    Ok(outcome.compared())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verification::possible;

    #[test]
    fn large_outputs_are_verified_by_fewer_calls() {
        let forms = |bytes: usize, has_graph| -> Vec<_> {
            let calls = possible(&calls(bytes), has_graph).into_iter();
            calls.map(|(form, set)| (form, set.index)).collect()
        };
        assert_eq!(forms(4096, true).len(), 6);
        assert_eq!(forms(4096, false).len(), 3);
        assert_eq!(forms(1 << 30, true), [(Form::Run, 0), (Form::Replay, 1)]);
        assert_eq!(forms(1 << 30, false), [(Form::Run, 0)]);
    }
}
