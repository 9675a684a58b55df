//! Every element of an output against the reference.

use std::ops::Range;

use half::{bf16, f16};
use serde::Serialize;
use warpweave_symm_mem::DType;

use crate::inputs::Numbers;

/// How an output compares with the reference.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// Elements compared.
    pub elements: u64,
    /// Elements that are not what they must be: with integers not the one right value, with reals not finite or further
    /// off than one rounding and the sums explain.
    pub wrong: u64,
    /// The first wrong element.
    pub first: Option<WrongElement>,
    /// Sum of squared differences from the reference; infinite if an element is not finite.
    #[serde(skip)]
    pub error_squared: f64,
    /// Sum of squares of the reference.
    #[serde(skip)]
    pub reference_squared: f64,
}

/// An element that is not what it must be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WrongElement {
    /// Row of C.
    pub row: usize,
    /// Column of C.
    pub col: usize,
    /// What is there, as text, for it may be no number.
    pub got: String,
    /// What the reference has.
    pub wanted: f32,
}

impl Comparison {
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

/// What is compared.
#[derive(Clone, Copy, Debug)]
pub struct Expectation {
    /// What the inputs were.
    pub numbers: Numbers,
    /// Element type of the output.
    pub dtype: DType,
    /// Columns of C.
    pub cols: usize,
    /// Length of the sums.
    pub k: usize,
}

impl Expectation {
    /// The largest ‖out − reference‖ / ‖reference‖ that is right for reals: one rounding to the element type, and a
    /// random walk of roundings along a sum in f32.
    pub fn tolerance(&self) -> f64 {
        match self.numbers {
            Numbers::Integers => 0.0,
            Numbers::Reals => {
                self.dtype.epsilon() / 2.0 + 2.0 * (self.k as f64).sqrt() * DType::F32.epsilon()
            }
        }
    }

    /// The largest |out − wanted| that is right for one element.
    fn slack(&self, wanted: f32) -> f64 {
        match self.numbers {
            Numbers::Integers => 0.0,
            Numbers::Reals => {
                // A sum of k products of numbers below one: its partial sums stay around √(k/9), and each addition
                // rounds by half a unit there; eight times the random walk leaves room for 10⁸ elements.
                let sums = 8.0 * self.k as f64 / 3.0 * DType::F32.epsilon() / 2.0;
                f64::from(wanted.abs()) * self.dtype.epsilon() / 2.0 * 1.001 + sums
            }
        }
    }

    /// Compares the rows of C from `first_row` on, which `out` holds in the element type and `reference` as f32 that are
    /// exact for integers.
    pub fn compare(&self, first_row: usize, out: &[u8], reference: &[f32]) -> Comparison {
        let size = self.dtype.size();
        let mut result = Comparison::default();
        if out.len() != reference.len() * size {
            result.wrong = reference.len() as u64;
            result.elements = reference.len() as u64;
            result.error_squared = f64::INFINITY;
            return result;
        }
        for (i, (bytes, &exact)) in out.chunks_exact(size).zip(reference).enumerate() {
            let got = decode(self.dtype, bytes);
            let wanted = match self.numbers {
                Numbers::Integers => rounded(self.dtype, exact),
                Numbers::Reals => exact,
            };
            let difference = f64::from(got) - f64::from(wanted);
            let right = got == wanted || difference.abs() <= self.slack(wanted);
            result.elements += 1;
            result.reference_squared += f64::from(wanted).powi(2);
            result.error_squared += if got.is_finite() {
                difference * difference
            } else {
                f64::INFINITY
            };
            if !right {
                result.wrong += 1;
                result.first.get_or_insert_with(|| WrongElement {
                    row: first_row + i / self.cols,
                    col: i % self.cols,
                    got: got.to_string(),
                    wanted,
                });
            }
        }
        result
    }

    /// As [`Expectation::compare`], split over `threads`.
    pub fn compare_rows(
        &self,
        rows: Range<usize>,
        out: &[u8],
        reference: &[f32],
        threads: usize,
    ) -> Comparison {
        let share = rows.len().div_ceil(threads.max(1)).max(1);
        let row_bytes = self.cols * self.dtype.size();
        std::thread::scope(|scope| {
            let parts: Vec<_> = out
                .chunks(share * row_bytes)
                .zip(reference.chunks(share * self.cols))
                .enumerate()
                .map(|(i, (out, reference))| {
                    scope.spawn(move || self.compare(rows.start + i * share, out, reference))
                })
                .collect();
            parts
                .into_iter()
                .fold(Comparison::default(), |sum, part| match part.join() {
                    Ok(part) => sum.and(part),
                    Err(panic) => std::panic::resume_unwind(panic),
                })
        })
    }
}

/// One element.
pub(crate) fn decode(dtype: DType, bytes: &[u8]) -> f32 {
    match (dtype, bytes) {
        (DType::F16, &[a, b]) => f16::from_ne_bytes([a, b]).to_f32(),
        (DType::Bf16, &[a, b]) => bf16::from_ne_bytes([a, b]).to_f32(),
        (_, &[a, b, c, d]) => f32::from_ne_bytes([a, b, c, d]),
        _ => f32::NAN,
    }
}

/// To nearest even, once.
fn rounded(dtype: DType, value: f32) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(value).to_f32(),
        DType::Bf16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bf16s(values: &[f32]) -> Vec<u8> {
        values
            .iter()
            .flat_map(|&v| bf16::from_f32(v).to_ne_bytes())
            .collect()
    }

    fn expect(numbers: Numbers) -> Expectation {
        Expectation {
            numbers,
            dtype: DType::Bf16,
            cols: 2,
            k: 64,
        }
    }

    #[test]
    fn integers_are_compared_with_the_rounded_value() {
        // 257 is not a bf16: its neighbours are 256 and 258, and 256 is even.
        let out = bf16s(&[3.0, 256.0, -7.0, 12.0]);
        let all = expect(Numbers::Integers).compare(0, &out, &[3.0, 257.0, -7.0, 12.0]);
        assert_eq!((all.elements, all.wrong, all.relative_error()), (4, 0, 0.0));
        let off = expect(Numbers::Integers).compare(10, &out, &[3.0, 257.0, -7.0, 13.0]);
        let first = off.first.unwrap();
        assert_eq!(
            (off.wrong, first.row, first.col, first.wanted),
            (1, 11, 1, 13.0)
        );
    }

    #[test]
    fn poison_is_wrong_in_both_kinds() {
        for numbers in [Numbers::Integers, Numbers::Reals] {
            let poison = expect(numbers).compare(0, &[0xff; 4], &[0.0, 1.0]);
            assert_eq!(poison.wrong, 2, "{numbers:?}");
            assert_eq!(poison.relative_error(), f64::INFINITY);
        }
    }

    #[test]
    fn reals_may_be_off_by_a_rounding_and_no_more() {
        let reference = [10.01, -3.003, 0.5, 7.77];
        let right = expect(Numbers::Reals).compare(0, &bf16s(&reference), &reference);
        assert_eq!(right.wrong, 0);
        assert!(right.relative_error() > 0.0);
        assert!(right.relative_error() <= expect(Numbers::Reals).tolerance());
        let wrong =
            expect(Numbers::Reals).compare(0, &bf16s(&[10.2, -3.003, 0.5, 7.77]), &reference);
        assert_eq!(wrong.wrong, 1);
    }

    #[test]
    fn threads_see_what_one_sees() {
        let reference: Vec<f32> = (0..26).map(|i| i as f32).collect();
        let mut out = bf16s(&reference);
        out[2 * 17] ^= 0x40;
        let expect = expect(Numbers::Integers);
        let (one, many) = (
            expect.compare(5, &out, &reference),
            expect.compare_rows(5..18, &out, &reference, 4),
        );
        assert_eq!(one, many);
        assert_eq!(
            (one.wrong, one.first.map(|e| (e.row, e.col))),
            (1, Some((13, 1)))
        );
    }

    #[test]
    fn too_few_bytes_are_wrong() {
        let short = expect(Numbers::Integers).compare(0, &bf16s(&[1.0]), &[1.0, 2.0]);
        assert_eq!(short.wrong, 2);
    }
}
