//! Schedules on the host: every algorithm, with the caller's own operands and another M on each call, on one
//! arena.

use crate::fixtures::{Rank, on_ranks};
use crate::gathers::stored;
use crate::host;
use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::execute::{DeviceSlice, ExecuteBackend, Operands, Prepared};
use warpweave_overlap::operation::Matrix;
use warpweave_overlap::plan::{Problem, Role};
use warpweave_overlap::schedule::Schedule;
use warpweave_symm_mem::{Backend, DType, Host, Memory};

/// The memory of the operands of a call, by name, each of exactly the bytes that it needs.
pub struct Call<B: Backend> {
    memory: Vec<(&'static str, B::Memory)>,
    wanted: Vec<u8>,
    m: usize,
}

impl<B: ExecuteBackend> Call<B> {
    /// Inputs of call `number`, and a result of another value.
    pub fn new(rank: &Rank<B>, schedule: &Schedule, m: usize, number: usize) -> Self {
        let (backend, stream) = (rank.backend(), rank.stream());
        let problem = schedule.problem_of(m).unwrap();
        let operands = schedule.operands(rank.place().0, m).unwrap();
        let biased = operands.iter().any(|o| o.matrix == Matrix::Bias);
        let mut wanted = Vec::new();
        let memory = operands.iter().map(|operand| {
            let bytes = stored(operand, &problem, number, biased);
            let memory = backend.allocate(bytes.len().max(1)).unwrap();
            let image = match operand.role() {
                Role::Output => vec![0xff; bytes.len()],
                _ => bytes.clone(),
            };
            if operand.matrix == Matrix::C {
                wanted = bytes;
            }
            // SAFETY: the memory is as large as the image and nobody else knows it.
            unsafe { backend.upload(stream, memory.address(), &image).unwrap() };
            (operand.buffer, memory)
        });
        let memory = memory.collect();
        Call { memory, wanted, m }
    }

    fn named(&self, name: &str) -> Option<DeviceSlice<'_>> {
        let found = self.memory.iter().find(|(known, _)| *known == name);
        found.map(|(_, memory)| DeviceSlice::of(memory))
    }

    pub fn operands(&self) -> Operands<'_> {
        let of = |name| self.named(name).unwrap();
        let operands = Operands::new(of("a"), of("b"), of("c"));
        let operands = match self.named("bias") {
            Some(bias) => operands.with_bias(bias),
            None => operands,
        };
        match (self.named("x"), self.named("y")) {
            (Some(x), Some(y)) => operands.with_gathered(x, y),
            _ => operands,
        }
    }

    pub fn is_right(&self, rank: &Rank<B>) -> bool {
        let c = self.named("c").unwrap().address(0);
        let mut got = vec![0; self.wanted.len()];
        // SAFETY: C has so many bytes.
        unsafe { rank.backend().download(rank.stream(), c, &mut got).unwrap() };
        got == self.wanted
    }
}

/// Prepares them all, largest M `most`; those that this machine cannot do are left out.
fn prepare(rank: &Rank<Host>, some: &[Configuration], problem: &Problem) -> Vec<Prepared<Host>> {
    let world = rank.place().1;
    let prepared = some.iter().map(|configuration| {
        let schedule = Schedule::new(configuration.clone(), world, *problem).unwrap();
        rank.executor.prepare(&schedule).unwrap()
    });
    prepared.collect()
}

#[test]
fn every_schedule_computes_at_any_m_with_the_callers_operands() {
    let all: Vec<Configuration> = algorithms::every();
    for world in 1..=4 {
        for some in all.chunks(12) {
            let problem = Problem::new(36, 10, 18, DType::F32).with_multicast(true);
            on_ranks(world, host, |rank| {
                let prepared = prepare(&rank, some, &problem);
                // Calls of all schedules follow each other, each with another M.
                let ms = [36, 1, 9, 35, 2, 23, 5, 36];
                let mut number = 0;
                let mut calls = Vec::new();
                for (round, _) in ms.iter().enumerate() {
                    for (index, one) in prepared.iter().enumerate() {
                        let m = ms[(round + index) % ms.len()];
                        if !divides(one.schedule(), m, world) {
                            continue;
                        }
                        number += 1;
                        let call = Call::new(&rank, one.schedule(), m, number);
                        one.run(rank.stream(), &call.operands(), m).unwrap();
                        calls.push((one, call));
                    }
                }
                for (one, call) in &calls {
                    one.synchronize(rank.stream()).unwrap();
                    let name = one.schedule().configuration().name();
                    assert!(
                        call.is_right(&rank),
                        "{name} at M = {} of {world} ranks",
                        call.m
                    );
                }
                rank.exchange.barrier("end").unwrap();
            });
        }
    }
}

/// Whether there is a collective for it: over symmetric memory a reduce-scatter has shards of one size.
fn divides(schedule: &Schedule, m: usize, world: usize) -> bool {
    let name = schedule.configuration().name();
    name != "matmulThenReduceScatter:transport=symmetric" || m.is_multiple_of(world)
}
