//! candle's tensors as operands of Warpweave: their own memory, with no copy.
//!
//! An [`Op`] is a custom operation of candle's, so candle finds the storage of the operands and owns that of
//! the result; Warpweave is given the addresses. On the host backend these are addresses of candle's vectors,
//! which the threads of a stream use as they are.

use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CustomOp1, CustomOp2, CustomOp3, Error, Layout, Result, Shape, Tensor,
};
#[cfg(feature = "cuda")]
use candle_core::{
    CudaStorage,
    cuda_backend::CudaDType,
    cuda_backend::cudarc::driver::{
        DevicePtr as _, DevicePtrMut as _, DeviceRepr, DeviceSlice as _,
    },
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
        let result = match operands {
            [x] => x.apply_op1_no_bwd(self),
            [x, y] => x.apply_op2_no_bwd(y, self),
            [x, y, z] => x.apply_op3_no_bwd(y, z, self),
            _ => Err(Error::msg("candle's operations take up to three tensors")),
        };
        #[cfg(feature = "cuda")]
        let result = result.map(crate::scratch::kept);
        result
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

#[cfg(feature = "cuda")]
impl Op<'_> {
    fn on_gpu(&self, operands: &[(&CudaStorage, &Layout)]) -> Result<(CudaStorage, Shape)> {
        if self.kind != BackendKind::Cuda {
            return Err(Error::msg(format!(
                "{}: the tensors are on a GPU",
                self.name
            )));
        }
        match operands[0].0.dtype() {
            candle_core::DType::F32 => self.on_gpu_as::<f32>(operands),
            candle_core::DType::F16 => self.on_gpu_as::<f16>(operands),
            candle_core::DType::BF16 => self.on_gpu_as::<bf16>(operands),
            _ => Err(unsupported(operands[0].0)),
        }
    }

    /// candle's own slices, on candle's own stream: nothing is copied, and nothing waits.
    fn on_gpu_as<T: CudaDType + DeviceRepr>(
        &self,
        operands: &[(&CudaStorage, &Layout)],
    ) -> Result<(CudaStorage, Shape)> {
        let device = operands[0].0.device().clone();
        let stream = device.cuda_stream();
        // SAFETY: the call below writes all of it.
        let mut result = unsafe { crate::scratch::alloc::<T>(&device, self.shape.elem_count())? };
        let views = operands.iter().map(|(storage, layout)| {
            let (start, end) = contiguous(layout)?;
            Ok(storage.as_cuda_slice::<T>()?.slice(start..end))
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        {
            // What cudarc records when the guards are dropped is after the work of the call.
            let mut guards = Vec::new();
            let mut slices = Vec::new();
            for view in &views {
                let (address, guard) = view.device_ptr(&stream);
                guards.push(guard);
                // SAFETY: the tensor is borrowed for the call, and candle frees it in the order of this
                // stream.
                slices.push(unsafe {
                    DeviceSlice::from_address(DevicePtr(address), view.num_bytes())
                });
            }
            let bytes = result.num_bytes();
            let (address, _guard) = result.device_ptr_mut(&stream);
            // SAFETY: as above; nobody else has this memory.
            let slice = unsafe { DeviceSlice::from_address(DevicePtr(address), bytes) };
            (self.call)(&slices, slice).map_err(Error::wrap)?;
        }
        drop(views);
        Ok((
            CudaStorage::wrap_cuda_slice(result, device),
            self.shape.clone(),
        ))
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

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, s: &CudaStorage, l: &Layout) -> Result<(CudaStorage, Shape)> {
        self.on_gpu(&[(s, l)])
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

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        s1: &CudaStorage,
        l1: &Layout,
        s2: &CudaStorage,
        l2: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.on_gpu(&[(s1, l1), (s2, l2)])
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

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        s1: &CudaStorage,
        l1: &Layout,
        s2: &CudaStorage,
        l2: &Layout,
        s3: &CudaStorage,
        l3: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.on_gpu(&[(s1, l1), (s2, l2), (s3, l3)])
    }
}

impl std::fmt::Debug for Op<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {:?}", self.name, self.shape)
    }
}
