//! Attention of decode steps that can be captured: a token of every slot, of which there is a fixed number,
//! at fixed addresses. Positions are read on the device, so a graph of one step serves all steps.
//!
//! In candle's operations every slot looks at its whole capacity and hides what comes after its position; the
//! kernel of `fused` stops there. Whether some slots are empty changes nothing for the others, and no shape.

use std::cell::OnceCell;

use candle_core::{DType, Device, Result, Tensor};

use crate::attention::{Attend, Cache, hidden, softmax};
use crate::fused;
use crate::rope::{Rotations, once};

/// Keys and values of the slots, by layer: `[2, slots · key heads, capacity, head]`.
#[derive(Debug)]
pub struct Slots {
    layers: Vec<Tensor>,
    count: usize,
    /// 0, 1 and so on, u32, `[capacity]`. Made once: a captured step uploads nothing.
    at: Tensor,
}

/// A step: each slot's new token is at its position.
#[derive(Debug)]
pub struct Step<'a> {
    slots: &'a Slots,
    /// What candle's operations take, once they have been asked.
    masked: OnceCell<Masked>,
}

#[derive(Debug)]
struct Masked {
    /// `[2, slots · key heads, 1, head]`: where new keys and values go.
    places: Tensor,
    /// `[slots, 1, 1, capacity]`.
    mask: Tensor,
}

impl Slots {
    /// `count` empty slots, of so many key heads, tokens and elements of a head.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(
        layers: usize,
        count: usize,
        (key_heads, capacity, head): (usize, usize, usize),
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let shape = (2, count * key_heads, capacity, head);
        let layers = (0..layers).map(|_| Tensor::zeros(shape, dtype, device));
        Ok(Slots {
            layers: layers.collect::<Result<_>>()?,
            count,
            at: Tensor::arange(0, capacity as u32, device)?,
        })
    }

    /// Takes the first `rows` tokens of a request's cache into a slot: its prompt.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn load(&self, slot: usize, cache: &Cache, request: usize, rows: usize) -> Result<()> {
        for (layer, slots) in self.layers.iter().enumerate() {
            let from = cache.of(request, layer).narrow(1, 0, rows)?;
            let key_heads = from.dim(0)? / 2;
            for which in 0..2 {
                let from = from.narrow(0, which * key_heads, key_heads)?.contiguous()?;
                let to = slots.get(which)?.narrow(0, slot * key_heads, key_heads)?;
                to.slice_set(&from, 1, 0)?;
            }
        }
        Ok(())
    }

    /// Sets the keys and values of a layer, `[2, slots · key heads, capacity, head]`.
    #[cfg(all(test, feature = "cuda", feature = "nvcc"))]
    pub(crate) fn fill(&self, layer: usize, all: &Tensor) -> Result<()> {
        self.layers[layer].slice_set(all, 0, 0)
    }

    /// A step of all slots.
    pub fn step(&self) -> Step<'_> {
        Step {
            slots: self,
            masked: OnceCell::new(),
        }
    }

    fn masked(&self, positions: &Tensor) -> Result<Masked> {
        let (_, heads, capacity, head) = self.layers[0].dims4()?;
        let key_heads = heads / self.count;
        let places = positions
            .reshape((1, self.count, 1, 1))?
            .broadcast_as((2, self.count, key_heads, head))?
            .reshape((2, heads, 1, head))?;
        let mask = hidden(positions, &self.at, self.layers[0].dtype())?;
        Ok(Masked {
            places: places.contiguous()?,
            mask: mask.reshape((self.count, 1, 1, capacity))?,
        })
    }
}

impl Attend for Step<'_> {
    fn attend(
        &self,
        layer: usize,
        qkv: &Tensor,
        turns: &Rotations<'_>,
        key_heads: usize,
    ) -> Result<Tensor> {
        let cache = &self.slots.layers[layer];
        if let Some(attended) = fused::attention(qkv, cache, key_heads, turns, 0)? {
            return Ok(attended);
        }
        let masked = || self.slots.masked(turns.positions());
        let Masked { places, mask } = once(&self.masked, masked)?;
        let (_, batch, capacity, head) = cache.dims4()?;
        let (slots, heads, _) = qkv.dims3()?;
        let groups = heads / key_heads - 2;
        let qkv = turns.rotate(qkv, 0)?;
        // Keys and values go to their places in one operation.
        let new = qkv
            .reshape((slots, groups + 2, key_heads, head))?
            .narrow(1, groups, 2)?
            .transpose(0, 1)?
            .reshape((2, batch, 1, head))?;
        cache.scatter_set(places, &new.contiguous()?, 2)?;
        let (keys, values) = (cache.get(0)?, cache.get(1)?);
        let q = qkv.narrow(1, 0, groups * key_heads)?;
        let scores = q
            .reshape((batch, groups, head))?
            .matmul(&keys.t()?)?
            .reshape((slots, key_heads, groups, capacity))?
            .broadcast_add(mask)?;
        let attended = softmax(&scores)?
            .reshape((batch, groups, capacity))?
            .matmul(&values)?;
        attended.reshape((slots, groups * key_heads * head))
    }
}
