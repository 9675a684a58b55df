//! Rotary position embeddings, as Llama stores them: the two halves of a head are the coordinates.

use std::f64::consts::TAU;

use candle_core::{DType, Device, Result, Tensor};

use crate::config::{Config, RopeScaling};

/// Cosines and sines of all positions, `[positions, head / 2]`.
#[derive(Debug)]
pub struct Rope {
    cos: Tensor,
    sin: Tensor,
}

impl Rope {
    /// For `positions` positions, in `dtype`.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn new(config: &Config, positions: usize, dtype: DType, device: &Device) -> Result<Self> {
        let frequencies = frequencies(config);
        let pairs = frequencies.len();
        let angles = (0..positions).flat_map(|at| frequencies.iter().map(move |f| at as f64 * f));
        let angles = angles.collect::<Vec<_>>();
        let table = |of: fn(f64) -> f64| {
            let values: Vec<f32> = angles.iter().map(|angle| of(*angle) as f32).collect();
            Tensor::from_vec(values, (positions, pairs), device)?.to_dtype(dtype)
        };
        Ok(Rope {
            cos: table(f64::cos)?,
            sin: table(f64::sin)?,
        })
    }

    /// Rotates the heads of `x`, `[rows, heads, head]`, to the positions of the rows: u32, `[rows]`.
    ///
    /// # Errors
    /// Errors of the device.
    pub fn rotate(&self, x: &Tensor, positions: &Tensor) -> Result<Tensor> {
        let (cos, sin) = (
            self.cos.index_select(positions, 0)?,
            self.sin.index_select(positions, 0)?,
        );
        // Each row is a sequence of one token to candle, with cosines of its own.
        let rotated = candle_nn::rotary_emb::rope(
            &x.unsqueeze(2)?.contiguous()?,
            &cos.unsqueeze(1)?,
            &sin.unsqueeze(1)?,
        )?;
        rotated.squeeze(2)
    }
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
