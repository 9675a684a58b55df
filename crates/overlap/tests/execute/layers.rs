//! Linear layers on the host: their results, and that the bits of a row depend on the row alone.

use crate::fixtures::{Rank, encode, on_ranks};
use crate::host;
use proptest::prelude::*;
use std::ops::Range;
use std::time::Duration;
use warpweave_gemm::Scaling;
use warpweave_overlap::algorithms::{self, Configuration};
use warpweave_overlap::execute::{DeviceSlice, ExecuteError};
use warpweave_overlap::layers::{
    ColumnParallelLinear, Input, LayerError, Layers, Matrix, Options, Output, Reproducible,
    RowParallelLinear, choice,
};
use warpweave_overlap::plan::{Activation, Problem, shard};
use warpweave_overlap::{Machine, Operation};
use warpweave_symm_mem::{Backend, DType, Error, Host, Memory, agree, require_same};

type HostMemory = <Host as Backend>::Memory;

/// What a layer is, in one type for both.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Replicated,
    Gathered,
    Reduced,
    Scattered,
}

const KINDS: [Kind; 4] = [
    Kind::Replicated,
    Kind::Gathered,
    Kind::Reduced,
    Kind::Scattered,
];

impl Kind {
    fn operation(self) -> Operation {
        match self {
            Kind::Replicated | Kind::Gathered => Operation::ColumnParallelLinear,
            Kind::Reduced => Operation::RowParallelLinear,
            Kind::Scattered => Operation::LinearReduceScatter,
        }
    }

    /// Columns of x and of the weight that a rank has.
    fn depth(self, k: usize, (rank, world): (usize, usize)) -> Range<usize> {
        match self {
            Kind::Replicated | Kind::Gathered => 0..k,
            Kind::Reduced | Kind::Scattered => shard(k, rank, world),
        }
    }

    fn rows_of_x(self, m: usize, (rank, world): (usize, usize)) -> Range<usize> {
        match self {
            Kind::Gathered => shard(m, rank, world),
            _ => 0..m,
        }
    }

    /// The rank whose scales `rank` has for its x: one scale is that of all shards of rows.
    fn scales_x(self, scaling: Scaling, rank: usize) -> usize {
        match (self, scaling) {
            (Kind::Gathered, Scaling::Tensor) => 0,
            _ => rank,
        }
    }

    fn rows_of_y(self, m: usize, (rank, world): (usize, usize)) -> Range<usize> {
        match self {
            Kind::Scattered => shard(m, rank, world),
            _ => 0..m,
        }
    }
}

enum Layer {
    Column(ColumnParallelLinear<Host>),
    Row(RowParallelLinear<Host>),
}

/// A layer with its weight, and memory for the largest M.
struct Subject<'a> {
    rank: &'a Rank<Host>,
    kind: Kind,
    shape: Problem,
    layer: Layer,
    weight: HostMemory,
    bias: Option<HostMemory>,
    x: HostMemory,
    y: HostMemory,
    /// Of x and of the weight.
    scales: [HostMemory; 2],
}

/// Element `i` of `which`: a number with all its bits, near 1.
fn real(which: usize, i: usize) -> f32 {
    let mixed = (which * 1_000_003 + i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed >> 40) as f32 / (1 << 23) as f32) - 1.0
}

/// Small integers, whose sums are exact.
fn integer(which: usize, i: usize) -> f32 {
    (real(which, i) * 3.0).round()
}

/// The scale of row `row` of `which`, of what `rank` has of it: a power of two. All is one block.
fn scale(scaling: Scaling, rank: usize, which: usize, row: usize) -> f32 {
    let row = match scaling {
        Scaling::Row => row,
        Scaling::Block if which == X => row,
        _ => 0,
    };
    [0.5, 1.0, 2.0][(rank + which + row) % 3]
}

fn upload(rank: &Rank<Host>, bytes: &[u8]) -> HostMemory {
    let memory = rank.backend().allocate(bytes.len().max(1)).unwrap();
    // SAFETY: the memory is as large and nobody else knows it.
    unsafe {
        rank.backend()
            .upload(rank.stream(), memory.address(), bytes)
            .unwrap()
    };
    memory
}

const WEIGHT: usize = 1;
const BIAS: usize = 2;
const X: usize = 3;

impl<'a> Subject<'a> {
    fn new(
        rank: &'a Rank<Host>,
        layers: &Layers<Host>,
        kind: Kind,
        shape: Problem,
        options: &Options,
        value: fn(usize, usize) -> f32,
    ) -> Self {
        let layer = match kind {
            Kind::Replicated | Kind::Gathered => {
                let input = match kind {
                    Kind::Gathered => Input::SequenceSharded,
                    _ => Input::Replicated,
                };
                Layer::Column(ColumnParallelLinear::new(layers, &shape, input, options).unwrap())
            }
            Kind::Reduced | Kind::Scattered => {
                let output = match kind {
                    Kind::Scattered => Output::Scattered,
                    _ => Output::Reduced,
                };
                Layer::Row(RowParallelLinear::new(layers, &shape, output, options).unwrap())
            }
        };
        let Problem { m, n, k, dtype, .. } = shape;
        let depth = kind.depth(k, rank.place());
        let weight =
            (0..n).flat_map(|row| depth.clone().map(move |col| value(WEIGHT, row * k + col)));
        let weight = upload(rank, &encode(dtype, weight));
        let bias = options.bias.then(|| {
            let bias = (0..n).map(|col| value(BIAS, col));
            upload(rank, &encode(shape.output(), bias))
        });
        let bytes = |elements: usize, dtype: DType| vec![0xff; elements * dtype.size()];
        let of_weight = (0..n).map(|col| scale(shape.scaling, rank.place().0, WEIGHT, col));
        Subject {
            x: upload(rank, &bytes(m * k, dtype)),
            y: upload(rank, &bytes(m * n, shape.output())),
            scales: [
                upload(rank, &bytes(m, DType::F32)),
                upload(rank, &encode(DType::F32, of_weight)),
            ],
            rank,
            kind,
            shape,
            layer,
            weight,
            bias,
        }
    }

    /// Calls it with rows `rows` of X, and returns this rank's rows of y, with their places in the call.
    fn call(&self, rows: &[usize], value: fn(usize, usize) -> f32) -> Vec<(usize, Vec<u8>)> {
        let Problem {
            k, dtype, scaling, ..
        } = self.shape;
        let (place, m) = (self.rank.place(), rows.len());
        let depth = self.kind.depth(k, place);
        let mine = &rows[self.kind.rows_of_x(m, place)];
        let values = mine
            .iter()
            .flat_map(|&row| depth.clone().map(move |col| value(X, row * k + col)));
        let x = encode(dtype, values);
        let (backend, stream) = (self.rank.backend(), self.rank.stream());
        // SAFETY: x has room for the largest M.
        unsafe { backend.upload(stream, self.x.address(), &x).unwrap() };
        let [x, w, y] = [&self.x, &self.weight, &self.y].map(DeviceSlice::of);
        let bias = self.bias.as_ref().map(DeviceSlice::of);
        let (x, w): (Matrix<'_>, Matrix<'_>) = match scaling {
            Scaling::None => (x.into(), w.into()),
            _ => {
                let (rows, of) = (mine.iter(), self.kind.scales_x(scaling, place.0));
                let of_x = encode(DType::F32, rows.map(|&row| scale(scaling, of, X, row)));
                let [sx, sw] = &self.scales;
                // SAFETY: there is room for the scales of the largest M.
                unsafe { backend.upload(stream, sx.address(), &of_x).unwrap() };
                let [sx, sw] = [sx, sw].map(DeviceSlice::of);
                (Matrix::scaled(x, sx), Matrix::scaled(w, sw))
            }
        };
        match &self.layer {
            Layer::Column(layer) => layer.forward(stream, x, w, bias, y, m).unwrap(),
            Layer::Row(layer) => layer.forward(stream, x, w, bias, y, m).unwrap(),
        }
        let mine = self.kind.rows_of_y(m, place);
        let row = self.shape.c_columns() * self.shape.output().size();
        let mut got = vec![0; mine.len() * row];
        // SAFETY: y has room for the largest M.
        unsafe {
            backend
                .download(stream, self.y.address(), &mut got)
                .unwrap()
        };
        match &self.layer {
            Layer::Column(layer) => layer.synchronize(stream).unwrap(),
            Layer::Row(layer) => layer.synchronize(stream).unwrap(),
        }
        let rows = got.chunks(row).map(<[u8]>::to_vec);
        mine.zip(rows).collect()
    }
}

/// Of numbers that are exact in bf16 after each step.
#[test]
fn layers_of_e4m3_are_their_definition() {
    let sign = |which, i| if real(which, i) < 0.0 { -1.0 } else { 1.0 };
    for world in 1..=3 {
        on_ranks(world, host, |rank| {
            let layers = Layers::new(&rank.executor).unwrap();
            let scalings = [Scaling::Tensor, Scaling::Row, Scaling::Block];
            let cases = KINDS
                .into_iter()
                .flat_map(|kind| scalings.map(|scaling| (kind, scaling)));
            for (kind, scaling) in cases {
                let shape = Problem::new(20, 6, 10, DType::E4m3).with_scaling(scaling);
                let options = Options::default().with_bias();
                let subject = Subject::new(&rank, &layers, kind, shape, &options, sign);
                for m in [20, 1, 7] {
                    let rows: Vec<usize> = (0..m).map(|row| row + m).collect();
                    for (at, got) in subject.call(&rows, sign) {
                        let row = rows[at];
                        let wanted = (0..6).map(|col| {
                            // Those whose x and weight make up the element, with their scales.
                            let (x_of, ranks) = match kind {
                                Kind::Replicated => (rank.place().0, vec![rank.place().0]),
                                Kind::Gathered => {
                                    let owner =
                                        (0..world).find(|&r| shard(m, r, world).contains(&at));
                                    (kind.scales_x(scaling, owner.unwrap()), vec![rank.place().0])
                                }
                                _ => (0, (0..world).collect()),
                            };
                            let partial = |r: usize| {
                                let depth = kind.depth(10, (r, world));
                                let terms = depth
                                    .map(|i| sign(X, row * 10 + i) * sign(WEIGHT, col * 10 + i));
                                let of_x = match kind {
                                    Kind::Replicated | Kind::Gathered => x_of,
                                    _ => r,
                                };
                                terms.sum::<f32>()
                                    * scale(scaling, of_x, X, row)
                                    * scale(scaling, r, WEIGHT, col)
                            };
                            ranks.into_iter().map(partial).sum::<f32>() + sign(BIAS, col)
                        });
                        let wanted: Vec<f32> = wanted.collect();
                        let got: Vec<f32> = got
                            .as_chunks::<2>()
                            .0
                            .iter()
                            .map(|&v| f32::from_bits(u32::from(u16::from_ne_bytes(v)) << 16))
                            .collect();
                        assert_eq!(
                            got, wanted,
                            "{kind:?} by {scaling:?}, world {world}, m = {m}, row {at}"
                        );
                    }
                }
            }
            rank.exchange.barrier("end").unwrap();
        });
    }
}

/// One object serves all layers of a shape, and all of them share an arena, as large as the largest needs it.
#[test]
fn eighty_layers_at_eight_batch_sizes_take_their_weights_and_one_arena() {
    let shapes = [(32, 48), (16, 48), (32, 24), (8, 8)].map(|(n, k)| (128, n, k));
    let arena = |kind: Kind, name: &str, shapes: &[(usize, usize, usize)], calls: bool| {
        let options = Options::default().with_schedule(algorithms::find(name).unwrap());
        let arenas = on_ranks(2, host, |rank| {
            let layers = Layers::new(&rank.executor).unwrap();
            let subject = |&(m, n, k): &(usize, usize, usize)| {
                let shape = Problem::new(m, n, k, DType::F32);
                Subject::new(&rank, &layers, kind, shape, &options, integer)
            };
            let subjects: Vec<_> = shapes.iter().map(subject).collect();
            let arena = layers.arena_bytes();
            let of_calls = |subject: &Subject<'_>| {
                for m in [128, 1, 64, 2, 32, 4, 16, 8] {
                    subject.call(&(0..m).collect::<Vec<_>>(), integer);
                }
            };
            if calls {
                subjects.iter().for_each(of_calls);
                let allocations = rank.backend().allocations();
                for _ in 0..20 {
                    subjects.iter().for_each(of_calls);
                }
                assert_eq!(rank.backend().allocations(), allocations, "{kind:?}");
                assert_eq!(layers.arena_bytes(), arena, "{kind:?}");
            }
            rank.exchange.barrier("end").unwrap();
            arena
        });
        arenas[0]
    };
    for (kind, name) in [
        (Kind::Gathered, "fusedColumnParallelLinear"),
        (Kind::Reduced, "rowParallelLinearPipeline"),
        (Kind::Scattered, "fusedLinearReduceScatter"),
    ] {
        let of_largest = arena(kind, name, &shapes[..1], false);
        assert_ne!(of_largest.0, 0, "{name}");
        assert_eq!(arena(kind, name, &shapes, true), of_largest, "{name}");
    }
}

#[test]
fn scales_are_where_the_shape_has_them() {
    on_ranks(2, host, |rank| {
        let layers = Layers::new(&rank.executor).unwrap();
        let plain = Problem::new(4, 8, 8, DType::F16);
        let scaled = Problem::new(4, 8, 8, DType::E4m3).with_scaling(Scaling::Row);
        let memory = upload(&rank, &[0; 512]);
        let all = DeviceSlice::of(&memory);
        let with = Matrix::scaled(all, all);
        for (shape, x, why) in [
            (plain, with, "made without"),
            (scaled, all.into(), "need theirs"),
        ] {
            let options = Options::default();
            let layer = RowParallelLinear::new(&layers, &shape, Output::Reduced, &options).unwrap();
            let error = layer
                .forward(rank.stream(), x, all, None, all, 4)
                .unwrap_err();
            assert!(matches!(error, LayerError::Scales { .. }), "{error}");
            assert!(error.to_string().contains(why), "{error}");
        }
        // No schedule takes e4m3 without.
        let (shape, options) = (scaled.with_scaling(Scaling::None), Options::default());
        let layer = RowParallelLinear::new(&layers, &shape, Output::Reduced, &options);
        let error = layer.err().unwrap();
        assert!(matches!(error, LayerError::NothingRuns { .. }), "{error}");
        rank.exchange.barrier("end").unwrap();
    });
}

/// Of a layer that does not communicate, too, an error on one rank is one on all.
#[test]
fn a_rank_that_cannot_prepare_a_layer_is_heard() {
    on_ranks(2, host, |rank| {
        let layers = Layers::new(&rank.executor).unwrap();
        let shape = Problem::new(8, 32, 64, DType::F32);
        let options = Options::default().with_bias();
        if rank.place().0 == 0 {
            let layer = ColumnParallelLinear::new(&layers, &shape, Input::Replicated, &options);
            let error = layer.map(|_| ()).unwrap_err().to_string();
            assert!(
                error.contains("rank 1") && error.contains("no memory is left"),
                "{error}"
            );
            return;
        }
        // What a rank says that goes as far as its GEMM.
        let name = "column-parallel linear 32x64 f32 up to M = 8";
        let exchange = rank.exchange.as_ref();
        require_same(exchange, "the layer", &format!("{name}, {options:?}")).unwrap();
        let mine = Err::<(), _>(Error::InvalidArgument {
            what: "a GEMM",
            why: "no memory is left".into(),
        });
        agree(exchange, "preparation of a layer", mine).unwrap_err();
    });
}

#[test]
fn layers_are_their_definition() {
    for world in 1..=4 {
        on_ranks(world, host, |rank| {
            let layers = Layers::new(&rank.executor).unwrap();
            for kind in KINDS {
                for biased in [false, true] {
                    let shape = Problem::new(20, 6, 10, DType::F32);
                    let options = Options::default();
                    let options = if biased { options.with_bias() } else { options };
                    let subject = Subject::new(&rank, &layers, kind, shape, &options, integer);
                    for m in [20, 1, 7, 2, 13] {
                        let rows: Vec<usize> = (0..m).map(|row| row + m).collect();
                        for (at, got) in subject.call(&rows, integer) {
                            let wanted: Vec<u8> = (0..6)
                                .flat_map(|col| {
                                    let terms = (0..10).map(|i| {
                                        integer(X, rows[at] * 10 + i)
                                            * integer(WEIGHT, col * 10 + i)
                                    });
                                    let bias = if biased { integer(BIAS, col) } else { 0.0 };
                                    (terms.sum::<f32>() + bias).to_ne_bytes()
                                })
                                .collect();
                            // −0 and 0 are both right.
                            let floats = |bytes: &[u8]| -> Vec<f32> {
                                let (values, _) = bytes.as_chunks::<4>();
                                values.iter().map(|v| f32::from_ne_bytes(*v)).collect()
                            };
                            let right = floats(&got) == floats(&wanted);
                            assert!(right, "{kind:?}, world {world}, m = {m}, row {at}");
                        }
                    }
                }
            }
            rank.exchange.barrier("end").unwrap();
        });
    }
}

/// By every schedule, with the bits of the definition: the sums of gate and up are exact.
#[test]
fn layers_with_swiglu_are_their_definition() {
    const COLUMNS: usize = 16;
    let kinds = [Kind::Replicated, Kind::Gathered];
    for world in 1..=3 {
        on_ranks(world, host, |rank| {
            let layers = Layers::new(&rank.executor).unwrap();
            for (kind, schedule) in kinds.into_iter().flat_map(|kind| {
                let all = variations(kind).into_iter().map(Some);
                all.chain([None]).map(move |schedule| (kind, schedule))
            }) {
                let shape = Problem::new(20, 2 * COLUMNS, 10, DType::F32);
                let shape = shape.with_activation(Activation::SwiGlu);
                let mut options = Options::default().with_bias();
                options.schedule = schedule;
                if options.schedule.as_ref().is_some_and(|s| !s.takes(&shape)) {
                    continue;
                }
                let subject = Subject::new(&rank, &layers, kind, shape, &options, integer);
                for m in [20, 1, 7] {
                    let rows: Vec<usize> = (0..m).map(|row| row + m).collect();
                    for (at, got) in subject.call(&rows, integer) {
                        let sum = |col: usize| {
                            let terms = (0..10).map(|i| {
                                integer(X, rows[at] * 10 + i) * integer(WEIGHT, col * 10 + i)
                            });
                            terms.sum::<f32>() + integer(BIAS, col)
                        };
                        let wanted = (0..COLUMNS).map(|col| {
                            let gate = col / 8 * 16 + col % 8;
                            let (gate, up) = (sum(gate), sum(gate + 8));
                            gate / (1.0 + (-gate).exp()) * up
                        });
                        let (got, _) = got.as_chunks::<4>();
                        let got: Vec<f32> = got.iter().map(|v| f32::from_ne_bytes(*v)).collect();
                        let place =
                            format!("{kind:?}, {options:?}, world {world}, m = {m}, row {at}");
                        assert_eq!(got, wanted.collect::<Vec<_>>(), "{place}");
                    }
                }
            }
            rank.exchange.barrier("end").unwrap();
        });
    }
}

/// How many different rows of x there are in the tests of bits.
const ROWS: usize = 9;

/// Compares the rows of calls with those of calls of one row. On some rank every row is.
fn rows_are_alike(subject: &Subject<'_>, alone: &[Option<Vec<u8>>], rows: &[usize]) {
    for (at, got) in subject.call(rows, real) {
        if let Some(alone) = &alone[rows[at]] {
            let (kind, m) = (subject.kind, rows.len());
            assert!(got == *alone, "{kind:?}: row {} at {at} of {m}", rows[at]);
        }
    }
}

/// Each row alone. Where y is scattered only the first rank gets it: the exchange gives it to all.
fn rows_alone(subject: &Subject<'_>) -> Vec<Option<Vec<u8>>> {
    let alone = |row| {
        let mine = subject.call(&[row], real).pop().map(|(_, bytes)| bytes);
        let bytes = mine.clone().unwrap_or_default();
        let all = subject.rank.exchange.all_gather("row", &bytes).unwrap();
        all.into_iter().find(|bytes| !bytes.is_empty())
    };
    (0..ROWS).map(alone).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_bits_of_a_row_depend_on_the_row_alone(
        world in 1usize..=4,
        dtype in prop::sample::select(vec![DType::F32, DType::F16, DType::Bf16]),
        (n, k) in (1usize..40, 1usize..90),
        bias in any::<bool>(),
        calls in prop::collection::vec(prop::collection::vec(0..ROWS, 1..=70), 3..6),
    ) {
        on_ranks(world, host, |rank| {
            let layers = Layers::new(&rank.executor).unwrap();
            let shape = Problem::new(70, n, k, dtype);
            let options = Options::default();
            let options = if bias { options.with_bias() } else { options };
            for kind in KINDS {
                let subject = Subject::new(&rank, &layers, kind, shape, &options, real);
                let alone = rows_alone(&subject);
                for rows in &calls {
                    rows_are_alike(&subject, &alone, rows);
                }
            }
            rank.exchange.barrier("end").unwrap();
        });
    }
}

#[test]
fn the_bits_of_a_row_do_not_depend_on_the_schedule() {
    for (world, dtype) in [(2, DType::F16), (3, DType::Bf16), (4, DType::F32)] {
        on_ranks(world, host, |rank| {
            let layers = Layers::new(&rank.executor).unwrap();
            let shape = Problem::new(40, 12, 50, dtype);
            for kind in [Kind::Gathered, Kind::Reduced, Kind::Scattered] {
                let mut alone = None;
                for schedule in variations(kind) {
                    let options = Options::default().with_bias().with_schedule(schedule);
                    let subject = Subject::new(&rank, &layers, kind, shape, &options, real);
                    let alone = alone.get_or_insert_with(|| rows_alone(&subject));
                    for m in [40, 5, 1] {
                        let rows: Vec<usize> = (0..m).map(|at| (at * 5 + m) % ROWS).collect();
                        rows_are_alike(&subject, alone, &rows);
                    }
                }
            }
            rank.exchange.barrier("end").unwrap();
        });
    }
}

/// Each reproducible algorithm with each of its parameters varied.
fn variations(kind: Kind) -> Vec<Configuration> {
    let candidates = choice::candidates(kind.operation(), Reproducible::Yes, 1);
    let mut every = algorithms::every();
    every.retain(|c| candidates.contains(c));
    assert!(every.len() > 3, "{kind:?}");
    every
}

#[test]
fn what_is_not_reproducible_is_no_candidate() {
    for (operation, name) in [
        (Operation::RowParallelLinear, "rowParallelLinear"),
        (
            Operation::RowParallelLinear,
            "rowParallelLinear:reduce=symmetric",
        ),
    ] {
        let has = |reproducible| {
            let all = choice::candidates(operation, reproducible, 1);
            all.iter().any(|c| c.name() == name)
        };
        assert!(has(Reproducible::No) && !has(Reproducible::Yes), "{name}");
    }
}

/// Processes agree on this text, and an address is another in each.
#[test]
fn options_are_described_by_names() {
    let schedule = algorithms::find("rowParallelLinearPipeline:chunks=4").unwrap();
    assert_eq!(
        format!("{:?}", Options::default().with_schedule(schedule)),
        "Options { bias: false, reproducible: Yes, constant_weight: false, \
         schedule: Some(rowParallelLinearPipeline:chunks=4) }"
    );
}

#[test]
fn choices_cover_every_m_and_a_tuning_takes_the_fastest() {
    on_ranks(2, host, |rank| {
        let layers = Layers::new(&rank.executor).unwrap();
        let shape = Problem::new(33, 8, 16, DType::F32);
        let options = Options::default();
        let mut layer = RowParallelLinear::new(&layers, &shape, Output::Reduced, &options).unwrap();
        let covered = |layer: &RowParallelLinear<Host>| {
            let ms: Vec<usize> = layer.choices().into_iter().flat_map(|c| c.ms).collect();
            assert_eq!(ms, (1..=33).collect::<Vec<_>>());
        };
        covered(&layer);
        let [x, w, y] = [33 * 8, 8 * 8, 33 * 8].map(|n| upload(&rank, &vec![0; 4 * n]));
        let [xs, ws, ys] = [&x, &w, &y].map(DeviceSlice::of);
        let trials = layer.tune(rank.stream(), xs, ws, ys).unwrap();
        covered(&layer);
        let all = rank
            .exchange
            .all_gather("trials", format!("{trials:?}").as_bytes())
            .unwrap();
        assert_eq!(all[0], all[1], "all ranks know the same times");
        for m in [1, 2, 4, 8, 16, 32, 33] {
            let of_m: Vec<_> = trials.iter().filter(|t| t.m == m).collect();
            assert!(of_m.len() >= 2, "m = {m}: {trials:?}");
            let fastest = of_m.iter().map(|t| t.us).fold(f64::INFINITY, f64::min);
            let chosen = layer
                .choices()
                .into_iter()
                .find(|c| c.ms.contains(&m))
                .unwrap();
            let chosen = of_m
                .iter()
                .find(|t| t.configuration == chosen.configuration);
            assert_eq!(chosen.map(|t| t.us), Some(fastest), "m = {m}");
        }
        rank.exchange.barrier("end").unwrap();
    });
}

#[test]
fn a_tuning_that_fails_leaves_the_layer_as_it_was() {
    on_ranks(2, host, |rank| {
        let layers = Layers::new(&rank.executor).unwrap();
        let (shape, options) = (Problem::new(33, 8, 16, DType::F32), Options::default());
        let mut layer = RowParallelLinear::new(&layers, &shape, Output::Reduced, &options).unwrap();
        let [x, w, y] = [33 * 8, 8 * 8, 33 * 8].map(|n| upload(&rank, &vec![0; 4 * n]));
        let [x, w, y] = [&x, &w, &y].map(DeviceSlice::of);
        let (stream, choices) = (rank.stream(), layer.choices());
        let four_rows = y.slice(0, 4 * 8 * 4).unwrap();
        let error = layer.tune(stream, x, w, four_rows).unwrap_err();
        assert!(error.to_string().contains("are needed"), "{error}");
        assert_eq!(layer.choices(), choices);
        for m in [33, 1, 7] {
            layer.forward(stream, x, w, None, y, m).unwrap();
        }
        layer.synchronize(stream).unwrap();
        rank.exchange.barrier("end").unwrap();
    });
}

#[test]
fn graphs_that_were_captured_before_a_tuning_stay_good() {
    on_ranks(2, host, |rank| {
        let layers = Layers::new(&rank.executor).unwrap();
        let (shape, options) = (Problem::new(33, 8, 16, DType::F32), Options::default());
        let mut layer = RowParallelLinear::new(&layers, &shape, Output::Reduced, &options).unwrap();
        let ones = |n: usize| upload(&rank, &encode(DType::F32, vec![1.0; n]));
        let [x, w, y] = [33 * 8, 8 * 8, 33 * 8].map(ones);
        let [xs, ws, ys] = [&x, &w, &y].map(DeviceSlice::of);
        let (backend, stream) = (rank.backend(), rank.stream());
        let graph = backend.capture(stream, || layer.forward(stream, xs, ws, None, ys, 33));
        let graph = graph.unwrap();
        layer.tune(stream, xs, ws, ys).unwrap();
        let mut got = vec![0; 4 * 33 * 8];
        // SAFETY: y is as large; the operands and the layer live until the stream is synchronised.
        unsafe {
            backend.upload(stream, y.address(), &got).unwrap();
            backend.launch_graph(&graph, stream).unwrap();
        }
        layer.synchronize(stream).unwrap();
        // SAFETY: as above.
        unsafe { backend.download(stream, y.address(), &mut got).unwrap() };
        assert_eq!(got, encode(DType::F32, vec![16.0; 33 * 8]));
        rank.exchange.barrier("end").unwrap();
    });
}

#[test]
fn layers_recover_after_a_rank_stayed_away() {
    let device = |_| Host::with_timeout(Duration::from_millis(300));
    on_ranks(2, device, |rank| {
        let layers = Layers::new(&rank.executor).unwrap();
        let shape = Problem::new(12, 6, 10, DType::F32);
        let options = Options::default();
        let subjects =
            KINDS.map(|kind| Subject::new(&rank, &layers, kind, shape, &options, integer));
        let rows: Vec<usize> = (0..12).collect();
        let before = subjects.each_ref().map(|one| one.call(&rows, integer));
        let reduced = &subjects[2];
        if rank.place().0 == 0 {
            let Layer::Row(layer) = &reduced.layer else {
                panic!("a row-parallel layer");
            };
            let [x, w, y] = [&reduced.x, &reduced.weight, &reduced.y].map(DeviceSlice::of);
            let forward = || layer.forward(rank.stream(), x, w, None, y, 12);
            forward().unwrap();
            let error = layer.synchronize(rank.stream()).unwrap_err();
            let LayerError::Execute(error) = error else {
                panic!("{error}");
            };
            assert_eq!(error.signal_fault().map(|fault| fault.peer), Some(1));
            // The next call says so without a synchronisation.
            let refused = forward().unwrap_err();
            assert!(
                matches!(refused, LayerError::Execute(ExecuteError::Stopped { .. })),
                "{refused}"
            );
        }
        rank.exchange.barrier("failed").unwrap();
        rank.executor.recover(rank.stream()).unwrap();
        let after = subjects.each_ref().map(|one| one.call(&rows, integer));
        assert!(before == after);
        rank.exchange.barrier("end").unwrap();
    });
}

#[test]
fn the_choice_is_pure_and_measured_times_count() {
    let problem = Problem::new(600, 1024, 4096, DType::Bf16).with_batch_invariance(true);
    let operation = Operation::RowParallelLinear;
    let candidates = choice::candidates(operation, Reproducible::Yes, 1);
    let mut figures = choice::Figures {
        machine: Machine::named("h200x4").unwrap(),
        capabilities: algorithms::Capabilities::SM90,
        measurements: Default::default(),
    };
    let classes = |figures: &choice::Figures| {
        choice::classes(operation, 4, &problem, &candidates, figures).unwrap()
    };
    let by_model = classes(&figures);
    assert_eq!(by_model, classes(&figures));
    assert_eq!(by_model.len(), 11);
    // The slowest of the model, as if it were measured at 64: it is the best there, and nowhere else.
    let last = by_model[6].ranking.last().unwrap().clone();
    figures
        .measurements
        .push(warpweave_overlap::select::Measurement {
            configuration: last.clone(),
            world: 4,
            problem: Problem { m: 64, ..problem },
            us: 5.0,
        });
    let measured = classes(&figures);
    assert_eq!(measured[6].ranking[0], last);
    assert_eq!(measured[5], by_model[5]);
}

#[test]
fn times_count_for_operands_that_are_scaled_alike() {
    let by = |scaling| Problem::new(64, 1024, 4096, DType::E4m3).with_scaling(scaling);
    let operation = Operation::RowParallelLinear;
    let mut candidates = choice::candidates(operation, Reproducible::No, 1);
    candidates.retain(|candidate| candidate.takes(&by(Scaling::Row)));
    let mut figures = choice::Figures {
        machine: Machine::named("h200x4").unwrap(),
        capabilities: algorithms::Capabilities::SM90,
        measurements: Default::default(),
    };
    let best = |figures: &choice::Figures, scaling| {
        let classes = choice::classes(operation, 4, &by(scaling), &candidates, figures).unwrap();
        classes.last().unwrap().ranking.clone()
    };
    let last = best(&figures, Scaling::Row).last().unwrap().clone();
    let of_tensors = best(&figures, Scaling::Tensor);
    figures
        .measurements
        .push(warpweave_overlap::select::Measurement {
            configuration: last.clone(),
            world: 4,
            problem: by(Scaling::Row),
            us: 5.0,
        });
    assert_eq!(best(&figures, Scaling::Row)[0], last);
    assert!(best(&figures, Scaling::Tensor) == of_tensors);
}

#[test]
fn errors_say_what_to_do() {
    on_ranks(2, host, |rank| {
        let layers = Layers::new(&rank.executor).unwrap();
        let shape = Problem::new(8, 4, 6, DType::F32);
        let plain = Options::default();
        let make = |shape: &Problem, options: &Options| {
            ColumnParallelLinear::new(&layers, shape, Input::SequenceSharded, options)
        };
        let layer = make(&shape, &plain).unwrap();
        let [x, w, b, y] = [24, 24, 4, 32].map(|n| upload(&rank, &vec![0; 4 * n]));
        let [x, w, b, y] = [&x, &w, &b, &y].map(DeviceSlice::of);
        let stream = rank.stream();
        for m in [0, 9] {
            let error = layer.forward(stream, x, w, None, y, m).unwrap_err();
            assert!(
                matches!(error, LayerError::OutOfRange { most: 8, .. }),
                "{error}"
            );
        }
        let error = layer.forward(stream, x, w, Some(b), y, 8).unwrap_err();
        assert!(error.to_string().contains("Options::with_bias"), "{error}");
        let error = layer.forward(stream, x, b, None, y, 8).unwrap_err();
        assert!(
            matches!(&error, LayerError::Execute(ExecuteError::Operand { operand, .. }) if operand == "b"),
            "{error}"
        );
        // The ranks make different layers.
        let other = Problem {
            n: 4 + rank.place().0,
            ..shape
        };
        let error = make(&other, &plain).unwrap_err();
        let LayerError::Execute(ExecuteError::Memory(Error::Disagreement { peer, .. })) = error
        else {
            panic!("{error}");
        };
        assert_ne!(peer, rank.place().0);
        let foreign = algorithms::find("rowParallelLinearPipeline").unwrap();
        let error = make(&shape, &plain.clone().with_schedule(foreign)).unwrap_err();
        assert!(
            error.to_string().contains("columnParallelLinear"),
            "{error}"
        );
        // Schedules whose reductions are otherwise with other numbers of rows.
        for name in [
            "fusedRowParallelLinear:reduce=multimem",
            "rowParallelLinearPipeline:nodes=2",
            "rowParallelLinear",
        ] {
            let schedule = algorithms::find(name).unwrap();
            let options = plain.clone().with_schedule(schedule);
            let made = |options: Options| {
                RowParallelLinear::new(&layers, &shape, Output::Reduced, &options)
            };
            let error = made(options.clone()).unwrap_err().to_string();
            assert!(
                error.contains(name) && error.contains("not_reproducible()"),
                "{error}"
            );
            made(options.not_reproducible()).unwrap();
        }
        // A bias in the result.
        let row = RowParallelLinear::new(&layers, &shape, Output::Reduced, &plain.with_bias());
        let row = row.unwrap();
        let inside = y.slice(16, 16).unwrap();
        let error = row.forward(stream, x, w, Some(inside), y, 8).unwrap_err();
        assert!(error.to_string().contains("overlaps y"), "{error}");
        rank.exchange.barrier("end").unwrap();
    });
}
