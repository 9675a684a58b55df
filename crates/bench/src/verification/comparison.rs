//! Every element of an output against the reference.

use std::iter::Sum;

use warpweave_symm_mem::DType;

use crate::inputs::Numbers;
use warpweave_symm_mem::host::{decode, encode, rounded};

/// How an output compares with the reference.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Elements compared.
    pub elements: u64,
    /// Elements that are not what they must be: with integers not the one right value, with reals not finite
    /// or further off than one rounding and the sums explain.
    pub wrong: u64,
    /// The first wrong element.
    pub first: Option<WrongElement>,
    /// Sum of squared differences from the reference; infinite if an element is not finite.
    pub error_squared: f64,
    /// Sum of squares of the reference.
    pub reference_squared: f64,
}

impl Sum for Comparison {
    /// All of them as one, in their order.
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Self::and)
    }
}

/// An element that is not what it must be.
#[derive(Clone, Debug, PartialEq)]
pub struct WrongElement {
    /// Row of the matrix.
    pub row: usize,
    /// Column of the matrix.
    pub col: usize,
    /// What is there, as text, for it may be no number.
    pub got: String,
    /// What the reference has.
    pub wanted: f32,
}

impl Comparison {
    /// A comparison of this many elements that are all right.
    pub fn right(elements: u64) -> Self {
        Self {
            elements,
            ..Self::default()
        }
    }

    /// ‖out − reference‖ / ‖reference‖.
    pub fn relative_error(&self) -> f64 {
        match (self.error_squared, self.reference_squared) {
            (0.0, _) => 0.0,
            (error, reference) => (error / reference).sqrt(),
        }
    }

    /// Both comparisons as one, `other` after this one.
    pub fn and(self, other: Comparison) -> Comparison {
        Comparison {
            elements: self.elements + other.elements,
            wrong: self.wrong + other.wrong,
            first: self.first.or(other.first),
            error_squared: self.error_squared + other.error_squared,
            reference_squared: self.reference_squared + other.reference_squared,
        }
    }
}

/// What makes an element right.
///
/// # Reals
///
/// With u half a unit of the element type at 1, an element is right if it is within the sum of
///
/// 1. **the last rounding**: u·|c|;
/// 2. **the sums in f32**: 8·k/3·2⁻²⁴. A sum of k products of numbers below one has partial sums of around
///    √(k/9), each addition rounds by half a unit there, and eight times this random walk leaves room for 10⁸
///    elements;
/// 3. **the partials**, where n ranks each round theirs to the element type and the partials are added in it:
///    with p a partial and P = Σ|p|, which the reference knows for each element, the roundings of the p are
///    off by u·P at the most. Whatever the order of the n − 1 additions, each partial sum is at most P; all
///    but the last, which is (1), are rounded with at most u·P. That makes u·(n − 1)·P. It is a bound and no
///    estimate, to first order in u; the factor 1.001 covers the rest;
/// 4. **the accumulators of e4m3**: tensor cores add 32 products to a sum that they keep for 128 terms, and
///    cut each of the 33 off 2⁻¹³ of the largest of them. That is a power of two of at most 4 around
///    √(128/9), the partial sum of numbers below one; an error is uniform in that, and eight times the
///    random walk of all 33·k/32 errors, 8·√(33·k/32)·4·2⁻¹³/√3, leaves room for 10⁸ elements. Scales are
///    at most one.
///
/// ‖out − reference‖ / ‖reference‖ is held to less than such worst cases add up to, for roundings are
/// independent of each other: the squares of what is rounded are 1/n of the reference's for each of the n
/// partials, and j/n for the sum of j of them, together 1 + (n + 1)/2 − 1/n times those of the
/// reference, so that the error is at most u times the root of that. With one rank, where nothing is rounded
/// but the result, the factor is 1. What is computed from the sum adds 1 for each of its roundings.
#[derive(Clone, Copy, Debug)]
pub struct Expectation {
    /// What the inputs were.
    pub numbers: Numbers,
    /// Element type of the output.
    pub dtype: DType,
    /// Whether the operands are e4m3.
    pub narrow: bool,
    /// Terms of each sum; 0 where elements are copied, which must be equal.
    pub terms: usize,
    /// Ranks of which each has rounded its part of the sum to the element type.
    pub summands: usize,
    /// Roundings to the element type after that of the sum.
    pub further: usize,
}

impl Expectation {
    /// For copies and for exact sums: each element has one right value.
    pub fn exact(dtype: DType) -> Self {
        Self {
            numbers: Numbers::Integers,
            dtype,
            narrow: false,
            terms: 0,
            summands: 1,
            further: 0,
        }
    }

    /// The largest ‖out − reference‖ / ‖reference‖ that is right for reals: the roundings to the element
    /// type, and a random walk of roundings along a sum in f32.
    pub fn tolerance(&self) -> f64 {
        if self.is_exact() {
            return 0.0;
        }
        let n = self.summands as f64;
        let roundings = (1.0 + (n + 1.0) / 2.0 - 1.0 / n + self.further as f64).sqrt();
        let sums = 2.0 * (self.terms as f64).sqrt() * DType::F32.epsilon();
        // Of elements around √(k/9), times a scale of each operand that is around ¾ where this matters.
        let cuts = 3.0 * self.cuts() / (self.terms as f64).sqrt() / (0.75 * 0.75);
        self.unit() * roundings + sums + cuts
    }

    /// Whether each element has one right value.
    pub fn is_exact(&self) -> bool {
        self.numbers == Numbers::Integers || self.terms == 0
    }

    /// The random walk of what the accumulators of e4m3 cut off.
    fn cuts(&self) -> f64 {
        match self.narrow {
            true => (33.0 * self.terms as f64 / 32.0 / 3.0).sqrt() * 4.0 / 8192.0,
            false => 0.0,
        }
    }

    /// How far one rounding of 1 to the element type can be off.
    fn unit(&self) -> f64 {
        self.dtype.epsilon() / 2.0
    }

    /// The largest |out − wanted| that is right for one element, whose partials have absolute values
    /// that add up to `magnitude`.
    fn slack(&self, wanted: f32, magnitude: f32) -> f64 {
        if self.is_exact() {
            return 0.0;
        }
        let sums = 8.0 * self.terms as f64 / 3.0 * DType::F32.epsilon() / 2.0;
        let sums = sums + 8.0 * self.cuts();
        let partial = (self.summands - 1) as f64 * f64::from(magnitude);
        (f64::from(wanted.abs()) + partial) * self.unit() * 1.001 + sums
    }

    /// How far off each sum may be. `magnitudes` is of each where partials are rounded, and
    /// is empty where none are.
    pub(super) fn slacks(&self, wanted: &[f32], magnitudes: &[f32]) -> impl Fn(usize) -> f64 {
        move |i| self.slack(wanted[i], magnitudes.get(i).copied().unwrap_or(0.0))
    }

    /// Compares elements of a row of the matrix from column `at.1` on: `got`, as they are stored, with
    /// `wanted`, which is f32 that is exact for integers. Where each element has one right value, all of them
    /// are compared at once; else the i-th may be as far off as `slack` says of i.
    pub fn compare(
        &self,
        at: (usize, usize),
        got: &[u8],
        wanted: &[f32],
        slack: impl Fn(usize) -> f64,
    ) -> Comparison {
        let size = self.dtype.size();
        if self.is_exact() && got == encode(self.dtype, wanted) {
            return Comparison::right(wanted.len() as u64);
        }
        let got = got.chunks_exact(size);
        let got = got.flat_map(|bytes| decode(self.dtype, bytes));
        let mut result = Comparison::default();
        for (i, got) in got.take(wanted.len()).enumerate() {
            let wanted = match self.numbers {
                Numbers::Integers => rounded(self.dtype, wanted[i]),
                Numbers::Reals => wanted[i],
            };
            let difference = f64::from(got) - f64::from(wanted);
            let right = got == wanted || difference.abs() <= slack(i);
            result.elements += 1;
            if self.terms > 0 {
                result.reference_squared += f64::from(wanted).powi(2);
            }
            result.error_squared += if got.is_finite() {
                difference * difference
            } else {
                f64::INFINITY
            };
            if !right {
                result.wrong += 1;
                result.first.get_or_insert_with(|| WrongElement {
                    row: at.0,
                    col: at.1 + i,
                    got: got.to_string(),
                    wanted,
                });
            }
        }
        let missing = wanted.len() as u64 - result.elements;
        if missing > 0 {
            result.elements += missing;
            result.wrong += missing;
            result.error_squared = f64::INFINITY;
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expect(numbers: Numbers, summands: usize) -> Expectation {
        Expectation {
            numbers,
            terms: 64,
            summands,
            ..Expectation::exact(DType::Bf16)
        }
    }

    fn compare(expect: Expectation, got: &[f32], wanted: &[f32]) -> Comparison {
        expect.compare(
            (11, 4),
            &encode(expect.dtype, got),
            wanted,
            expect.slacks(wanted, &[]),
        )
    }

    #[test]
    fn integers_are_compared_with_the_rounded_value() {
        // 257 is not a bf16: its neighbours are 256 and 258, and 256 is even.
        let out = [3.0, 256.0, -7.0, 12.0];
        let expect = expect(Numbers::Integers, 4);
        let all = compare(expect, &out, &[3.0, 257.0, -7.0, 12.0]);
        assert_eq!((all.elements, all.wrong, all.relative_error()), (4, 0, 0.0));
        let off = compare(expect, &out, &[3.0, 257.0, -7.0, 13.0]);
        let first = off.first.unwrap();
        let found = (off.wrong, first.row, first.col, first.wanted);
        assert_eq!(found, (1, 11, 7, 13.0));
    }

    #[test]
    fn poison_is_wrong_whatever_is_expected() {
        let integers = expect(Numbers::Integers, 1);
        let reals = expect(Numbers::Reals, 8);
        let copied = Expectation { terms: 0, ..reals };
        for expect in [integers, reals, copied] {
            let poison = compare(expect, &[f32::NAN; 2], &[0.0, 1.0]);
            assert_eq!(poison.wrong, 2, "{expect:?}");
            assert_eq!(poison.relative_error(), f64::INFINITY);
        }
    }

    #[test]
    fn reals_may_be_off_by_a_rounding_and_no_more() {
        let reference = [10.01, -3.003, 0.5, 7.77];
        let expect = expect(Numbers::Reals, 1);
        let out = reference.map(|v| rounded(DType::Bf16, v));
        let right = compare(expect, &out, &reference);
        assert_eq!(right.wrong, 0);
        assert!(right.relative_error() > 0.0);
        assert!(right.relative_error() <= expect.tolerance());
        let wrong = compare(expect, &[10.2, out[1], out[2], out[3]], &reference);
        assert_eq!(wrong.wrong, 1);
    }

    /// Partials that cancel, rounded and added in bf16 in every order of four ranks.
    #[test]
    fn sums_of_rounded_partials_are_within_their_bound_in_any_order() {
        let expect = expect(Numbers::Reals, 4);
        let of = |i: usize| {
            let bits = crate::inputs::mix(i as u64);
            ((bits >> 40) as f32 / (1u32 << 23) as f32 - 1.0) * 20.0
        };
        let mut worst = 0.0f64;
        for place in 0..2000 {
            let parts: Vec<f32> = (0..4).map(|rank| of(4 * place + rank)).collect();
            let wanted: f32 = parts.iter().sum();
            let magnitude: f32 = parts.iter().map(|p| p.abs()).sum();
            let compare = |sum: f32| {
                let got = encode(DType::Bf16, &[sum]);
                expect.compare((0, 0), &got, &[wanted], |_| expect.slack(wanted, magnitude))
            };
            for order in [[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]] {
                let add = |sum: f32, rank: usize| {
                    rounded(DType::Bf16, sum + rounded(DType::Bf16, parts[rank]))
                };
                let sum = order.into_iter().fold(0.0, add);
                let found = compare(sum);
                assert_eq!(found.wrong, 0, "{parts:?}: {sum} for {wanted}");
                let used = f64::from((sum - wanted).abs()) / expect.slack(wanted, magnitude);
                worst = worst.max(used);
            }
            let far = wanted + 0.03 * magnitude + 0.5;
            assert_eq!(compare(far).wrong, 1, "{parts:?}");
        }
        // The bound is not far above what happens.
        assert!((0.3..=1.0).contains(&worst), "{worst}");
    }
}
