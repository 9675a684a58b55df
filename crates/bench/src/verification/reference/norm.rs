//! The reference of a residual addition and RMSNorm after a GEMM, row by row, with an error bound for each
//! element.

use warpweave_symm_mem::DType;

/// Roundings to the element type after that of x: of the new residual, and of the normalized row.
pub(super) const ROUNDINGS: [usize; 2] = [1, 2];

/// Elements, and the error that each may have.
#[derive(Debug)]
pub(super) struct Row {
    pub wanted: Vec<f32>,
    pub slack: Vec<f64>,
}

/// The new residual and the normalized row of x, the reduced GEMM, of which each element may be `slack` off.
///
/// With δ how far r = x + residual may be off, its rounding included, and ρ = ‖δ‖ / ‖r‖, the root of the
/// mean of squares is off by a factor within 1 ± ρ, and the norm by one within 1 / (1 ± ρ). So y = r · norm ·
/// weight is off by at most (|weight| · norm · δ + |y| · ρ) / (1 - ρ), and by its own roundings: one to the
/// element type and those of f32, of which there are about half as many as additions of squares in a chain.
/// Whatever ρ is, no |y| exceeds √n · |weight|.
pub(super) fn bounded(
    dtype: DType,
    (x, slack): (&[f32], &[f64]),
    [residual, weight]: [&[f32]; 2],
    epsilon: f32,
) -> [Row; 2] {
    let unit = dtype.epsilon() / 2.0 * 1.001;
    let hidden = x.len() as f64;
    let add = |(x, residual): (&f32, &f32)| f64::from(*x) + f64::from(*residual);
    let r: Vec<f64> = x.iter().zip(residual).map(add).collect();
    let off = |(r, slack): (&f64, &f64)| slack + (r.abs() + slack) * unit;
    let delta: Vec<f64> = r.iter().zip(slack).map(off).collect();
    let squares = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>();
    let norm = 1.0 / (squares(&r) / hidden + f64::from(epsilon)).sqrt();
    let rho = (squares(&delta) / squares(&r)).sqrt();
    // The order of `norm.cuh`: units of 48 bytes, 32 of them in five steps, and segments of these.
    let unit_elements = 48.0 / dtype.size() as f64;
    let chain = unit_elements + 5.0 + (hidden / (32.0 * unit_elements)).ceil();
    let own = unit + (chain / 2.0 + 6.0) * f64::from(f32::EPSILON);
    let each = r.iter().zip(&delta).zip(weight);
    let normalized = each.map(|((r, delta), weight)| {
        let weight = f64::from(*weight);
        let y = r * norm * weight;
        let of_r = match rho < 1.0 {
            true => (weight.abs() * norm * delta + y.abs() * rho) / (1.0 - rho),
            false => f64::INFINITY,
        };
        let most = hidden.sqrt() * weight.abs();
        let slack = of_r.min(y.abs() + most);
        (y as f32, slack + (y.abs() + slack) * own + SMALLEST)
    });
    let (wanted, slack) = normalized.unzip();
    // The reference is rounded to f32 itself.
    let rounding = |r: &f64| r.abs() * f64::from(f32::EPSILON) / 2.0;
    let slack_of_sums = r.iter().zip(&delta).map(|(r, delta)| delta + rounding(r));
    let residual = Row {
        wanted: r.iter().map(|r| *r as f32).collect(),
        slack: slack_of_sums.collect(),
    };
    [residual, Row { wanted, slack }]
}

/// Half the distance of numbers so small that f16 has no more digits for them, and more.
const SMALLEST: f64 = 1e-7;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inputs::mix;
    use warpweave_comm::collective::norm::arithmetic::add_rms_norm;
    use warpweave_symm_mem::host::rounded;

    /// Rows whose x is anywhere within its slack are right, and elements that are further off are not.
    #[test]
    fn norms_of_what_is_within_its_slack_are_within_theirs() {
        let mut place = 0;
        let mut next = || {
            place += 1;
            (mix(place) >> 40) as f32 / (1u32 << 23) as f32 - 1.0
        };
        for dtype in [DType::F16, DType::Bf16, DType::F32] {
            let mut worst = [0.0f64; 2];
            for hidden in [1, 2, 7, 64, 1000] {
                for _ in 0..50 {
                    let mut row =
                        |scale: f32| -> Vec<f32> { (0..hidden).map(|_| scale * next()).collect() };
                    let (x, residual, weight) = (row(4.0), row(1.0), row(1.0));
                    let [residual, weight] = [residual, weight]
                        .map(|row| Vec::from_iter(row.iter().map(|v| rounded(dtype, *v))));
                    let slack = x.iter().map(|x| f64::from(x.abs()) * dtype.epsilon() * 2.0);
                    let slack: Vec<f64> = slack.collect();
                    let off = row(1.0);
                    // Rounded to the element type after that, by as much again as is left.
                    let near = |((x, slack), off): ((&f32, &f64), f32)| {
                        rounded(dtype, x + (0.7 * slack) as f32 * off)
                    };
                    let near: Vec<f32> = x.iter().zip(&slack).zip(off).map(near).collect();
                    let wanted = bounded(dtype, (&x, &slack), [&residual, &weight], 1e-5);
                    let got = add_rms_norm(dtype, [&near, &residual, &weight], 1e-5);
                    for (which, (wanted, got)) in wanted.iter().zip(&got).enumerate() {
                        let each = wanted.wanted.iter().zip(&wanted.slack).zip(got);
                        for ((wanted, slack), got) in each {
                            let used = f64::from((got - wanted).abs()) / slack;
                            assert!(used <= 1.0, "{dtype} {hidden} {which}: {got} for {wanted}");
                            worst[which] = worst[which].max(used);
                        }
                    }
                }
            }
            // The bounds are not far above what happens.
            assert!(worst.iter().all(|used| *used > 0.25), "{dtype}: {worst:?}");
        }
    }
}
