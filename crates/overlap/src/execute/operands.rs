//! The caller's memory in a call.

pub use warpweave_symm_mem::DeviceSlice;

/// The operands of a call, by the names of the schedule's [operands](crate::Schedule::operands): row-major,
/// without gaps.
#[derive(Clone, Copy, Debug)]
pub struct Operands<'a> {
    /// What the rank holds of A.
    pub a: DeviceSlice<'a>,
    /// What the rank holds of B: the weight.
    pub b: DeviceSlice<'a>,
    /// Added to each row of C, where the operation has a bias.
    pub bias: Option<DeviceSlice<'a>>,
    /// What the rank gets of C.
    pub c: DeviceSlice<'a>,
    /// What is gathered during a GEMM that does not wait for it, and where to.
    pub gathered: Option<[DeviceSlice<'a>; 2]>,
    /// What C is normalized with, where the operation does that.
    pub norm: Option<NormOperands<'a>>,
    /// The scales of A and of B, where these are of e4m3.
    pub scales: Option<[DeviceSlice<'a>; 2]>,
}

/// The operands of a residual addition and RMSNorm, as large as C but for the weight, which is one row.
#[derive(Clone, Copy, Debug)]
pub struct NormOperands<'a> {
    /// Added to the rows before they are normalized; the same on all ranks.
    pub residual: DeviceSlice<'a>,
    /// The weight of the norm.
    pub weight: DeviceSlice<'a>,
    /// Gets the sum that is normalized; not in the memory of `residual`.
    pub residual_out: DeviceSlice<'a>,
}

impl<'a> Operands<'a> {
    /// C = A · B.
    pub fn new(a: DeviceSlice<'a>, b: DeviceSlice<'a>, c: DeviceSlice<'a>) -> Self {
        Operands {
            a,
            b,
            bias: None,
            c,
            gathered: None,
            norm: None,
            scales: None,
        }
    }

    /// The same with a bias.
    #[must_use]
    pub fn with_bias(self, bias: DeviceSlice<'a>) -> Self {
        Operands {
            bias: Some(bias),
            ..self
        }
    }

    /// The same with an independent all-gather of `x` to `y`.
    #[must_use]
    pub fn with_gathered(self, x: DeviceSlice<'a>, y: DeviceSlice<'a>) -> Self {
        Operands {
            gathered: Some([x, y]),
            ..self
        }
    }

    /// The same with a residual and an RMSNorm.
    #[must_use]
    pub fn with_norm(self, norm: NormOperands<'a>) -> Self {
        Operands {
            norm: Some(norm),
            ..self
        }
    }

    /// The same with scales of what the rank holds of A, and of B.
    #[must_use]
    pub fn with_scales(self, of_a: DeviceSlice<'a>, of_b: DeviceSlice<'a>) -> Self {
        Operands {
            scales: Some([of_a, of_b]),
            ..self
        }
    }

    /// The operand of this kind.
    pub(super) fn of(&self, which: Which) -> Option<DeviceSlice<'a>> {
        match which {
            Which::A => Some(self.a),
            Which::B => Some(self.b),
            Which::Bias => self.bias,
            Which::C => Some(self.c),
            Which::X => self.gathered.map(|[x, _]| x),
            Which::Y => self.gathered.map(|[_, y]| y),
            Which::Residual => self.norm.map(|norm| norm.residual),
            Which::NormWeight => self.norm.map(|norm| norm.weight),
            Which::ResidualOut => self.norm.map(|norm| norm.residual_out),
            Which::ScalesA => self.scales.map(|[of_a, _]| of_a),
            Which::ScalesB => self.scales.map(|[_, of_b]| of_b),
        }
    }
}

/// An operand of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    A,
    B,
    Bias,
    C,
    X,
    Y,
    Residual,
    NormWeight,
    ResidualOut,
    ScalesA,
    ScalesB,
}

impl Which {
    /// That of a buffer of this name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "a" => Some(Which::A),
            "b" => Some(Which::B),
            "bias" => Some(Which::Bias),
            "c" => Some(Which::C),
            "x" => Some(Which::X),
            "y" => Some(Which::Y),
            "residual" => Some(Which::Residual),
            "norm_weight" => Some(Which::NormWeight),
            "residual_out" => Some(Which::ResidualOut),
            "scales_a" => Some(Which::ScalesA),
            "scales_b" => Some(Which::ScalesB),
            _ => None,
        }
    }
}
