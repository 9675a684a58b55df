//! Random numbers, and elements made of them.

use std::ops::Range;

use warpweave_gemm::host::Element;

/// Numbers of chance.
pub use fastrand::Rng as Random;

/// Reals of size one at most, of an element type.
pub fn reals<T: Element>(len: usize, seed: u64) -> Vec<T> {
    let mut random = Random::with_seed(seed);
    let wide: Vec<f32> = (0..len).map(|_| 2.0 * random.f32() - 1.0).collect();
    let mut values = vec![T::default(); len];
    T::round(&wide, &mut values);
    values
}

pub fn bytes<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: elements are plain numbers without padding, and the length is in bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

pub fn elements<T: Element>(bytes: &[u8]) -> Vec<T> {
    let mut values = vec![T::default(); bytes.len() / size_of::<T>()];
    // SAFETY: any bytes make elements, and both have so many.
    unsafe {
        let to = values.as_mut_ptr().cast();
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, size_of_val(values.as_slice()));
    }
    values
}

/// By the definition: partials that were rounded, in the order of ranks, the bias, and one rounding.
pub fn reduce<T: Element>(partials: &[Vec<T>], bias: Option<&[T]>) -> Vec<T> {
    let len = partials[0].len();
    let (mut total, mut wide) = (vec![-0.0f32; len], vec![0.0f32; len]);
    for partial in partials {
        T::widen(partial, &mut wide);
        for (total, term) in total.iter_mut().zip(&wide) {
            *total += term;
        }
    }
    if let Some(bias) = bias {
        let mut wide = vec![0.0; bias.len()];
        T::widen(bias, &mut wide);
        for row in total.chunks_exact_mut(bias.len()) {
            for (total, bias) in row.iter_mut().zip(&wide) {
                *total += bias;
            }
        }
    }
    let mut result = vec![T::default(); len];
    T::round(&total, &mut result);
    result
}

/// Shards of `m` rows, some of them empty.
pub fn shards(random: &mut Random, m: usize, world: usize) -> Vec<Range<usize>> {
    let mut cuts: Vec<usize> = (1..world).map(|_| random.usize(..=m)).collect();
    cuts.sort_unstable();
    let starts = std::iter::once(0).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([m]);
    starts.zip(ends).map(|(start, end)| start..end).collect()
}
