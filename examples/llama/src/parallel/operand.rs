//! candle's tensors as operands of Warpweave: their own memory, with no copy.
//!
//! An [`Op`] is a custom operation of candle's, so candle finds the storage of the operands and owns that of
//! the result; Warpweave is given the addresses. On the host backend these are addresses of candle's vectors,
//! which the threads of a stream use as they are.

use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, CustomOp3, Error, Layout, Result, Shape, Tensor,
};
use half::{bf16, f16};
use warpweave_symm_mem::{BackendKind, DType, DevicePtr, DeviceSlice};

/// An operation from tensors of one element type to a new tensor of that type.
pub struct Op<'a> {
    /// The name in candle's errors.
    pub name: &'static str,
    /// Where `call` computes.
    pub kind: BackendKind,
    /// Of the result.
    pub shape: Shape,
    /// Computes the result, given the operands in their order. On the host backend it has ended on return.
    pub call: &'a dyn Fn(&[DeviceSlice<'_>], DeviceSlice<'_>) -> crate::Result<()>,
}

impl Op<'_> {
    /// Applies it to one, two or three tensors, which must be contiguous.
    ///
    /// # Errors
    /// Tensors of other types, devices or layouts; what the call reports.
    pub fn apply(&self, operands: &[&Tensor]) -> Result<Tensor> {
        match operands {
            [x] => x.apply_op1_no_bwd(self),
            [x, y] => x.apply_op2_no_bwd(y, self),
            [x, y, z] => x.apply_op3_no_bwd(y, z, self),
            _ => Err(Error::msg("candle's operations take up to three tensors")),
        }
    }

    fn on_cpu(&self, operands: &[(&CpuStorage, &Layout)]) -> Result<(CpuStorage, Shape)> {
        if self.kind != BackendKind::Host {
            return Err(Error::msg(format!(
                "{}: the tensors are not on a GPU",
                self.name
            )));
        }
        let slices = operands
            .iter()
            .map(|(storage, layout)| borrowed(storage, layout));
        let slices = slices.collect::<Result<Vec<_>>>()?;
        let elements = self.shape.elem_count();
        let storage = match operands[0].0 {
            CpuStorage::F32(_) => CpuStorage::F32(self.fill(&slices, vec![0.0; elements])?),
            CpuStorage::F16(_) => CpuStorage::F16(self.fill(&slices, vec![f16::ZERO; elements])?),
            CpuStorage::BF16(_) => {
                CpuStorage::BF16(self.fill(&slices, vec![bf16::ZERO; elements])?)
            }
            other => return Err(unsupported(other)),
        };
        Ok((storage, self.shape.clone()))
    }

    fn fill<T>(&self, operands: &[DeviceSlice<'_>], mut result: Vec<T>) -> Result<Vec<T>> {
        let address = DevicePtr(result.as_mut_ptr().expose_provenance() as u64);
        // SAFETY: the vector is this function's until the call has ended, which on the host backend it has
        // when it returns; nobody else knows its address.
        let slice = unsafe { DeviceSlice::from_address(address, size_of_val(result.as_slice())) };
        (self.call)(operands, slice).map_err(Error::wrap)?;
        Ok(result)
    }
}

/// The elements of a contiguous layout in a CPU tensor.
fn borrowed<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<DeviceSlice<'a>> {
    fn of<T>(elements: &[T]) -> DeviceSlice<'_> {
        let address = DevicePtr(elements.as_ptr().expose_provenance() as u64);
        // SAFETY: the elements are borrowed for as long as the slice, and calls on the host backend have
        // ended when they return. Operands are only read.
        unsafe { DeviceSlice::from_address(address, size_of_val(elements)) }
    }
    let (start, end) = contiguous(layout)?;
    match storage {
        CpuStorage::F32(all) => Ok(of(&all[start..end])),
        CpuStorage::F16(all) => Ok(of(&all[start..end])),
        CpuStorage::BF16(all) => Ok(of(&all[start..end])),
        other => Err(unsupported(other)),
    }
}

/// First and last element of a contiguous layout.
fn contiguous(layout: &Layout) -> Result<(usize, usize)> {
    layout
        .contiguous_offsets()
        .ok_or_else(|| Error::msg("an operand is not contiguous"))
}

fn unsupported(storage: &impl BackendStorage) -> Error {
    Error::msg(format!("{:?} is none of f32, f16, bf16", storage.dtype()))
}

/// The element type by Warpweave's name.
///
/// # Errors
/// A type that is none of f32, f16, bf16.
pub fn dtype(dtype: candle_core::DType) -> Result<DType> {
    match dtype {
        candle_core::DType::F32 => Ok(DType::F32),
        candle_core::DType::F16 => Ok(DType::F16),
        candle_core::DType::BF16 => Ok(DType::Bf16),
        other => Err(Error::msg(format!("{other:?} is none of f32, f16, bf16"))),
    }
}

impl CustomOp1 for Op<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(&self, s: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        self.on_cpu(&[(s, l)])
    }
}

impl CustomOp2 for Op<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.on_cpu(&[(s1, l1), (s2, l2)])
    }
}

impl CustomOp3 for Op<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.on_cpu(&[(s1, l1), (s2, l2), (s3, l3)])
    }
}

impl std::fmt::Debug for Op<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {:?}", self.name, self.shape)
    }
}
