//! Tensor parallelism by Warpweave's layers and collectives.
//!
//! A row-parallel layer, the residual addition and the norm that follows it are done in one of three ways,
//! with the same bits: for few rows, the GEMM of this rank's partial, then one launch that reduces, adds and
//! normalizes; for more, a GEMM that overlaps with its reduction, then the addition and the norm; for long
//! prompts, each rank gets its shard of the reduced rows alone, adds and normalizes these, and the GEMM that
//! follows gathers them (sequence parallelism: Korthikanti and others, 2022).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{Shape, Tensor};
use warpweave_comm::{AddRmsNorm, CollectiveKernels, CollectiveOptions, Collectives};
use warpweave_overlap::execute::{DeviceSlice, ExecuteBackend, Executor};
use warpweave_overlap::layers::{
    ColumnParallelLinear, Input, Layers, Options, Output, Reproducible, RowParallelLinear,
};
use warpweave_overlap::plan::{Activation, Problem, shard};
use warpweave_symm_mem::{BackendKind, Exchange};

use super::operand::{self, Op};
use super::{Launch, Norm, Parallel};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::place::Place;

/// The batches that are served.
#[derive(Clone, Copy, Debug)]
pub struct Batches {
    /// The most rows of a batch.
    pub rows: usize,
    /// The most bytes of a batch's activations that one launch reduces, adds and normalizes. More are reduced
    /// by the GEMM that computes them. Only the time depends on it.
    pub fused_bytes: usize,
    /// Whether the bits of a request may depend on what shares its batch.
    pub reproducible: Reproducible,
    /// Batches of at least as many rows, and of at least two, are sharded by rows between a row-parallel
    /// layer and the column-parallel layer after it (sequence parallelism). Only the time and the memory
    /// depend on it.
    pub sharded_rows: usize,
}

impl Batches {
    /// Up to `rows` rows; one launch takes what travels by packets. A request has the same bits in every
    /// batch.
    pub fn of_rows(rows: usize) -> Self {
        Batches {
            rows,
            fused_bytes: CollectiveOptions::default().packet_bytes,
            reproducible: Reproducible::Yes,
            sharded_rows: 1024,
        }
    }

    /// The most rows of a batch that is not sharded. One row never is: a rank that has all rows of a batch
    /// takes it for one that is not.
    fn most_whole(&self, world: usize) -> usize {
        match world {
            1 => self.rows,
            _ => self.rows.min(self.sharded_rows.max(2) - 1),
        }
    }
}

/// What a column-parallel layer is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Columns {
    /// Of the weight, of this rank.
    out: usize,
    from: usize,
    bias: bool,
    activation: Activation,
}

impl Columns {
    fn plain(out: usize, from: usize) -> Self {
        Columns {
            out,
            from,
            bias: false,
            activation: Activation::None,
        }
    }

    fn of(weight: &Tensor) -> Result<Self> {
        let (out, from) = weight.dims2()?;
        Ok(Self::plain(out, from))
    }

    /// Columns of its result.
    fn results(self) -> usize {
        self.activation.columns(self.out)
    }
}

/// A rank's layers, by shape: all layers of the transformer share them. They have an order, as tuning them is
/// collective.
pub struct Warpweave<B: ExecuteBackend + CollectiveKernels> {
    place: Place<B>,
    executor: Executor<B>,
    collectives: Collectives<B>,
    rank: usize,
    world: usize,
    batches: Batches,
    /// A row-parallel layer's partials among them.
    columns: BTreeMap<Columns, ColumnParallelLinear<B>>,
    /// The same for rows that are sharded.
    gathering: BTreeMap<Columns, ColumnParallelLinear<B>>,
    /// Of each (out, in), in being this rank's.
    rows: BTreeMap<(usize, usize), RowParallelLinear<B>>,
    /// The same with results that are sharded.
    scattering: BTreeMap<(usize, usize), RowParallelLinear<B>>,
}

impl<B: ExecuteBackend + CollectiveKernels> Warpweave<B> {
    /// The layers of a model for `batches`, enqueued on the stream of `place`. Collective: all
    /// ranks make the same.
    ///
    /// # Errors
    /// What the layers and the collectives report; an error on one rank is one on all.
    pub fn new(
        place: &Place<B>,
        exchange: &Arc<dyn Exchange>,
        config: &Config,
        dtype: candle_core::DType,
        batches: Batches,
    ) -> Result<Self> {
        let (backend, world) = (&place.backend, exchange.world());
        let dtype = operand::dtype(dtype)?;
        let executor = Executor::new(backend, exchange)?;
        let layers = Layers::new(&executor)?;
        let options = CollectiveOptions {
            // For the longest message.
            staging_bytes: batches.rows * config.hidden_size * dtype.size(),
            early_dependents: true,
            ..CollectiveOptions::default()
        };
        let collectives = Collectives::new(backend, exchange, "llama", options)?;

        let reproducible = match batches.reproducible {
            Reproducible::Yes => Options::default(),
            Reproducible::No => Options::default().not_reproducible(),
        }
        .with_constant_weight();
        let (hidden, head) = (config.hidden_size, config.head_dim());
        let heads = (config.num_attention_heads + 2 * config.kv_heads()) / world * head;
        let attended = config.num_attention_heads / world * head;
        let width = config.intermediate_size / world;
        let (mut columns, mut gathering) = (BTreeMap::new(), BTreeMap::new());
        let plain = Columns::plain;
        let qkv = Columns {
            bias: config.has_qkv_bias(),
            ..plain(heads, hidden)
        };
        let gate_up = Columns {
            activation: Activation::SwiGlu,
            ..plain(2 * width, hidden)
        };
        for (shape, is_after_norm) in [
            (qkv, true),
            (plain(hidden, attended), false),
            (gate_up, true),
            (plain(hidden, width), false),
            (plain(config.head_rows(world), hidden), false),
        ] {
            let problem = Problem::new(batches.rows, shape.out, shape.from, dtype)
                .with_activation(shape.activation);
            let options = if shape.bias {
                reproducible.clone().with_bias()
            } else {
                reproducible.clone()
            };
            let layer = |input| ColumnParallelLinear::new(&layers, &problem, input, &options);
            columns.insert(shape, layer(Input::Replicated)?);
            if is_after_norm && world > 1 {
                gathering.insert(shape, layer(Input::SequenceSharded)?);
            }
        }
        let (mut rows, mut scattering) = (BTreeMap::new(), BTreeMap::new());
        for from in [attended, width] {
            let layer = |most, output| {
                let problem = Problem::new(most, hidden, from * world, dtype);
                RowParallelLinear::new(&layers, &problem, output, &reproducible)
            };
            let whole = layer(batches.most_whole(world), Output::Reduced)?;
            rows.insert((hidden, from), whole);
            if world > 1 {
                scattering.insert((hidden, from), layer(batches.rows, Output::Scattered)?);
            }
        }
        Ok(Warpweave {
            place: place.clone(),
            executor,
            collectives,
            rank: exchange.rank(),
            world,
            batches,
            columns,
            gathering,
            rows,
            scattering,
        })
    }

    /// Measures what could compute the layers that communicate, chooses the fastest for each number of rows,
    /// and keeps the times for later jobs on this machine. Collective; it takes half a minute on GPUs.
    ///
    /// # Errors
    /// Errors of the device; a rank that did not come.
    pub fn tune(&mut self, dtype: candle_core::DType) -> Result<()> {
        let all = self.batches.rows;
        let own = shard(all, self.rank, self.world).len();
        let Place { candle, stream, .. } = &self.place;
        // Gives `tune` an x and a y of so many rows, and a weight.
        let with = |x: usize, y: usize, shape: Columns, tune: &Call<'_>| -> Result<()> {
            let Columns {
                out, from, bias, ..
            } = shape;
            let random =
                |rows: usize| Tensor::randn(0f32, 1f32, (rows, from), candle)?.to_dtype(dtype);
            let mut operands = vec![random(x)?, random(out)?];
            if bias {
                operands.push(Tensor::zeros(out, dtype, candle)?);
            }
            let op = Op {
                name: "tune",
                kind: B::KIND,
                shape: Shape::from((y, shape.results())),
                call: tune,
            };
            op.apply(&operands.iter().collect::<Vec<_>>())?;
            Ok(())
        };
        for (&shape, layer) in &mut self.gathering {
            let layer = RefCell::new(layer);
            with(own, all, shape, &|operands, y| {
                let (x, weight, bias) = (operands[0], operands[1], operands.get(2).copied());
                layer.borrow_mut().tune(stream, x, weight, bias, y)?;
                Ok(())
            })?;
        }
        let whole = self.batches.most_whole(self.world);
        for (layers, x, y) in [
            (&mut self.rows, whole, whole),
            (&mut self.scattering, all, own),
        ] {
            for (&(out, from), layer) in layers {
                let layer = RefCell::new(layer);
                with(x, y, Columns::plain(out, from), &|operands, y| {
                    let [x, weight] = [operands[0], operands[1]];
                    layer.borrow_mut().tune(stream, x, weight, y)?;
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Bytes on this rank of what the layers share and have of their own.
    pub fn arena_bytes(&self) -> usize {
        let columns = self.columns.values().chain(self.gathering.values());
        let rows = self.rows.values().chain(self.scattering.values());
        let columns = columns.map(ColumnParallelLinear::own_bytes).sum::<usize>();
        let rows = rows.map(RowParallelLinear::own_bytes).sum::<usize>();
        self.executor.arena_bytes().0 + columns + rows
    }

    /// Frees what the ranks share. Collective, with no work under way.
    ///
    /// # Errors
    /// A rank that did not come.
    pub fn close(self, exchange: &dyn Exchange) -> Result<()> {
        Ok(self.collectives.close(&self.place.stream, exchange)?)
    }

    /// A new tensor of `shape` that `call` computes of `operands`.
    fn compute(
        &self,
        name: &'static str,
        shape: impl Into<Shape>,
        operands: &[&Tensor],
        call: &Call<'_>,
    ) -> Result<Tensor> {
        // candle's operations on the CPU have ended when they return. On a GPU all are on one stream.
        let call = |operands: &[DeviceSlice<'_>], result: DeviceSlice<'_>| {
            let called = call(operands, result);
            if B::KIND == BackendKind::Cuda {
                return called;
            }
            self.finish().and(called).inspect_err(|_| {
                // candle frees the operands now: what is enqueued must have ended, whatever it waits for.
                self.place.backend.stop_waits();
                let _ = self.place.backend.synchronize(&self.place.stream);
            })
        };
        let op = Op {
            name,
            kind: B::KIND,
            shape: shape.into(),
            call: &call,
        };
        Ok(op.apply(operands)?)
    }

    /// What a column-parallel layer makes of x, its weight and its bias, if it has one.
    fn columns_of(&self, shape: Columns, operands: &[&Tensor], rows: usize) -> Result<Tensor> {
        let layers = match operands[0].dim(0)? == rows {
            true => &self.columns,
            false => &self.gathering,
        };
        let layer = layers.get(&shape).ok_or_else(|| no_layer(operands[1]))?;
        let call = |operands: &[DeviceSlice<'_>], y: DeviceSlice<'_>| {
            let bias = operands.get(2).copied();
            Ok(layer.forward(&self.place.stream, operands[0], operands[1], bias, y, rows)?)
        };
        let results = (rows, shape.results());
        self.compute("column-parallel-linear", results, operands, &call)
    }

    /// r = residual + `added`, reduced over the ranks if it is `partial`; then the norm of r.
    fn add_norm(
        &self,
        added: &Tensor,
        partial: bool,
        residual: &Tensor,
        norm: &Norm<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let (rows, hidden) = added.dims2()?;
        let dtype = operand::dtype(added.dtype())?;
        let call = |operands: &[DeviceSlice<'_>], result: DeviceSlice<'_>| {
            let [residual_out, normalized] = halves(result);
            let norm = AddRmsNorm {
                dtype,
                hidden,
                epsilon: norm.epsilon,
                input: operands[0],
                residual: operands[1],
                weight: operands[2],
                residual_out,
                normalized: Some(normalized),
                quantized: None,
            };
            match partial {
                true => self
                    .collectives
                    .all_reduce_add_rms_norm(&self.place.stream, &norm)
                    .map(drop)?,
                false => self.collectives.add_rms_norm(&self.place.stream, &norm)?,
            }
            Ok(())
        };
        let operands = [added, residual, norm.weight];
        let both = self.compute("add-rms-norm", (2, rows, hidden), &operands, &call)?;
        Ok((both.get(0)?, both.get(1)?))
    }

    /// The matrices of all ranks, which have as many rows and columns: `[world, rows, columns]`.
    fn by_rank(&self, own: &Tensor) -> Result<Tensor> {
        let (rows, columns) = own.dims2()?;
        let call = |operands: &[DeviceSlice<'_>], result: DeviceSlice<'_>| {
            self.collectives
                .all_gather(&self.place.stream, operands[0], result)?;
            Ok(())
        };
        self.compute("all-gather", (self.world, rows, columns), &[own], &call)
    }
}

/// What an operation computes.
type Call<'a> = dyn Fn(&[DeviceSlice<'_>], DeviceSlice<'_>) -> Result<()> + 'a;

fn halves(slice: DeviceSlice<'_>) -> [DeviceSlice<'_>; 2] {
    let half = slice.bytes() / 2;
    [0, half].map(|offset| slice.slice(offset, half).expect("half of a slice is in it"))
}

/// The columns of all ranks, which are by rank, row by row.
fn side_by_side(by_rank: &Tensor) -> Result<Tensor> {
    let (world, rows, each) = by_rank.dims3()?;
    Ok(by_rank.transpose(0, 1)?.reshape((rows, world * each))?)
}

fn no_layer(weight: &Tensor) -> Error {
    Error::Differs(format!(
        "the model has no layer of shape {:?}",
        weight.dims()
    ))
}

impl<B: ExecuteBackend + CollectiveKernels> Parallel for Warpweave<B> {
    fn world(&self) -> usize {
        self.world
    }

    fn column(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        rows: usize,
    ) -> Result<Tensor> {
        let shape = Columns {
            bias: bias.is_some(),
            ..Columns::of(weight)?
        };
        let operands: Vec<&Tensor> = [x, weight].into_iter().chain(bias).collect();
        self.columns_of(shape, &operands, rows)
    }

    fn swiglu(&self, x: &Tensor, gate_up: &Tensor, rows: usize) -> Result<Tensor> {
        let shape = Columns {
            activation: Activation::SwiGlu,
            ..Columns::of(gate_up)?
        };
        self.columns_of(shape, &[x, gate_up], rows)
    }

    fn row_add_norm(
        &self,
        x: &Tensor,
        weight: &Tensor,
        residual: &Tensor,
        norm: &Norm<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let ((rows, _), (out, from)) = (x.dims2()?, weight.dims2()?);
        if rows * out * x.dtype().size_in_bytes() <= self.batches.fused_bytes {
            let partial = self.column(x, weight, None, rows)?;
            return self.add_norm(&partial, true, residual, norm);
        }
        let is_sharded = rows > self.batches.most_whole(self.world);
        let (layers, own) = match is_sharded {
            true => (&self.scattering, shard(rows, self.rank, self.world)),
            false => (&self.rows, 0..rows),
        };
        let layer = layers.get(&(out, from)).ok_or_else(|| no_layer(weight))?;
        let call = |operands: &[DeviceSlice<'_>], y: DeviceSlice<'_>| {
            Ok(layer.forward(&self.place.stream, operands[0], operands[1], None, y, rows)?)
        };
        let y = self.compute("row-parallel-linear", (own.len(), out), &[x, weight], &call)?;
        // That of the first layer has all rows.
        let residual = match residual.dim(0)? == own.len() {
            true => residual,
            false => &residual.narrow(0, own.start, own.len())?,
        };
        self.add_norm(&y, false, residual, norm)
    }

    fn norm(&self, x: &Tensor, norm: &Norm<'_>) -> Result<Tensor> {
        Ok(self.add_norm(x, false, &x.zeros_like()?, norm)?.1)
    }

    fn all_rows(&self, x: &Tensor, rows: usize) -> Result<Tensor> {
        let own = x.dim(0)?;
        if own == rows {
            return Ok(x.clone());
        }
        // Shards differ by a row; all send as many.
        let most = rows.div_ceil(self.world);
        let x = x.pad_with_zeros(0, 0, most - own)?;
        let by_rank = self.by_rank(&x)?;
        let shards = (0..self.world)
            .map(|rank| {
                by_rank
                    .get(rank)?
                    .narrow(0, 0, shard(rows, rank, self.world).len())
            })
            .collect::<candle_core::Result<Vec<_>>>()?;
        Ok(Tensor::cat(&shards, 0)?)
    }

    fn select(&self, x: &Tensor, rows: usize, wanted: &[u32]) -> Result<Tensor> {
        let shards: Vec<_> = (0..self.world)
            .map(|rank| shard(rows, rank, self.world))
            .collect();
        let at = |x: &Tensor, rows: Vec<u32>| x.index_select(&Tensor::new(rows, x.device())?, 0);
        if x.dim(0)? == rows || rows < self.world {
            return Ok(at(&self.all_rows(x, rows)?, wanted.to_vec())?);
        }
        // A rank that does not have a row sends another one.
        let own = &shards[self.rank];
        let last = own.len() as u32 - 1;
        let sent = |&row: &u32| row.saturating_sub(own.start as u32).min(last);
        let by_rank = self.by_rank(&at(x, wanted.iter().map(sent).collect())?)?;
        let received = wanted.iter().enumerate().map(|(index, &row)| {
            let is_owner = |shard: &Range<usize>| shard.contains(&(row as usize));
            let owner = shards.iter().position(is_owner).unwrap_or_default();
            (owner * wanted.len() + index) as u32
        });
        Ok(at(&by_rank.flatten_to(1)?, received.collect())?)
    }

    fn all_gather(&self, columns: &Tensor) -> Result<Tensor> {
        side_by_side(&self.by_rank(columns)?)
    }

    unsafe fn capture(&self, step: &dyn Fn() -> Result<()>) -> Result<Option<Launch>> {
        // SAFETY: the caller's obligation.
        unsafe { self.place.capture(step) }
    }

    fn finish(&self) -> Result<()> {
        let synchronized = self.executor.synchronize(&self.place.stream);
        // Which peer was late comes before what that led to.
        self.collectives.check(&self.place.stream)?;
        Ok(synchronized?)
    }
}

impl<B: ExecuteBackend + CollectiveKernels> std::fmt::Debug for Warpweave<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let device = self.place.backend.device();
        write!(f, "Warpweave on {} of {} ranks", device.name, self.world)
    }
}

/// As [`Warpweave`] with nothing to communicate: what is left is the time of the computation. Results are
/// wrong.
#[derive(Debug)]
pub struct Silent<'a, B: ExecuteBackend + CollectiveKernels>(pub &'a Warpweave<B>);

impl<B: ExecuteBackend + CollectiveKernels> Parallel for Silent<'_, B> {
    fn world(&self) -> usize {
        self.0.world
    }

    fn column(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        rows: usize,
    ) -> Result<Tensor> {
        self.0.column(x, weight, bias, rows)
    }

    fn swiglu(&self, x: &Tensor, gate_up: &Tensor, rows: usize) -> Result<Tensor> {
        self.0.swiglu(x, gate_up, rows)
    }

    fn row_add_norm(
        &self,
        x: &Tensor,
        weight: &Tensor,
        residual: &Tensor,
        norm: &Norm<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let partial = self.0.column(x, weight, None, x.dim(0)?)?;
        self.0.add_norm(&partial, false, residual, norm)
    }

    fn norm(&self, x: &Tensor, norm: &Norm<'_>) -> Result<Tensor> {
        self.0.norm(x, norm)
    }

    fn all_gather(&self, columns: &Tensor) -> Result<Tensor> {
        side_by_side(&Tensor::stack(&vec![columns; self.0.world], 0)?)
    }

    fn finish(&self) -> Result<()> {
        self.0.finish()
    }

    unsafe fn capture(&self, step: &dyn Fn() -> Result<()>) -> Result<Option<Launch>> {
        // SAFETY: the caller's obligation.
        unsafe { self.0.capture(step) }
    }
}
