//! Element types as Rust has them, and the values that the tests use.

use half::{bf16, f16};
use warpweave_comm::nccl::Element;

/// A type of elements that the host can make and read.
pub trait Number: Copy {
    const ELEMENT: Element;
    /// Nearest to `value`.
    fn of(value: f64) -> Self;
    fn value(self) -> f64;
    fn put(self, bytes: &mut Vec<u8>);
    fn take(bytes: &[u8]) -> Self;
}

macro_rules! numbers {
    ($($kind:ty: $element:ident, $of:expr, $value:expr;)*) => {
        $(impl Number for $kind {
            const ELEMENT: Element = Element::$element;
            fn of(value: f64) -> Self {
                $of(value)
            }
            fn value(self) -> f64 {
                $value(self)
            }
            fn put(self, bytes: &mut Vec<u8>) {
                bytes.extend(self.to_ne_bytes());
            }
            fn take(bytes: &[u8]) -> Self {
                Self::from_ne_bytes(bytes.try_into().expect("the size of an element"))
            }
        })*
    };
}

numbers! {
    f32: F32, |v| v as f32, f64::from;
    f64: F64, |v| v, |v| v;
    f16: F16, f16::from_f64, f64::from;
    bf16: Bf16, bf16::from_f64, f64::from;
    i8: I8, |v| v as i8, f64::from;
    u8: U8, |v| v as u8, f64::from;
    i32: I32, |v| v as i32, f64::from;
    u32: U32, |v| v as u32, f64::from;
    i64: I64, |v| v as i64, |v| v as f64;
    u64: U64, |v| v as u64, |v| v as f64;
}

/// Element `i` of rank `rank` in call `call`, below 12: reductions over eight ranks are exact in every type.
pub fn value(rank: usize, i: usize, call: usize) -> f64 {
    ((i * 7 + i / 11 + rank * 3 + call * 5) % 12) as f64
}

/// As [`value`], 1 or 2, and 2 only on the first two ranks: so are multiplicative reductions.
pub fn factor(rank: usize, i: usize, call: usize) -> f64 {
    if rank < 2 {
        1.0 + ((i + i / 5 + rank + call) % 2) as f64
    } else {
        1.0
    }
}
