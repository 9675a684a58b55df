//! Rotary position embeddings, as Llama stores them: the two halves of a head are the coordinates.
//!
//! All heads of a row are rotated at once, in one operation of candle's: those of the queries are scaled for
//! attention on the way, and those of the values are not rotated. `fused` rotates in its kernels.

use std::cell::OnceCell;
use std::f64::consts::TAU;

use candle_core::{DType, Device, Result, Tensor};

use crate::config::{Config, RopeScaling};

/// Cosines and sines of all positions, `[positions, 3, head / 2]`: for queries, for keys and for values.
#[derive(Debug)]
pub struct Rope {
    tables: [Tensor; 2],
    /// Which of the three a head takes, u32, `[heads]`. Made once: a captured step uploads nothing.
    kinds: Tensor,
}

/// What all layers turn the rows of a batch by.
#[derive(Debug)]
pub struct Rotations<'a> {
    rope: &'a Rope,
    positions: Tensor,
    /// Cosines and sines by head, `[rows · heads, 1, head / 2]`, once candle has been asked to rotate.
    by_head: OnceCell<[Tensor; 2]>,
}

impl Rope {
    /// For `positions` positions, and rows of so many heads of queries, then of keys, then of values, in
    /// `dtype`.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(
        config: &Config,
        positions: usize,
        (q_heads, k_heads): (usize, usize),
        dtype: DType,
        device: &Device,
    ) -> Result<Self> {
        let frequencies = &frequencies(config);
        let scale = (config.head_dim() as f64).powf(-0.5);
        let table = |of: fn(f64) -> f64, of_values: f64| {
            let values = (0..positions).flat_map(|at| {
                let turned = move |factor: f64| {
                    let angles = frequencies.iter().map(move |f| at as f64 * f);
                    angles.map(move |angle| (factor * of(angle)) as f32)
                };
                let unturned = frequencies.iter().map(move |_| of_values as f32);
                turned(scale).chain(turned(1.0)).chain(unturned)
            });
            let shape = (positions, 3, frequencies.len());
            Tensor::from_vec(values.collect::<Vec<_>>(), shape, device)?.to_dtype(dtype)
        };
        let counts = [q_heads, k_heads, k_heads];
        let kinds = (0..)
            .zip(counts)
            .flat_map(|(kind, count)| vec![kind; count]);
        Ok(Rope {
            tables: [table(f64::cos, 1.0)?, table(f64::sin, 0.0)?],
            kinds: Tensor::from_vec(kinds.collect::<Vec<u32>>(), q_heads + 2 * k_heads, device)?,
        })
    }

    /// What all layers turn rows at these positions by: u32, `[rows]`.
    pub fn at(&self, positions: &Tensor) -> Rotations<'_> {
        Rotations {
            rope: self,
            positions: positions.clone(),
            by_head: OnceCell::new(),
        }
    }
}

impl Rotations<'_> {
    /// Positions of the rows, u32, `[rows]`.
    pub fn positions(&self) -> &Tensor {
        &self.positions
    }

    /// Cosines and sines of all positions, `[positions, 3, head / 2]`: for queries, for keys and for values.
    pub fn tables(&self) -> &[Tensor; 2] {
        &self.rope.tables
    }

    /// The heads of `qkv`, `[rows, heads, head]`, contiguous, of the rows from `start` on: queries and keys
    /// rotated, queries scaled by one over the square root of the head's width, values as they were.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn rotate(&self, qkv: &Tensor, start: usize) -> Result<Tensor> {
        let (rows, heads, head) = qkv.dims3()?;
        let [cos, sin] = &self.rope.tables;
        let by_head = || Ok([self.of_heads(cos)?, self.of_heads(sin)?]);
        let [cos, sin] = once(&self.by_head, by_head)?
            .each_ref()
            .map(|table| table.narrow(0, start * heads, rows * heads));
        // To candle each head is a sequence of one token, with cosines of its own.
        let each = qkv.reshape((rows * heads, 1, 1, head))?;
        candle_nn::rotary_emb::rope(&each, &cos?, &sin?)?.reshape((rows, heads, head))
    }

    fn of_heads(&self, table: &Tensor) -> Result<Tensor> {
        let of_heads = table
            .index_select(&self.positions, 0)?
            .index_select(&self.rope.kinds, 1)?;
        let (rows, heads, pairs) = of_heads.dims3()?;
        of_heads.reshape((rows * heads, 1, pairs))
    }
}

/// What `cell` has, which `make` makes the first time.
pub(crate) fn once<T>(cell: &OnceCell<T>, make: impl FnOnce() -> Result<T>) -> Result<&T> {
    if let Some(made) = cell.get() {
        return Ok(made);
    }
    let made = make()?;
    Ok(cell.get_or_init(|| made))
}

/// Radians a position, for each pair of coordinates.
fn frequencies(config: &Config) -> Vec<f64> {
    let head = config.head_dim();
    let plain = (0..head / 2).map(|pair| config.rope_theta.powf(-2.0 * pair as f64 / head as f64));
    plain
        .map(|frequency| scaled(frequency, config.rope_scaling.as_ref()))
        .collect()
}

fn scaled(frequency: f64, scaling: Option<&RopeScaling>) -> f64 {
    match scaling {
        None | Some(RopeScaling::Default) => frequency,
        Some(RopeScaling::Linear { factor }) => frequency / factor,
        Some(RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings,
        }) => {
            let turns = *original_max_position_embeddings as f64 * frequency / TAU;
            let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            frequency * (kept + (1.0 - kept) / factor)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition in `transformers` (`_compute_llama3_parameters`), case by case.
    #[test]
    fn llama3_scaling_is_as_defined() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        for pair in 0..64 {
            let frequency = 500_000f64.powf(-f64::from(pair) / 64.0);
            let wavelength = TAU / frequency;
            let smooth = (8192.0 / wavelength - 1.0) / 3.0;
            let expected = match wavelength {
                short if short < 8192.0 / 4.0 => frequency,
                long if long > 8192.0 => frequency / 8.0,
                _ => (1.0 - smooth) * frequency / 8.0 + smooth * frequency,
            };
            assert!(
                (scaled(frequency, Some(&scaling)) / expected - 1.0).abs() < 1e-12,
                "pair {pair}"
            );
        }
    }
}
