//! The caller's memory in a call.

use std::marker::PhantomData;

use warpweave_symm_mem::{Backend, DevicePtr, Memory, SymmetricBuffer};

use super::addresses::Location;

/// Device memory that a caller lends to a call: an operand, row-major without gaps.
///
/// It is borrowed from an owner whose drop waits for enqueued work, or taken from an address, which is
/// unsafe.
#[derive(Clone, Copy, Debug)]
pub struct DeviceSlice<'a> {
    pub(super) location: Location,
    pub(super) bytes: usize,
    owner: PhantomData<&'a ()>,
}

impl<'a> DeviceSlice<'a> {
    /// All of a memory of this rank.
    pub fn of(memory: &'a impl Memory) -> Self {
        DeviceSlice {
            location: Location::local(memory.address()),
            bytes: memory.bytes(),
            owner: PhantomData,
        }
    }

    /// All of a buffer that every rank of the node has. Peers access theirs in place, so all ranks pass the
    /// same buffer to the same call.
    pub fn symmetric<B: Backend>(buffer: &'a SymmetricBuffer<B>) -> Self {
        DeviceSlice {
            location: Location::symmetric(buffer),
            bytes: buffer.bytes(),
            owner: PhantomData,
        }
    }

    /// `bytes` of device memory of this rank: a framework's tensor, a slice of cudarc's.
    ///
    /// # Safety
    /// The memory stays allocated until the work of every call that is given it has ended, and of every graph
    /// that captured such a call. Memory that is freed in the order of a stream may be freed in the order of
    /// the stream of the call.
    pub unsafe fn from_address(address: DevicePtr, bytes: usize) -> Self {
        DeviceSlice {
            location: Location::local(address),
            bytes,
            owner: PhantomData,
        }
    }

    /// `bytes` of it from `offset` on, on every rank of a symmetric one; `None` if it ends before.
    pub fn slice(self, offset: usize, bytes: usize) -> Option<Self> {
        let inside = offset.checked_add(bytes)? <= self.bytes;
        inside.then(|| DeviceSlice {
            location: self.location.at(offset),
            bytes,
            ..self
        })
    }

    /// First address of this rank's.
    pub fn address(&self, rank_in_node: usize) -> DevicePtr {
        self.location.first.add(rank_in_node * self.location.stride)
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether peers reach theirs.
    pub fn is_symmetric(&self) -> bool {
        self.location.stride > 0
    }
}

/// The operands of a call, by the names of the schedule's [operands](crate::Schedule::operands).
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

    /// The operand of this kind.
    pub(super) fn of(&self, which: Which) -> Option<DeviceSlice<'a>> {
        match which {
            Which::A => Some(self.a),
            Which::B => Some(self.b),
            Which::Bias => self.bias,
            Which::C => Some(self.c),
            Which::X => self.gathered.map(|[x, _]| x),
            Which::Y => self.gathered.map(|[_, y]| y),
        }
    }
}

/// An operand of a plan, whose buffer has its name in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    A,
    B,
    Bias,
    C,
    X,
    Y,
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
            _ => None,
        }
    }
}
