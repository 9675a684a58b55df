//! All-reduces that are followed by a residual addition and RMSNorm, against a GEMM and then comm's own call.

use std::collections::BTreeMap;
use std::time::Duration;

use warpweave_comm::collective::Quantized as CommQuantized;
use warpweave_comm::{AddRmsNorm as CommNorm, CollectiveOptions, Collectives};
use warpweave_overlap::execute::{DeviceSlice, ExecuteBackend, ExecuteError};
use warpweave_overlap::plan::{
    AddRmsNorm, Batch, OpKind, Placement, Plan, PlanBuilder, Quantized, Role, StreamId, Transport,
};
use warpweave_symm_mem::{DType, Host, Memory};

use crate::cuda::{gpu, world};
use crate::fixtures::{Rank, encode, on_ranks};
use crate::host;

const EPSILON: f32 = 3e-5;

/// A row-parallel layer with its norm.
#[derive(Clone, Copy, Debug)]
struct Layer {
    dtype: DType,
    m: usize,
    n: usize,
    k: usize,
    transport: Transport,
    /// Where the partials lie.
    placement: Placement,
    /// Whether the normalized rows replace the partials.
    in_place: bool,
    /// Whether they are there in e4m3, too.
    quantizes: bool,
}

/// Outputs: the normalized rows, which have a name of their own in place, the new residual, and where rows
/// are quantized their e4m3 and its scales.
const OUTPUTS: [&str; 4] = ["c", "residual_out", "values", "scales"];

/// Outputs by the layer and call that they are of, on one rank.
type Known = BTreeMap<String, Vec<Vec<u8>>>;

/// Numbers whose sums are rounded, in [-2, 2).
fn real(seed: usize, place: usize) -> f32 {
    let mixed = (seed * 1_000_003 + place + 1) as u64;
    let mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    mixed as f32 / (1 << 22) as f32 - 2.0
}

impl Layer {
    fn plan(&self, (rank, world): (usize, usize), norm: bool) -> Plan {
        let Layer { m, n, k, dtype, .. } = *self;
        let mut plan = PlanBuilder::new("layer", rank, world);
        let mut typed = |name, placement, role, dtype, shape| {
            let id = plan.buffer(name, placement, role, dtype, shape);
            plan.whole(id)
        };
        let mut buffer = |name, placement, role, shape| typed(name, placement, role, dtype, shape);
        let local = Placement::Local;
        let a = buffer("a", local, Role::Input, (m, k));
        let b = buffer("b", local, Role::Weight, (n, k));
        let partial = match norm {
            true => buffer("partial", self.placement, Role::Staging, (m, n)),
            false => buffer("partial", local, Role::Output, (m, n)),
        };
        let residual = buffer("residual", local, Role::Input, (m, n));
        let weight = buffer("weight", local, Role::Weight, (1, n));
        let (main, linear) = (StreamId::MAIN, (a, b, None));
        if !norm {
            plan.linear(main, linear, partial, Batch::ONE);
            return plan.finish().unwrap();
        }
        let c = match self.in_place {
            true => partial.clone(),
            false => buffer("c", local, Role::Output, (m, n)),
        };
        let residual_out = buffer("residual_out", local, Role::Output, (m, n));
        let norm = AddRmsNorm {
            residual,
            weight,
            residual_out,
            epsilon: EPSILON,
            quantized: self.quantizes.then(|| Quantized {
                values: typed("values", local, Role::Output, DType::E4m3, (m, n)),
                scales: typed("scales", local, Role::Output, DType::F32, (m, 1)),
            }),
        };
        plan.linear(main, linear, partial.clone(), Batch::ONE)
            .all_reduce_add_rms_norm(main, (partial, c), norm, self.transport);
        plan.finish().unwrap()
    }

    /// What a buffer of `rank` holds in a call: what is sharded is another on each rank.
    fn image(&self, name: &str, rank: usize, call: usize) -> Vec<u8> {
        let Layer { m, n, k, .. } = *self;
        let (seed, elements) = match name {
            "a" => (10 + 100 * call + rank, m * k),
            "b" => (30 + rank, n * k),
            "residual" => (50 + 100 * call, m * n),
            _ => (70, n),
        };
        let values = (0..elements).map(|place| real(seed, place));
        encode(self.dtype, values)
    }

    /// The [outputs](OUTPUTS), of a GEMM and comm's call. They are `known` of layers that differ in what does
    /// not matter.
    fn wanted<B: ExecuteBackend>(
        &self,
        rank: &Rank<B>,
        known: &mut Known,
        call: usize,
    ) -> Vec<Vec<u8>> {
        let key = format!("{:?}", (self.dtype, self.m, self.n, self.k, call));
        let all = known.entry(key);
        let all = all.or_insert_with(|| self.reference(rank, call));
        all[..if self.quantizes { 4 } else { 2 }].to_vec()
    }

    fn reference<B: ExecuteBackend>(&self, rank: &Rank<B>, call: usize) -> Vec<Vec<u8>> {
        let (backend, stream) = (rank.backend(), rank.stream());
        let me = rank.place().0;
        let gemm = rank.bind(self.plan(rank.place(), false)).unwrap();
        for name in ["a", "b"] {
            gemm.write(name, &self.image(name, me, call)).unwrap();
        }
        gemm.run().unwrap();
        let bytes = self.m * self.n * self.dtype.size();
        let mut partial = vec![0; bytes];
        gemm.read("partial", &mut partial).unwrap();
        let memory = |image: &[u8]| {
            let memory = backend.allocate(image.len()).unwrap();
            // SAFETY: the memory is as large as the image and nobody else knows it.
            unsafe { backend.upload(stream, memory.address(), image).unwrap() };
            memory
        };
        let residual = self.image("residual", me, call);
        let weight = self.image("weight", me, call);
        let [input, residual] = [&partial, &residual].map(|image| memory(image));
        let weight = memory(&weight);
        let outputs =
            [bytes, bytes, self.m * self.n, 4 * self.m].map(|bytes| memory(&vec![0; bytes]));
        let [normalized, sum, values, scales] = outputs.each_ref().map(DeviceSlice::of);
        let options = CollectiveOptions::default();
        let name = format!("reference {self:?} {call}");
        let collectives = Collectives::new(backend, &rank.exchange, &name, options).unwrap();
        let norm = CommNorm {
            dtype: self.dtype,
            hidden: self.n,
            epsilon: EPSILON,
            input: DeviceSlice::of(&input),
            residual: DeviceSlice::of(&residual),
            weight: DeviceSlice::of(&weight),
            residual_out: sum,
            normalized: Some(normalized),
            quantized: Some(CommQuantized { values, scales }),
        };
        collectives.all_reduce_add_rms_norm(stream, &norm).unwrap();
        let results = outputs.iter().map(|memory| {
            let mut image = vec![0; memory.bytes()];
            // SAFETY: the memory has so many bytes.
            unsafe {
                backend
                    .download(stream, memory.address(), &mut image)
                    .unwrap()
            };
            image
        });
        let results = results.collect();
        collectives.check(stream).unwrap();
        rank.exchange.barrier("reference").unwrap();
        results
    }

    /// Compares every bit of some calls, odd ones replayed.
    fn is_right<B: ExecuteBackend>(&self, rank: &Rank<B>, known: &mut Known) {
        let me = rank.place().0;
        let mut bound = rank.bind(self.plan(rank.place(), true)).unwrap();
        for name in ["b", "weight"] {
            bound.write(name, &self.image(name, me, 0)).unwrap();
        }
        bound.capture().unwrap();
        for call in 0..4 {
            let wanted = self.wanted(rank, known, call);
            for name in ["a", "residual"] {
                bound.write(name, &self.image(name, me, call)).unwrap();
            }
            match call % 2 {
                0 => bound.run().unwrap(),
                _ => bound.replay().unwrap(),
            }
            for (name, wanted) in OUTPUTS.into_iter().zip(&wanted) {
                let in_place = name == "c" && self.in_place;
                let name = if in_place { "partial" } else { name };
                let mut got = vec![0xff; wanted.len()];
                bound.read(name, &mut got).unwrap();
                assert!(
                    got == *wanted,
                    "{self:?}, `{name}` of rank {me} in call {call}"
                );
            }
        }
        bound.synchronize().unwrap();
        rank.exchange.barrier("end").unwrap();
    }
}

/// Over symmetric memory, small enough for packets or not; and by NCCL.
fn layers(transports: &[Transport]) -> Vec<Layer> {
    let mut layers = Vec::new();
    for (dtype, m, n) in [
        (DType::Bf16, 1, 96),
        (DType::F16, 7, 40),
        (DType::F32, 5, 33),
        (DType::F32, 300, 1024),
    ] {
        for &transport in transports {
            for placement in [Placement::Local, Placement::Symmetric] {
                for in_place in [false, true] {
                    layers.push(Layer {
                        dtype,
                        m,
                        n,
                        k: 24,
                        transport,
                        placement,
                        in_place,
                        // Both ways of each of the others.
                        quantizes: in_place != (transport == Transport::Nccl),
                    });
                }
            }
        }
    }
    layers
}

#[test]
fn a_norm_in_a_plan_has_the_bits_of_a_gemm_and_comms_call() {
    for world in [1, 2, 4] {
        on_ranks(world, host, |rank| {
            let mut known = Known::new();
            for layer in layers(&[Transport::SymmetricMemory, Transport::Nccl]) {
                layer.is_right(&rank, &mut known);
            }
        });
    }
}

/// Over symmetric memory alone: NCCL adds in an order of its own.
#[test]
#[ignore = "needs two GPUs and the feature `nvcc`"]
fn a_norm_in_a_plan_has_the_bits_of_a_gemm_and_comms_call_on_gpus() {
    on_ranks(world(), gpu, |rank| {
        let mut known = Known::new();
        for layer in layers(&[Transport::SymmetricMemory]) {
            // Rows of 16 bytes, which GEMMs of every provider take.
            let layer = Layer {
                n: layer.n.next_multiple_of(8),
                ..layer
            };
            layer.is_right(&rank, &mut known);
        }
    });
}

fn small(transport: Transport) -> Layer {
    Layer {
        dtype: DType::F32,
        m: 3,
        n: 8,
        k: 4,
        transport,
        placement: Placement::Local,
        in_place: false,
        quantizes: false,
    }
}

#[test]
fn ranks_that_normalize_differently_are_refused() {
    for transport in [Transport::SymmetricMemory, Transport::Nccl] {
        let errors = on_ranks(2, host, |rank| {
            let mut plan = small(transport).plan(rank.place(), true);
            for op in &mut plan.ops {
                if let OpKind::Collective {
                    then: Some(norm), ..
                } = &mut op.kind
                {
                    norm.epsilon *= 1.0 + rank.place().0 as f32;
                }
            }
            rank.bind(plan).unwrap_err()
        });
        for error in errors {
            assert!(
                matches!(error, ExecuteError::Disagreement { .. }),
                "{error}"
            );
        }
    }
}

#[test]
fn rows_that_no_kernel_normalizes_are_refused() {
    on_ranks(1, host, |rank| {
        let wide = Layer {
            n: 192 * 1024 / 4 + 1,
            m: 1,
            ..small(Transport::SymmetricMemory)
        };
        let error = rank.bind(wide.plan(rank.place(), true)).unwrap_err();
        assert!(matches!(error, ExecuteError::InvalidPlan { .. }), "{error}");
        assert!(error.to_string().contains("196608 at most"), "{error}");
    });
}

#[test]
fn a_rank_that_stays_away_from_a_norm_is_named_and_the_plan_recovers() {
    let impatient = |_| Host::with_timeout(Duration::from_millis(300));
    for transport in [Transport::SymmetricMemory, Transport::Nccl] {
        on_ranks(2, impatient, |rank| {
            let layer = small(transport);
            let mut bound = rank.bind(layer.plan(rank.place(), true)).unwrap();
            if rank.place().0 == 0 {
                bound.run().unwrap();
                let error = bound.synchronize().unwrap_err();
                let named = error.signal_fault().map(|fault| (fault.rank, fault.peer));
                assert_eq!(named, Some((0, 1)), "{error}");
            }
            rank.exchange.barrier("after the fault").unwrap();
            bound.recover().unwrap();
            drop(bound);
            layer.is_right(&rank, &mut Known::new());
        });
    }
}
