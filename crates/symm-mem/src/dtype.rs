//! Element types.

use std::fmt;

#[doc(hidden)]
pub use {float8, half};

/// The element types of buffers, kernels and collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DType {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// OCP FP8 E4M3: a sign, four bits of exponent, three of fraction; no infinities, at most 448. For
    /// operands of GEMMs and for data that travels: nothing is added up in it.
    E4m3,
}

impl DType {
    /// Every element type.
    pub const ALL: [DType; 4] = [DType::F32, DType::F16, DType::Bf16, DType::E4m3];

    /// Those that collectives reduce and that the scalar kernels multiply: all but e4m3.
    pub const ARITHMETIC: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

    /// Whether it is one of [`DType::ARITHMETIC`].
    pub const fn is_arithmetic(self) -> bool {
        !matches!(self, DType::E4m3)
    }

    /// Size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::Bf16 => 2,
            DType::E4m3 => 1,
        }
    }

    /// The name used on command lines and in tables: `f32`, `f16`, `bf16`, `e4m3`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::Bf16 => "bf16",
            DType::E4m3 => "e4m3",
        }
    }

    /// Distance between 1 and the next larger number, the unit for rounding errors.
    pub const fn epsilon(self) -> f64 {
        match self {
            DType::F32 => 1.0 / (1u64 << 23) as f64,
            DType::F16 => 1.0 / 1024.0,
            DType::Bf16 => 1.0 / 128.0,
            DType::E4m3 => 1.0 / 8.0,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for DType {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|d| d.name() == s)
            .ok_or_else(|| format!("unknown element type `{s}`: expected f32, f16, bf16 or e4m3"))
    }
}

/// The name of an element type's kernel: a prefix, `_f32` and so on, a suffix.
///
/// For the crates of this workspace, whose kernels are named so.
#[doc(hidden)]
#[macro_export]
macro_rules! kernel_name {
    ($dtype:expr, $prefix:expr, $suffix:expr) => {
        match $dtype {
            $crate::DType::F32 => concat!($prefix, "_f32", $suffix),
            $crate::DType::F16 => concat!($prefix, "_f16", $suffix),
            $crate::DType::Bf16 => concat!($prefix, "_bf16", $suffix),
            $crate::DType::E4m3 => concat!($prefix, "_e4m3", $suffix),
        }
    };
}

/// An expression in which a name stands for the [`Element`](crate::host::Element) of an element type.
///
/// For the host references in other crates.
#[doc(hidden)]
#[macro_export]
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::DType::F16 => {
                type $T = $crate::dtype::half::f16;
                $body
            }
            $crate::DType::Bf16 => {
                type $T = $crate::dtype::half::bf16;
                $body
            }
            $crate::DType::E4m3 => {
                type $T = $crate::dtype::float8::F8E4M3;
                $body
            }
        }
    };
}
