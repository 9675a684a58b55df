//! Decode steps on the device alone: each feeds its most probable tokens to the next. On a GPU one step is
//! captured in a graph, and a step is a launch.
//!
//! What makes candle's operations capturable:
//! - They enqueue on one stream, without events of cudarc's, which
//!   [`Place::gpu`](crate::place::Place) turns off.
//! - They allocate from the stream-ordered pool, which a capture turns into memory nodes. Everything that a
//!   step allocates it also frees, so the graph can be launched again and again. The kernels of the layers
//!   have their results in memory of their own (`scratch.rs`).
//! - Shapes and strides of operands that are not contiguous are uploaded. `enable_cuda_graph_htod_cache`
//!   keeps what the steps before the capture uploaded.
//! - Nothing is downloaded: tokens and positions stay on the device, at addresses that do not change.

use std::time::{Duration, Instant};

use candle_core::Tensor;
use warpweave_symm_mem::{Backend, BackendKind};

use crate::error::Result;
use crate::model::Model;
use crate::place::Place;
#[cfg(feature = "cuda")]
use crate::scratch::Scratch;
use crate::slots::Slots;

/// A batch that decodes.
pub struct Decode<'a, B: Backend> {
    place: &'a Place<B>,
    model: &'a Model<'a>,
    state: State,
    /// A step, on backends where candle's work can be captured. Dropped before what it uses.
    captured: Option<Captured<B>>,
    context: usize,
}

struct Captured<B: Backend> {
    graph: B::Graph,
    /// The results of its kernels.
    #[cfg(feature = "cuda")]
    _scratch: Scratch,
}

/// What a step reads and writes, at fixed addresses.
struct State {
    slots: Slots,
    /// u32, `[slots]` each.
    tokens: Tensor,
    positions: Tensor,
    one: Tensor,
}

impl State {
    fn step(&self, model: &Model<'_>) -> Result<()> {
        let step = self.slots.step();
        let x = model.transform(&self.tokens, &self.positions, &step)?;
        let next = model.most_probable(&x)?;
        self.tokens.slice_set(&next, 0, 0)?;
        self.positions
            .slice_set(&(&self.positions + &self.one)?, 0, 0)?;
        Ok(())
    }

    fn begin(&self, context: usize) -> Result<()> {
        let begin = self
            .one
            .to_dtype(candle_core::DType::F32)?
            .affine(context as f64, 0.0)?;
        self.positions
            .slice_set(&begin.to_dtype(candle_core::DType::U32)?, 0, 0)?;
        Ok(())
    }
}

impl<B: Backend> std::fmt::Debug for Decode<'_, B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "decode after {} tokens", self.context)
    }
}

impl<'a, B: Backend> Decode<'a, B> {
    /// `batch` requests of up to `capacity` tokens, of which `context` are there already. Their keys and
    /// values are zeros: the time does not depend on them.
    ///
    /// # Errors
    /// What the model and the capture report.
    pub fn new(
        place: &'a Place<B>,
        model: &'a Model<'a>,
        batch: usize,
        capacity: usize,
        context: usize,
    ) -> Result<Self> {
        let tokens: Vec<u32> = (0..batch as u32).collect();
        let numbers = |values: Vec<u32>| Tensor::new(values, &place.candle);
        let state = State {
            slots: model.slots(batch, capacity)?,
            tokens: numbers(tokens)?,
            positions: numbers(vec![context as u32; batch])?,
            one: numbers(vec![1; batch])?,
        };
        let captured = match B::KIND {
            BackendKind::Host => None,
            BackendKind::Cuda => Some(capture(place, || state.step(model))?),
        };
        Ok(Decode {
            place,
            model,
            state,
            captured,
            context,
        })
    }

    /// The tokens that the last step has chosen, by slot.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn tokens(&self) -> Result<Vec<u32>> {
        Ok(self.state.tokens.to_vec1()?)
    }

    /// The time of a step, of so many.
    ///
    /// # Errors
    /// A rank that did not come in time; errors of the device.
    pub fn run(&self, steps: usize) -> Result<Duration> {
        self.state.begin(self.context)?;
        self.model.finish()?;
        let began = Instant::now();
        for _ in 0..steps {
            match &self.captured {
                // SAFETY: the graph uses the state, the weights and the layers, which outlive this value, and
                // what the cache of uploads keeps until the thread ends. All ranks launch theirs.
                Some(Captured { graph, .. }) => unsafe {
                    self.place.backend.launch_graph(graph, &self.place.stream)?
                },
                None => self.state.step(self.model)?,
            }
        }
        self.model.finish()?;
        Ok(began.elapsed() / steps as u32)
    }
}

/// Captures `step`, after two that do the work of first calls: loading kernels, preparing layers, uploading
/// shapes.
#[cfg(feature = "cuda")]
fn capture<B: Backend>(place: &Place<B>, step: impl Fn() -> Result<()>) -> Result<Captured<B>> {
    let device = place.candle.as_cuda_device()?;
    let _uploads = device.enable_cuda_graph_htod_cache();
    step()?;
    step()?;
    place.candle.synchronize()?;
    let capture = || place.backend.capture(&place.stream, step);
    let (graph, _scratch) = Scratch::of(device, capture)?;
    Ok(Captured { graph, _scratch })
}

#[cfg(not(feature = "cuda"))]
fn capture<B: Backend>(place: &Place<B>, step: impl Fn() -> Result<()>) -> Result<Captured<B>> {
    let graph = place.backend.capture(&place.stream, step)?;
    Ok(Captured { graph })
}
