//! The twin of `accumulator.cuh`: reductions in f32, for any element type.

use warpweave_symm_mem::host::Element;

/// Elements reduced at a time.
pub(crate) const BATCH: usize = 512;

/// Reduces the sources, in their order, into `sum`, of at most [`BATCH`] elements. Starts from negative zero,
/// the neutral element: positive zero would lose the sign of a sum of negative zeros.
///
/// # Safety
/// Each source has as many elements as `sum`, aligned, which nothing writes meanwhile.
pub(crate) unsafe fn reduce<T: Element>(sources: impl Iterator<Item = *const T>, sum: &mut [T]) {
    let count = sum.len();
    let mut total = [-0.0f32; BATCH];
    let mut terms = [0.0f32; BATCH];
    for source in sources {
        // SAFETY: the caller's obligation.
        T::widen(
            unsafe { std::slice::from_raw_parts(source, count) },
            &mut terms[..count],
        );
        for (total, term) in total[..count].iter_mut().zip(&terms) {
            *total += term;
        }
    }
    T::round(&total[..count], sum);
}

#[cfg(all(test, not(loom)))]
mod tests {
    use half::{bf16, f16};

    use super::*;

    fn of<T: Element>(ranks: &[&[T]]) -> Vec<T> {
        let mut out = vec![T::default(); ranks[0].len()];
        // SAFETY: the slices are as long as the first.
        unsafe { reduce(ranks.iter().map(|rank| rank.as_ptr()), &mut out) };
        out
    }

    #[test]
    fn sums_are_taken_in_the_order_of_ranks_and_rounded_once() {
        let (large, small) = (1.0f32, f32::EPSILON / 2.0);
        assert_eq!(of(&[&[large], &[small], &[small]]), [1.0]);
        assert_eq!(of(&[&[small], &[small], &[large]]), [1.0 + f32::EPSILON]);
        // 1 + 2⁻¹¹ lies half way between two f16: the even one; a little more, and it is the other.
        let (one, half_step) = (f16::ONE, f16::from_f32(2.0f32.powi(-11)));
        assert_eq!(of(&[&[one], &[half_step]]), [f16::ONE]);
        let more = f16::from_f32(2.0f32.powi(-20));
        assert_eq!(
            of(&[&[one], &[half_step], &[more]]),
            [f16::from_bits(0x3c01)]
        );
        let (one, half_step) = (bf16::ONE, bf16::from_f32(2.0f32.powi(-8)));
        assert_eq!(of(&[&[one], &[half_step]]), [bf16::ONE]);
    }

    #[test]
    fn a_sum_of_negative_zeros_is_one() {
        assert!(of(&[&[-0.0f32], &[-0.0]])[0].is_sign_negative());
        assert!(of(&[&[-0.0f32], &[0.0]])[0].is_sign_positive());
        assert_eq!(
            of(&[&[f16::NEG_ZERO], &[f16::NEG_ZERO]])[0].to_bits(),
            0x8000
        );
    }

    #[test]
    fn a_sum_beyond_the_type_is_infinite() {
        assert_eq!(of(&[&[f16::MAX], &[f16::MAX]]), [f16::INFINITY]);
        assert_eq!(of(&[&[bf16::MIN], &[bf16::MIN]]), [bf16::NEG_INFINITY]);
    }
}
