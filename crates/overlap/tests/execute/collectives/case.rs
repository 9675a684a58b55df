//! A collective with its plan, its inputs and what it must give.

use warpweave_overlap::execute::{Bound, ExecuteBackend, Result};
use warpweave_overlap::plan::{
    BufferId, Collective, Placement, Plan, PlanBuilder, Role, StreamId, Transport, shard,
};
use warpweave_symm_mem::DType;

use crate::fixtures::{element, encode, matrix};

const COLS: usize = 5;
pub const TRANSPORTS: [Transport; 2] = [Transport::Nccl, Transport::SymmetricMemory];
pub const COLLECTIVES: [Collective; 3] = [
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::AllReduce,
];

/// One collective of `ranks`, each of which gives rows of `input` and gets rows of `output`.
#[derive(Clone, Debug)]
pub struct Case {
    pub collective: Collective,
    pub transport: Transport,
    pub dtype: DType,
    /// Rows of all shards.
    pub rows: usize,
    pub placement: Placement,
    pub in_place: bool,
}

impl Case {
    /// Rows of the shard at `place` of `ranks`.
    fn shard(&self, place: usize, ranks: usize) -> std::ops::Range<usize> {
        shard(self.rows, place, ranks)
    }

    /// The plan of `rank`, which takes part in each of `sets` that has it, one after the other.
    pub fn plan(&self, rank: usize, world: usize, node_size: usize, sets: &[Vec<usize>]) -> Plan {
        let mut plan = PlanBuilder::new("collective", rank, world);
        plan.nodes_of(node_size);
        let (rows, role) = (self.rows.max(1), Role::Input);
        let mut buffer = |name: String, role| -> BufferId {
            plan.buffer(name, self.placement, role, self.dtype, (rows, COLS))
        };
        let pairs: Vec<_> = (0..sets.len())
            .map(|i| match self.in_place {
                true => {
                    let both = buffer(format!("in{i}"), role);
                    (both, both)
                }
                false => (
                    buffer(format!("in{i}"), role),
                    buffer(format!("out{i}"), Role::Staging),
                ),
            })
            .collect();
        for (set, (input, output)) in sets.iter().zip(pairs) {
            let Some(place) = set.iter().position(|&r| r == rank) else {
                continue;
            };
            let own = self.shard(place, set.len());
            let (given, got) = self.collective.rows(self.rows, place, set.len());
            // In place a shard lies where it belongs; otherwise it begins at the first row.
            let at = |rows: usize, whole: bool| match (whole, self.in_place) {
                (false, true) => own.clone(),
                _ => 0..rows,
            };
            let (gives_all, gets_all) = match self.collective {
                Collective::AllGather => (false, true),
                Collective::ReduceScatter => (true, false),
                _ => (true, true),
            };
            let src = plan.own(input, at(given, gives_all), 0..COLS);
            let dst = plan.own(output, at(got, gets_all), 0..COLS);
            plan.collective_of(
                StreamId::MAIN,
                self.collective,
                (src, dst),
                set.clone(),
                self.transport,
            );
        }
        plan.finish().unwrap()
    }

    /// What `rank` gives to the set `number` in a call.
    fn given(&self, rank: usize, number: usize, call: usize) -> usize {
        (rank * 10 + number) * 100 + call
    }

    /// What the set `number` has computed in a call, by the definition: rows of the result of the rank at
    /// `place`.
    fn wanted(&self, set: &[usize], number: usize, place: usize, call: usize) -> Vec<u8> {
        let value = |rank: usize, row: usize, col: usize| {
            element(self.given(rank, number, call), call, row, col)
        };
        let rows = match self.collective {
            Collective::ReduceScatter => self.shard(place, set.len()),
            _ => 0..self.rows,
        };
        let owner = |row: usize| {
            let owns = |&place: &usize| self.shard(place, set.len()).contains(&row);
            set[(0..set.len()).find(owns).unwrap()]
        };
        let one = |row: usize, col: usize| match self.collective {
            Collective::AllGather => value(owner(row), row, col),
            _ => set.iter().map(|&rank| value(rank, row, col)).sum(),
        };
        let places = rows.flat_map(|row| (0..COLS).map(move |col| (row, col)));
        encode(self.dtype, places.map(|(row, col)| one(row, col)))
    }

    /// Runs `calls` calls, odd ones as replays, and compares every result.
    pub fn is_right<B: ExecuteBackend>(
        &self,
        bound: &mut Bound<B>,
        sets: &[Vec<usize>],
        calls: usize,
    ) -> Result<()> {
        let rank = bound.plan().rank;
        let bytes = COLS * self.dtype.size();
        bound.capture()?;
        for call in 0..calls {
            for (i, set) in sets.iter().enumerate() {
                let Some(place) = set.iter().position(|&r| r == rank) else {
                    continue;
                };
                let own = self.shard(place, set.len());
                let given = (self.given(rank, i, call), call);
                let mut input = matrix(self.dtype, given, 0..self.rows.max(1), COLS);
                if self.collective == Collective::AllGather && !self.in_place {
                    input = matrix(self.dtype, given, own, COLS);
                }
                bound.write(&format!("in{i}"), &input)?;
            }
            match call % 2 {
                0 => bound.run()?,
                _ => bound.replay()?,
            }
            for (i, set) in sets.iter().enumerate() {
                let Some(place) = set.iter().position(|&r| r == rank) else {
                    continue;
                };
                let name = if self.in_place { "in" } else { "out" };
                let mut all = vec![0; self.rows.max(1) * bytes];
                bound.read(&format!("{name}{i}"), &mut all)?;
                let wanted = self.wanted(set, i, place, call);
                let first = match (self.collective, self.in_place) {
                    (Collective::ReduceScatter, true) => self.shard(place, set.len()).start,
                    _ => 0,
                };
                let got = &all[first * bytes..][..wanted.len()];
                assert!(
                    got == wanted,
                    "{self:?}, rank {rank} of {set:?}, call {call}"
                );
            }
        }
        bound.synchronize()
    }
}

/// All collectives by all transports among all ranks, whose shards are even or not.
pub fn cases(world: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for collective in COLLECTIVES {
        for transport in TRANSPORTS {
            for dtype in [DType::F32, DType::F16, DType::Bf16] {
                for placement in [Placement::Local, Placement::Symmetric] {
                    for (rows, in_place) in [
                        (4 * world, false),
                        (4 * world, true),
                        (3 * world + 1, dtype == DType::F32),
                    ] {
                        cases.push(Case {
                            collective,
                            transport,
                            dtype,
                            rows,
                            placement,
                            in_place,
                        });
                    }
                }
            }
        }
    }
    cases
}
