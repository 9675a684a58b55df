//! Calls of several numbers of rows back to back.

use std::time::Duration;

use warpweave_gemm::host::Element;
use warpweave_gemm::matmul_reduce::ReduceOutput;
use warpweave_gemm::{AllGatherOperands, GemmProblem, ReduceOperands};
use warpweave_symm_mem::Memory;

use crate::Kernels;
use crate::families::Family;
use crate::rank::{Limits, PLACES, Rank};
use crate::values::{Random, shards};

impl<B: Kernels> Rank<B> {
    /// Calls back to back, with nothing between them that waits on the host, of several numbers of rows:
    /// they alternate between two stagings, by the eager protocol and in one shot.
    pub fn varying<E: Element, T: Element>(&mut self, number: u64) {
        const PREPARED: usize = PLACES / 2;
        let (rank, world) = (self.exchange.rank(), self.exchange.world());
        let random = &mut Random::with_seed(number);
        let matrix = self.make::<E, T>(number, random);
        let n = matrix.problem.n;
        let Limits { rows, most, .. } = self.limits;
        let mut prepared = Vec::new();
        for place in 0..PREPARED {
            let m = 1 + random.usize(..most);
            let start = random.usize(..=rows - m);
            let shards = shards(random, m, world);
            let problem = GemmProblem {
                m,
                ..matrix.problem
            };
            let own = start + shards[rank].start;
            let eager = self.gather(problem, shards, None, None);
            let each = self.reduction(problem, Vec::new(), (ReduceOutput::Each, 0), None);
            // By the eager protocol nobody else reads A.
            let a = self.rows_of(&problem, self.at.first_a, own, 2 * place);
            let on_all = |address| std::iter::repeat_n(address, world).collect();
            let gathers = self.gathers(&eager, [a.elements, a.scales].map(on_all));
            let reduces = self.reduces(&each, start, 2 * place + 1);
            prepared.push((
                start..start + m,
                self.backend
                    .prepare_all_gather(&self.handle, &eager)
                    .unwrap(),
                gathers,
                self.backend.prepare_reduce(&self.handle, &each).unwrap(),
                reduces,
            ));
        }
        let calls: Vec<_> = (0..self.limits.calls)
            .map(|_| (random.usize(..PREPARED), random.bool()))
            .collect();
        let c_bytes = (2 * most * n).next_multiple_of(256);
        let results = self.backend.allocate(calls.len() * c_bytes).unwrap();
        let late = &mut Random::with_seed(number ^ rank as u64);
        self.synchronize();
        self.barrier("prepared");
        for (call, &(which, gathered)) in calls.iter().enumerate() {
            let c = results.address().add(call * c_bytes);
            let (_, eager, gathers, each, reduces) = &prepared[which];
            if late.usize(..3) == 0 {
                let time = Duration::from_micros(late.u64(50..250));
                self.backend.delay(&self.stream, time).unwrap();
            }
            // SAFETY: all matrices are there until the stream is drained; all ranks launch the same.
            unsafe {
                match gathered {
                    true => {
                        let operands = AllGatherOperands { c, ..*gathers };
                        self.backend
                            .all_gather_matmul(&self.stream, eager, &operands)
                    }
                    false => {
                        let operands = ReduceOperands {
                            c: c.into(),
                            ..*reduces
                        };
                        self.backend.matmul_reduce(&self.stream, each, &operands)
                    }
                }
                .unwrap();
            }
        }
        self.synchronize();
        self.pad.check(&self.stream).unwrap();
        for (call, &(which, gathered)) in calls.iter().enumerate() {
            let rows = &prepared[which].0;
            let wanted = match gathered {
                true => &matrix.gathered,
                false => &matrix.reduced,
            };
            let from = results.address().add(call * c_bytes);
            let got = self.download::<T>(from, rows.len() * n);
            let is_equal =
                |(got, wanted): (&T, &T)| got.to_f64().to_bits() == wanted.to_f64().to_bits();
            let mut pairs = got.iter().zip(&wanted[rows.start * n..]);
            assert!(
                pairs.all(is_equal),
                "rank {rank} of {world}, call {call} of rows {rows:?}, gathered: {gathered}"
            );
            let family = if gathered {
                Family::Eager
            } else {
                Family::Each
            };
            self.counts.families[family as usize] += 1;
            self.counts.rows += rows.len();
        }
        self.barrier("compared");
    }
}
