//! Attention of decode steps that can be captured: a token of every slot, of which there is a fixed number,
//! at fixed addresses. Positions are read on the device, so a graph of one step serves all steps.
//!
//! Every slot looks at its whole capacity and hides what comes after its position. Whether some slots are
//! empty changes nothing for the others, and no shape.

use candle_core::{DType, Device, Result, Tensor};

use crate::attention::{Attend, Cache, hidden};

/// Keys and values of the slots, by layer: `[slots, key heads, capacity, head]`.
#[derive(Debug)]
pub struct Slots {
    layers: Vec<[Tensor; 2]>,
    /// 0, 1 and so on, u32, `[capacity]`. Made once: a captured step uploads nothing.
    at: Tensor,
}

/// A step: each slot's new token is at its position.
#[derive(Debug)]
pub struct Step<'a> {
    slots: &'a Slots,
    /// `[slots, key heads, 1, head]`: where new keys and values go.
    places: Tensor,
    /// `[slots, 1, 1, capacity]`.
    mask: Tensor,
}

impl Slots {
    /// Empty slots of this shape.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(
        layers: usize,
        shape: (usize, usize, usize, usize),
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let zeros = || Tensor::zeros(shape, dtype, device);
        let layers = (0..layers).map(|_| Ok([zeros()?, zeros()?]));
        Ok(Slots {
            layers: layers.collect::<Result<_>>()?,
            at: Tensor::arange(0, shape.2 as u32, device)?,
        })
    }

    /// Takes the first `rows` tokens of a request's cache into a slot: its prompt.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn load(&self, slot: usize, cache: &Cache, request: usize, rows: usize) -> Result<()> {
        for (layer, slots) in self.layers.iter().enumerate() {
            for (to, from) in slots.iter().zip(cache.of(request, layer)) {
                let from = from.narrow(1, 0, rows)?.contiguous()?;
                to.narrow(0, slot, 1)?.squeeze(0)?.slice_set(&from, 1, 0)?;
            }
        }
        Ok(())
    }

    /// A step of all slots at `positions`, u32, `[slots]`.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn step(&self, positions: &Tensor) -> Result<Step<'_>> {
        let (slots, key_heads, capacity, head) = self.layers[0][0].dims4()?;
        let places = positions
            .reshape((slots, 1, 1, 1))?
            .broadcast_as((slots, key_heads, 1, head))?;
        let mask = hidden(positions, &self.at)?.reshape((slots, 1, 1, capacity))?;
        Ok(Step {
            slots: self,
            places: places.contiguous()?,
            mask,
        })
    }
}

impl Attend for Step<'_> {
    fn attend(&self, layer: usize, [q, k, v]: [&Tensor; 3]) -> Result<Tensor> {
        let [keys, values] = &self.slots.layers[layer];
        let (slots, key_heads, capacity, head) = keys.dims4()?;
        let query_heads = q.dim(1)?;
        let groups = query_heads / key_heads;
        for (cached, new) in [(keys, k), (values, v)] {
            cached.scatter_set(&self.places, &new.unsqueeze(2)?.contiguous()?, 2)?;
        }
        let (batch, row) = (slots * key_heads, (slots, key_heads, groups, capacity));
        let q = q.reshape((batch, groups, head))?;
        let keys = keys.reshape((batch, capacity, head))?;
        let values = values.reshape((batch, capacity, head))?;
        let scores = (q.matmul(&keys.t()?)?.to_dtype(DType::F32)? * (head as f64).powf(-0.5))?;
        let scores = scores.reshape(row)?.broadcast_add(&self.mask)?;
        let weights = candle_nn::ops::softmax_last_dim(&scores)?.to_dtype(values.dtype())?;
        let attended = weights
            .reshape((batch, groups, capacity))?
            .matmul(&values)?;
        attended.reshape((slots, query_heads * head))
    }
}
