//! Attention, SwiGLU and the choice of tokens by kernels of this package (`cuda/transformer.cu`), where
//! candle would take many operations: on Hopper and later, for f16 and bf16, with the features `cuda` and
//! `nvcc`. The attention of prompts (`cuda/prompt.cu`) is for Hopper. Elsewhere SwiGLU takes candle's
//! operations; of the others there is no result, and the caller takes candle's.

use candle_core::{D, DType, Result, Tensor};
use warpweave_overlap::plan::GATE_COLUMNS;

use crate::rope::Rotations;
#[cfg(all(feature = "cuda", feature = "nvcc"))]
use crate::scratch::kept;

/// Keeps keys and values of the new tokens `qkv`, `[rows, heads, head]`, and attends: `[rows, query heads ·
/// head]`. They are not rotated yet, and are the rows from `start` on that `turns` is of. `cache` is `[2,
/// requests, key heads, capacity, head]`: of one request if the rows are a prompt, else of as many as there
/// are rows.
///
/// # Errors
/// Errors of the device.
pub(crate) fn attention(
    qkv: &Tensor,
    cache: &Tensor,
    turns: &Rotations<'_>,
    start: usize,
) -> Result<Option<Tensor>> {
    #[cfg(all(feature = "cuda", feature = "nvcc"))]
    if device::serves_attention(qkv, cache)? {
        let attended = device::attention(qkv, cache, turns, start)?;
        return Ok(Some(kept(attended)));
    }
    let _ = (qkv, cache, turns, start);
    Ok(None)
}

/// silu(gate) · up of `gate_up`, `[rows, 2 · width]`, whose columns alternate between eight of the gate and
/// eight of up: `[rows, width]`.
///
/// # Errors
/// Errors of the device.
pub(crate) fn swiglu(gate_up: &Tensor) -> Result<Tensor> {
    #[cfg(all(feature = "cuda", feature = "nvcc"))]
    if device::serves_rows(gate_up, 2)? {
        return Ok(kept(gate_up.apply_op1_no_bwd(&device::OfRows::SwiGlu)?));
    }
    let (rows, columns) = gate_up.dims2()?;
    let groups = gate_up.reshape((rows, (), 2, GATE_COLUMNS))?;
    let [gate, up] = [groups.narrow(2, 0, 1)?, groups.narrow(2, 1, 1)?];
    (gate.silu()? * up)?.reshape((rows, columns / 2))
}

/// The column of the largest of each row's `logits`, the first of equals: u32, `[rows]`. The kernel gives
/// `u32::MAX` where one is NaN or ∞, or all are −∞.
///
/// # Errors
/// Errors of the device.
pub(crate) fn choose(logits: &Tensor) -> Result<Tensor> {
    #[cfg(all(feature = "cuda", feature = "nvcc"))]
    if device::serves_rows(logits, 1)? {
        return Ok(kept(logits.apply_op1_no_bwd(&device::OfRows::Choose)?));
    }
    logits.to_dtype(DType::F32)?.argmax(D::Minus1)
}

/// Whether the kernels decode a model of so many query heads for each key head, elements of a head, and
/// tokens of the vocabulary, whose weights are as `weight`.
pub(crate) fn decodes((groups, head): (usize, usize), vocabulary: usize, weight: &Tensor) -> bool {
    #[cfg(all(feature = "cuda", feature = "nvcc"))]
    return device::serves_heads(groups, head)
        && vocabulary.is_multiple_of(device::VECTOR)
        && matches!(device::served(weight), Ok(Some(_)));
    #[cfg(not(all(feature = "cuda", feature = "nvcc")))]
    {
        let _ = (groups, head, vocabulary, weight);
        false
    }
}

#[cfg(all(feature = "cuda", feature = "nvcc"))]
mod device {
    use std::cell::RefCell;
    use std::ffi::c_void;

    use candle_core::backend::BackendStorage;
    use candle_core::cuda_backend::CudaDType;
    use candle_core::cuda_backend::cudarc::driver::sys::{
        self, CUdevice_attribute, CUtensorMap, CUtensorMapDataType,
    };
    use candle_core::cuda_backend::cudarc::driver::{DevicePtr, DevicePtrMut, DeviceRepr};
    use candle_core::{
        CpuStorage, CudaDevice, CudaStorage, CustomOp1, CustomOp2, DType, Error, Layout, Result,
        Shape, Storage, Tensor,
    };
    use half::{bf16, f16};
    use warpweave_symm_mem::cuda::{CudaStream, Image, LaunchConfig};
    use warpweave_symm_mem::{self as warpweave, Cuda, device_image, kernel_name};

    use crate::rope::Rotations;
    use crate::scratch::alloc;

    static TRANSFORMER: Image = device_image!("transformer", sm_90a, compute_90);
    static PROMPT: Image = device_image!("prompt", sm_90a);

    /// Tokens of a tile of `decode`: `kTokens`.
    const TOKENS: usize = 64;
    /// `kThreads` of `decode`.
    const THREADS: u32 = 128;
    /// Rows of a block and tokens of a tile of `prompt`: `kRows` and `kTokens` in `cuda/prompt.cu`.
    const PROMPT_ROWS: usize = 128;
    /// `kThreads` of `prompt`.
    const PROMPT_THREADS: u32 = 384;
    /// Operands of `prompt` in shared memory: queries, two tiles of keys and two of values.
    const PROMPT_OPERANDS: usize = 5;
    /// Elements of a swizzled row, and where such rows begin in shared memory.
    const BOX: usize = 64;
    const SWIZZLE_ALIGNMENT: usize = 1024;
    /// Of the other kernels.
    const WIDE: u32 = 256;
    /// The most parts that `decode` divides the tokens of a request into: `kParts`.
    const PARTS: usize = 8;
    /// Query heads of a key head that `decode` takes: half of `kRows`.
    const MOST_GROUPS: usize = 8;
    /// Elements of a vector.
    pub(super) const VECTOR: usize = 8;

    /// What the attention kernels take. `Attention` in `cuda/transformer.cu` has the same layout.
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Parameters {
        qkv: u64,
        keys: u64,
        values: u64,
        out: u64,
        positions: u64,
        cosines: u64,
        sines: u64,
        rows: u32,
        key_heads: u32,
        groups: u32,
        capacity: u32,
    }

    /// The same of `prompt`, and the keys and values as the tensor maps of TMA: `Prompt` in `cuda/prompt.cu`.
    #[derive(Clone, Copy)]
    #[repr(C, align(128))]
    struct Prompt {
        keys: CUtensorMap,
        values: CUtensorMap,
        attention: Parameters,
    }

    impl Prompt {
        fn new<T: Element>(attention: Parameters, head: usize) -> Result<Self> {
            let map = |address: u64| {
                let (row, tokens) = ((head * size_of::<T>()) as u64, attention.capacity.into());
                let sizes = [head as u64, tokens, attention.key_heads.into()];
                let strides = [row, row * tokens];
                let (box_sizes, steps) = ([BOX as u32, PROMPT_ROWS as u32, 1], [1; 3]);
                let mut map = CUtensorMap { opaque: [0; 16] };
                // SAFETY: all places are valid, and the arrays have three dimensions.
                let encoded = unsafe {
                    sys::cuTensorMapEncodeTiled(
                        &mut map,
                        T::MAP,
                        sizes.len() as u32,
                        address as *mut c_void,
                        sizes.as_ptr(),
                        strides.as_ptr(),
                        box_sizes.as_ptr(),
                        steps.as_ptr(),
                        sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                        sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                        sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                        sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
                    )
                };
                encoded.result().map(|()| map).map_err(Error::wrap)
            };
            Ok(Prompt {
                keys: map(attention.keys)?,
                values: map(attention.values)?,
                attention,
            })
        }
    }

    /// The major compute capability of the GPU of `x`, if its elements are served.
    pub(super) fn served(x: &Tensor) -> Result<Option<i32>> {
        if !x.device().is_cuda() || !matches!(x.dtype(), DType::BF16 | DType::F16) {
            return Ok(None);
        }
        let stream = x.device().as_cuda_device()?.cuda_stream();
        let major = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        let major = stream.context().attribute(major).map_err(Error::wrap)?;
        Ok((major >= 9).then_some(major))
    }

    /// Whether there are kernels for a token of every request, or for a prompt.
    pub(super) fn serves_attention(qkv: &Tensor, cache: &Tensor) -> Result<bool> {
        let (rows, heads, head) = qkv.dims3()?;
        let (_, requests, key_heads, ..) = cache.dims5()?;
        let fits = serves_heads(heads / key_heads - 2, head);
        Ok(fits && served(qkv)?.is_some_and(|major| rows == requests || major == 9))
    }

    /// Whether there are kernels for so many query heads for each key head, and elements of a head.
    pub(super) fn serves_heads(groups: usize, head: usize) -> bool {
        matches!(head, 64 | 128) && groups <= MOST_GROUPS
    }

    /// Whether each row of `x` is so many times whole vectors.
    pub(super) fn serves_rows(x: &Tensor, times: usize) -> Result<bool> {
        let (_, width) = x.dims2()?;
        Ok(width.is_multiple_of(times * VECTOR) && served(x)?.is_some())
    }

    pub(super) fn attention(
        qkv: &Tensor,
        cache: &Tensor,
        turns: &Rotations<'_>,
        start: usize,
    ) -> Result<Tensor> {
        let positions = turns.positions().narrow(0, start, qkv.dim(0)?)?;
        let op = Attention {
            cache,
            tables: turns.tables(),
        };
        qkv.apply_op2_no_bwd(&positions, &op)
    }

    /// The type of a kernel's elements, by its name and in tensor maps.
    trait Element: CudaDType + DeviceRepr {
        const DTYPE: warpweave::DType;
        const MAP: CUtensorMapDataType;
    }
    impl Element for bf16 {
        const DTYPE: warpweave::DType = warpweave::DType::Bf16;
        const MAP: CUtensorMapDataType = CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    }
    impl Element for f16 {
        const DTYPE: warpweave::DType = warpweave::DType::F16;
        const MAP: CUtensorMapDataType = CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    }

    /// The kernel of an element type and a head's width.
    macro_rules! of_head {
        ($kernel:literal, $element:ty, $head:expr) => {
            match $head {
                64 => kernel_name!(<$element>::DTYPE, $kernel, "_64"),
                _ => kernel_name!(<$element>::DTYPE, $kernel, "_128"),
            }
        };
    }

    /// The address of a contiguous tensor's elements.
    fn address<T: CudaDType + DeviceRepr>(storage: &CudaStorage, layout: &Layout) -> Result<u64> {
        let (start, end) = layout
            .contiguous_offsets()
            .ok_or_else(|| Error::msg("an operand is not contiguous"))?;
        let view = storage.as_cuda_slice::<T>()?.slice(start..end);
        let stream = storage.device().cuda_stream();
        let (address, _guard) = view.device_ptr(&stream);
        Ok(address)
    }

    /// The same of a tensor that is no argument of the operation.
    fn address_of<T: CudaDType + DeviceRepr>(tensor: &Tensor) -> Result<u64> {
        let (storage, layout) = tensor.storage_and_layout();
        match &*storage {
            Storage::Cuda(storage) => address::<T>(storage, layout),
            _ => Err(Error::msg("an operand is not on the GPU")),
        }
    }

    /// What kernels take.
    enum Argument {
        Address(u64),
        Count(u32),
        Attention(Parameters),
        Prompt(Box<Prompt>),
    }

    impl Argument {
        fn place(&mut self) -> *mut c_void {
            match self {
                Argument::Address(address) => (&raw mut *address).cast(),
                Argument::Count(count) => (&raw mut *count).cast(),
                Argument::Attention(parameters) => (&raw mut *parameters).cast(),
                Argument::Prompt(parameters) => (&raw mut **parameters).cast(),
            }
        }
    }

    thread_local! {
        /// The device and the stream that this thread has launched on.
        static ADOPTED: RefCell<Option<(Cuda, CudaStream)>> = const { RefCell::new(None) };
    }

    fn adopted(device: &CudaDevice) -> warpweave::Result<(Cuda, CudaStream)> {
        let of_candle = device.cuda_stream();
        let known = ADOPTED.with_borrow(Clone::clone);
        if let Some(known) = known.filter(|(_, stream)| stream.raw() == of_candle.cu_stream()) {
            return Ok(known);
        }
        let cuda = Cuda::adopt(of_candle.context().clone())?;
        let stream = cuda.adopt_stream(of_candle)?;
        ADOPTED.set(Some((cuda.clone(), stream.clone())));
        Ok((cuda, stream))
    }

    /// Launches a kernel of this package, which waits for the one before it.
    ///
    /// # Safety
    /// The kernel takes these arguments. Their addresses are those of tensors that are large enough, and that
    /// candle frees in the order of the stream.
    unsafe fn launch(
        device: &CudaDevice,
        (image, name): (&'static Image, &'static str),
        ((x, y), threads): ((u32, u32), u32),
        shared_bytes: usize,
        arguments: &mut [Argument],
    ) -> Result<()> {
        let config = LaunchConfig {
            grid: (x, y, 1),
            shared_bytes: shared_bytes as u32,
            programmatic: true,
            ..LaunchConfig::linear(1, threads)
        };
        let mut places: Vec<_> = arguments.iter_mut().map(Argument::place).collect();
        let (cuda, stream) = adopted(device).map_err(Error::wrap)?;
        let function = cuda.function(image, name).map_err(Error::wrap)?;
        // SAFETY: the caller's obligation.
        unsafe { cuda.launch(&stream, &function, config, &mut places) }.map_err(Error::wrap)
    }

    struct Attention<'a> {
        cache: &'a Tensor,
        tables: &'a [Tensor; 2],
    }

    impl Attention<'_> {
        fn on_gpu<T: Element>(
            &self,
            (qkv, layout): (&CudaStorage, &Layout),
            (positions, positions_layout): (&CudaStorage, &Layout),
        ) -> Result<(CudaStorage, Shape)> {
            let (rows, heads, head) = layout.shape().dims3()?;
            let (_, requests, key_heads, capacity, _) = self.cache.dims5()?;
            let query_heads = heads - 2 * key_heads;
            let device = qkv.device();
            // SAFETY: the kernels write all of it.
            let mut out = unsafe { alloc::<T>(device, rows * query_heads * head)? };
            // The cache is written through a shared borrow of its storage, as all of candle's work on it is
            // in the order of one stream.
            let parameters = Parameters {
                qkv: address::<T>(qkv, layout)?,
                keys: address_of::<T>(&self.cache.get(0)?)?,
                values: address_of::<T>(&self.cache.get(1)?)?,
                out: out.device_ptr_mut(&device.cuda_stream()).0,
                positions: address::<u32>(positions, positions_layout)?,
                cosines: address_of::<T>(&self.tables[0])?,
                sines: address_of::<T>(&self.tables[1])?,
                rows: rows as u32,
                key_heads: key_heads as u32,
                groups: (query_heads / key_heads) as u32,
                capacity: capacity as u32,
            };
            let row_bytes = head * size_of::<T>();
            let enqueue = |kernel, shape, shared_bytes, argument| {
                // SAFETY: the kernels take these parameters, whose shapes are those of the tensors; the
                // caches have room for the positions.
                unsafe { launch(device, kernel, shape, shared_bytes, &mut [argument]) }
            };
            let attention = Argument::Attention(parameters);
            if rows == requests {
                let clusters = requests * key_heads;
                // As many blocks as keep all SMs busy: each has less to do and as much to begin and end.
                let (name, blocks, stages) = match clusters {
                    ..48 => (of_head!("decode_8", T, head), PARTS, 3),
                    48..128 => (of_head!("decode_2", T, head), 2, 2),
                    _ => (of_head!("decode_1", T, head), 1, 2),
                };
                let warps = THREADS as usize / 32;
                let partials = (warps + PARTS / blocks) * (query_heads / key_heads);
                let shared_bytes =
                    stages * 2 * TOKENS * row_bytes + partials * (head + 2) * size_of::<f32>();
                let shape = ((blocks as u32, clusters as u32), THREADS);
                enqueue((&TRANSFORMER, name), shape, shared_bytes, attention)?;
            } else if requests == 1 {
                let pairs = rows * key_heads * head / (2 * VECTOR);
                let shape = ((pairs.div_ceil(WIDE as usize) as u32, 1), WIDE);
                let keep = of_head!("keep", T, head);
                enqueue((&TRANSFORMER, keep), shape, 0, attention)?;
                let grid = (query_heads as u32, rows.div_ceil(PROMPT_ROWS) as u32);
                let shared_bytes = SWIZZLE_ALIGNMENT + PROMPT_OPERANDS * PROMPT_ROWS * row_bytes;
                let prompt = Argument::Prompt(Prompt::new::<T>(parameters, head)?.into());
                let kernel = (&PROMPT, of_head!("prompt", T, head));
                enqueue(kernel, (grid, PROMPT_THREADS), shared_bytes, prompt)?;
            } else {
                let why = format!("{rows} rows for the cache of {requests} requests");
                return Err(Error::msg(why));
            }
            let shape = Shape::from((rows, query_heads * head));
            Ok((CudaStorage::wrap_cuda_slice(out, device.clone()), shape))
        }
    }

    impl CustomOp2 for Attention<'_> {
        fn name(&self) -> &'static str {
            "attention"
        }

        fn cpu_fwd(
            &self,
            _: &CpuStorage,
            _: &Layout,
            _: &CpuStorage,
            _: &Layout,
        ) -> Result<(CpuStorage, Shape)> {
            Err(not_on_a_gpu(self.name()))
        }

        fn cuda_fwd(
            &self,
            qkv: &CudaStorage,
            layout: &Layout,
            positions: &CudaStorage,
            positions_layout: &Layout,
        ) -> Result<(CudaStorage, Shape)> {
            let positions = (positions, positions_layout);
            match qkv.dtype() {
                DType::BF16 => self.on_gpu::<bf16>((qkv, layout), positions),
                _ => self.on_gpu::<f16>((qkv, layout), positions),
            }
        }
    }

    fn not_on_a_gpu(name: &str) -> Error {
        Error::msg(format!("{name}: the tensors are not on a GPU"))
    }

    /// What is computed of the rows of a matrix.
    pub(super) enum OfRows {
        SwiGlu,
        Choose,
    }

    impl OfRows {
        fn on_gpu<T: Element>(
            &self,
            x: &CudaStorage,
            layout: &Layout,
        ) -> Result<(CudaStorage, Shape)> {
            let (rows, columns) = layout.shape().dims2()?;
            let (device, from) = (x.device(), address::<T>(x, layout)?);
            let stream = device.cuda_stream();
            let enqueue = |name, to: u64, shape, counts: &[usize]| {
                let counts = counts.iter().map(|&count| Argument::Count(count as u32));
                let addresses = [from, to].map(Argument::Address);
                let mut arguments: Vec<_> = addresses.into_iter().chain(counts).collect();
                // SAFETY: the kernels take two addresses, of the rows and of what is made of them, then such
                // a number.
                unsafe { launch(device, (&TRANSFORMER, name), shape, 0, &mut arguments) }
            };
            match self {
                OfRows::SwiGlu => {
                    let width = columns / 2;
                    let vectors = rows * width / VECTOR;
                    // SAFETY: the kernel writes all of it.
                    let mut out = unsafe { alloc::<T>(device, rows * width)? };
                    let blocks = vectors.div_ceil(WIDE as usize) as u32;
                    let to = out.device_ptr_mut(&stream).0;
                    enqueue(
                        kernel_name!(T::DTYPE, "swiglu", ""),
                        to,
                        ((blocks, 1), WIDE),
                        &[vectors],
                    )?;
                    let out = CudaStorage::wrap_cuda_slice(out, device.clone());
                    Ok((out, Shape::from((rows, width))))
                }
                OfRows::Choose => {
                    // SAFETY: the kernel writes all of it.
                    let mut out = unsafe { alloc::<u32>(device, rows)? };
                    let to = out.device_ptr_mut(&stream).0;
                    enqueue(
                        kernel_name!(T::DTYPE, "choose", ""),
                        to,
                        ((rows as u32, 1), 1024),
                        &[columns / VECTOR],
                    )?;
                    let out = CudaStorage::wrap_cuda_slice(out, device.clone());
                    Ok((out, Shape::from(rows)))
                }
            }
        }
    }

    impl CustomOp1 for OfRows {
        fn name(&self) -> &'static str {
            match self {
                OfRows::SwiGlu => "swiglu",
                OfRows::Choose => "choose",
            }
        }

        fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
            Err(not_on_a_gpu(self.name()))
        }

        fn cuda_fwd(&self, x: &CudaStorage, layout: &Layout) -> Result<(CudaStorage, Shape)> {
            match x.dtype() {
                DType::BF16 => self.on_gpu::<bf16>(x, layout),
                _ => self.on_gpu::<f16>(x, layout),
            }
        }
    }
}

#[cfg(all(test, feature = "cuda", feature = "nvcc"))]
mod tests {
    use candle_core::{D, DType, Device, Tensor};

    use super::*;
    use crate::attention::{Attend, Cache};
    use crate::checkpoint::random::small_llama;
    use crate::config::Config;
    use crate::decode::Step;
    use crate::place::Place;
    use crate::rope::Rope;

    fn values(shape: (usize, usize), dtype: DType, device: &Device) -> Tensor {
        let count = shape.0 * shape.1;
        let value = |i: usize| ((i.wrapping_mul(2_654_435_761) >> 9) as u16) as f32 / 8192.0 - 4.0;
        let values = Tensor::from_vec((0..count).map(value).collect::<Vec<_>>(), shape, device);
        values.unwrap().to_dtype(dtype).unwrap()
    }

    #[test]
    #[ignore = "needs a GPU"]
    fn gpu_rows_are_those_of_candle() {
        let device = Place::gpu(0).unwrap().candle;
        for dtype in [DType::BF16, DType::F16] {
            for (rows, width) in [(1, 16), (3, 80), (65, 3584)] {
                let gate_up = values((rows, 2 * width), dtype, &device);
                let wide = gate_up.to_dtype(DType::F32).unwrap();
                // f32 takes candle's operations.
                let expected = swiglu(&wide).unwrap();
                let found = swiglu(&gate_up).unwrap().to_dtype(DType::F32).unwrap();
                let off = (found - &expected).unwrap().abs().unwrap();
                // Rounded once.
                let bound = (expected.abs().unwrap() * 2f64.powi(-8)).unwrap();
                let over = off
                    .gt(&(bound + 1e-6).unwrap())
                    .unwrap()
                    .to_dtype(DType::F32)
                    .unwrap();
                assert_eq!(over.sum_all().unwrap().to_scalar::<f32>().unwrap(), 0.0);
            }
            for (rows, width) in [(1, 8), (3, 8200), (64, 32_064)] {
                let scores = values((rows, width), dtype, &device);
                let largest = scores.max(D::Minus1).unwrap().to_dtype(DType::F32).unwrap();
                let largest = largest.to_vec1::<f32>().unwrap();
                let rows = scores
                    .to_dtype(DType::F32)
                    .unwrap()
                    .to_vec2::<f32>()
                    .unwrap();
                let expected = rows.iter().zip(largest);
                let expected =
                    expected.map(|(row, most)| row.iter().position(|&x| x == most).unwrap() as u32);
                let found = choose(&scores).unwrap().to_vec1::<u32>().unwrap();
                assert_eq!(found, expected.collect::<Vec<_>>());
            }
            // A token that is ruled out is none.
            const INF: f32 = f32::INFINITY;
            let mut rows = [[-3.0; 16]; 6];
            (rows[0][9], rows[1][2], rows[2][11]) = (f32::NAN, -f32::NAN, INF);
            rows[3] = [-INF; 16];
            rows[4] = [-INF; 16];
            (rows[4][7], rows[5][0], rows[5][8]) = (-6e4, -INF, 2.0);
            let rows = Tensor::new(&rows, &device).unwrap().to_dtype(dtype);
            let found = choose(&rows.unwrap()).unwrap().to_vec1::<u32>().unwrap();
            let none = u32::MAX;
            assert_eq!(found, [none, none, none, none, 7, 8]);
        }
    }

    /// However many requests there are, and so however many blocks share the parts of one.
    #[test]
    #[ignore = "needs a GPU"]
    fn gpu_tokens_have_the_same_bits_in_every_batch() {
        const HEAD: usize = 128;
        let device = Place::gpu(0).unwrap().candle;
        let (q_heads, k_heads) = (8, 2);
        let config = Config {
            head_dim: Some(HEAD),
            ..small_llama()
        };
        for context in [0u32, 63, 64, 200, 1500] {
            let capacity = context as usize + 1;
            let rope =
                Rope::new(&config, capacity, (q_heads, k_heads), DType::BF16, &device).unwrap();
            let width = (q_heads + 2 * k_heads) * HEAD;
            // The cache and the token of a request are those of every request.
            let attended = [1, 30, 80].map(|count| {
                let shape = (k_heads, capacity, HEAD);
                let cache = Cache::new(1, count, shape, DType::BF16, &device).unwrap();
                let one = values((2 * k_heads, capacity * HEAD), DType::BF16, &device);
                let one = one.reshape((2, 1, k_heads, capacity, HEAD)).unwrap();
                let all = one
                    .broadcast_as((2, count, k_heads, capacity, HEAD))
                    .unwrap();
                let all = all.contiguous().unwrap();
                cache.layer(0).slice_set(&all, 0, 0).unwrap();
                let qkv = values((1, width), DType::BF16, &device);
                let qkv = qkv
                    .broadcast_as((count, width))
                    .unwrap()
                    .contiguous()
                    .unwrap();
                let qkv = qkv.reshape((count, q_heads + 2 * k_heads, HEAD)).unwrap();
                let turns = rope.at(&Tensor::new(vec![context; count], &device).unwrap());
                let attended = Step::new(&cache).attend(0, &qkv, &turns).unwrap();
                attended
                    .to_dtype(DType::F32)
                    .unwrap()
                    .to_vec2::<f32>()
                    .unwrap()
            });
            let first = &attended[0][0];
            assert!(
                attended.iter().flatten().all(|row| row == first),
                "after {context} tokens"
            );
        }
    }
}
