//! Device code: accepts any image that contains the names of its kernels as text, as cubins and PTX do.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{
    CUfunction, CUfunction_attribute as A, CUjit_option, CUlaunchAttributeID, CUlaunchConfig,
    CUmodule, CUresult as R,
};

use super::devices::SMS;
use super::put;
use crate::journal::{Outcome, refuse, require};
use crate::state::work::{Kernel, Work};
use crate::state::{Driver, Function, Module, lock};
use crate::work::run::submit;

/// Dynamic shared memory per block without and with the opt-in attribute.
const SHARED: (u32, u32) = (48 << 10, 232_448);

/// The bytes of an image: of an ELF file up to the end of its section headers, else of a C string.
///
/// # Safety
/// `image` is a whole ELF file, or ends with a zero byte.
unsafe fn code(image: *const c_void) -> Vec<u8> {
    let start = image.cast::<u8>();
    // SAFETY: the caller's obligation; an ELF header has 64 bytes.
    unsafe {
        if std::slice::from_raw_parts(start, 1) != b"\x7f" {
            return CStr::from_ptr(start.cast()).to_bytes().to_vec();
        }
        let header = std::slice::from_raw_parts(start, 64);
        let number = |at: usize, bytes: usize| {
            header[at..at + bytes]
                .iter()
                .rev()
                .fold(0usize, |n, byte| n << 8 | usize::from(*byte))
        };
        let end = number(0x28, 8) + number(0x3a, 2) * number(0x3c, 2);
        std::slice::from_raw_parts(start, end).to_vec()
    }
}

fn function(driver: &Driver, function: CUfunction) -> Outcome<(&Function, u64)> {
    let found = driver.functions.get(&(function as u64));
    let module = found.and_then(|f| driver.modules.get(&f.module));
    match (found, module) {
        (Some(function), Some(module)) => Ok((function, module.context)),
        _ => refuse(
            R::CUDA_ERROR_INVALID_HANDLE,
            "no such kernel, or its module is unloaded",
        ),
    }
}

/// Whether a launch may start before its predecessor has ended.
fn is_programmatic(config: &CUlaunchConfig) -> bool {
    let early = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    (0..config.numAttrs as usize).any(|i| {
        // SAFETY: the caller's obligation: there are so many attributes, each with the value of its kind.
        unsafe {
            let attribute = &*config.attrs.add(i);
            attribute.id == early && attribute.value.programmaticStreamSerializationAllowed != 0
        }
    })
}

calls! {
    fn cuModuleLoadDataEx(
        module: *mut CUmodule,
        image: *const c_void,
        _count: c_uint,
        _options: *mut CUjit_option,
        _values: *mut *mut c_void,
    ) {
        require(!image.is_null(), R::CUDA_ERROR_INVALID_IMAGE, "no image")?;
        // SAFETY: the caller's obligation, here and below.
        let code = unsafe { code(image) };
        let mut driver = lock();
        let context = driver.context()?.0;
        let name = driver.name();
        driver.modules.insert(name, Module { context, code });
        // SAFETY: as above.
        unsafe { put(module, name as CUmodule) }
    }

    fn cuModuleUnload(module: CUmodule) {
        let mut driver = lock();
        let name = module as u64;
        if driver.modules.remove(&name).is_none() {
            return refuse(R::CUDA_ERROR_INVALID_HANDLE, "no such module, or it was unloaded before");
        }
        driver.functions.retain(|_, function| function.module != name);
        Ok(())
    }

    fn cuModuleGetFunction(to: *mut CUfunction, module: CUmodule, name: *const c_char) {
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(name) };
        let mut driver = lock();
        let module = module as u64;
        let Some(found) = driver.modules.get(&module) else {
            return refuse(R::CUDA_ERROR_INVALID_HANDLE, "no such module");
        };
        let wanted = text.to_bytes();
        let known = found.code.windows(wanted.len().max(1)).any(|part| part == wanted);
        require(known, R::CUDA_ERROR_NOT_FOUND, format!("the image has no {text:?}"))?;
        let made = Function { module, name: text.to_string_lossy().into_owned(), shared_bytes: SHARED.0 };
        let name = driver.name();
        driver.functions.insert(name, made);
        // SAFETY: as above.
        unsafe { put(to, name as CUfunction) }
    }

    fn cuFuncLoad(of: CUfunction) {
        function(&lock(), of).map(drop)
    }

    fn cuFuncSetAttribute(of: CUfunction, attribute: A, value: c_int) {
        let mut driver = lock();
        function(&driver, of)?;
        if attribute == A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES {
            let bytes = u32::try_from(value).unwrap_or(u32::MAX);
            require(bytes <= SHARED.1, R::CUDA_ERROR_INVALID_VALUE, "more shared memory than there is")?;
            if let Some(function) = driver.functions.get_mut(&(of as u64)) {
                function.shared_bytes = bytes;
            }
        }
        Ok(())
    }

    fn cuFuncGetAttribute(value: *mut c_int, attribute: A, of: CUfunction) {
        let driver = lock();
        let shared = function(&driver, of)?.0.shared_bytes;
        let answer = match attribute {
            A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => shared as c_int,
            A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => 1024,
            _ => 0,
        };
        // SAFETY: as above.
        unsafe { put(value, answer) }
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks: *mut c_int,
        of: CUfunction,
        threads: c_int,
        shared_bytes: usize,
    ) {
        function(&lock(), of)?;
        require((1..=1024).contains(&threads), R::CUDA_ERROR_INVALID_VALUE, "threads of a block")?;
        let by_shared = (228 << 10) / (shared_bytes + 1024);
        // SAFETY: as above.
        unsafe { put(blocks, (2048 / threads).min(by_shared as c_int).min(32)) }
    }

    fn cuOccupancyMaxActiveClusters(clusters: *mut c_int, of: CUfunction, config: *const CUlaunchConfig) {
        require(!config.is_null(), R::CUDA_ERROR_INVALID_VALUE, "no configuration")?;
        // SAFETY: as above.
        let config = unsafe { &*config };
        let driver = lock();
        let (function, _) = function(&driver, of)?;
        require(
            config.sharedMemBytes <= function.shared_bytes,
            R::CUDA_ERROR_INVALID_VALUE,
            "more shared memory than the kernel may have",
        )?;
        // A cluster of any size on each SM.
        // SAFETY: as above.
        unsafe { put(clusters, SMS) }
    }

    fn cuLaunchKernelEx(
        config: *const CUlaunchConfig,
        of: CUfunction,
        parameters: *mut *mut c_void,
        _extra: *mut *mut c_void,
    ) {
        require(!config.is_null(), R::CUDA_ERROR_INVALID_VALUE, "no configuration")?;
        // SAFETY: as above.
        let config = unsafe { &*config };
        let grid = [config.gridDimX, config.gridDimY, config.gridDimZ];
        let block = [config.blockDimX, config.blockDimY, config.blockDimZ];
        let threads = block.iter().try_fold(1u32, |all, n| all.checked_mul(*n)).unwrap_or(0);
        require(
            grid.iter().all(|n| *n > 0) && (1..=1024).contains(&threads),
            R::CUDA_ERROR_INVALID_VALUE,
            format!("a grid of {grid:?} with blocks of {block:?}"),
        )?;
        let kernel = {
            let driver = lock();
            let (function, context) = function(&driver, of)?;
            require(
                context == driver.stream_context(config.hStream as u64)?,
                R::CUDA_ERROR_INVALID_HANDLE,
                "kernel and stream belong to different contexts",
            )?;
            require(
                config.sharedMemBytes <= function.shared_bytes,
                R::CUDA_ERROR_INVALID_VALUE,
                "more shared memory than the kernel may have",
            )?;
            // SAFETY: as above: a kernel of this name takes these parameters.
            unsafe { Kernel::of(&function.name, parameters) }
        };
        let stream = config.hStream as u64;
        if is_programmatic(config) {
            require(
                lock().may_follow_early(stream),
                R::CUDA_ERROR_INVALID_VALUE,
                "a programmatic edge of a graph that is from no kernel",
            )?;
        }
        // SAFETY: as above.
        unsafe { submit(stream, Work::Kernel(kernel)) }
    }
}
