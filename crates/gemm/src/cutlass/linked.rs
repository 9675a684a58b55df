//! The static library of kernels, through the C interface of `warpweave_cutlass.h`.

mod chunked;

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

use warpweave_symm_mem::{DType, PadView};

use super::requirements::{ADDRESS_ALIGNMENT, check_problem};
use super::{Arrivals, Config, Raster, Tiling};
use crate::capture::Relaxed;
use crate::launches::Launches;
use crate::{Error, GemmOperands, GemmProblem};

pub use chunked::chunked_configs;

#[repr(C)]
struct RawConfig {
    name: *const c_char,
    tile: [i32; 3],
    cluster: [i32; 2],
    cooperative: i32,
    stream_k: i32,
}

#[derive(Debug)]
#[repr(C)]
struct RawProblem {
    m: i32,
    n: i32,
    k: i32,
    lda: i64,
    ldb: i64,
    ldc: i64,
    dtype: i32,
    raster: i32,
    max_swizzle: i32,
    device: i32,
    sm_count: i32,
}

#[repr(C)]
struct RawPlan {
    _opaque: [u8; 0],
}

unsafe extern "C" {
    fn ww_cutlass_status_text(status: i32) -> *const c_char;
    fn ww_cutlass_config_count() -> i32;
    fn ww_cutlass_config_at(index: i32) -> *const RawConfig;
    fn ww_cutlass_plan_create(
        config: i32,
        problem: *const RawProblem,
        prepared: *mut *mut RawPlan,
    ) -> i32;
    fn ww_cutlass_plan_workspace(prepared: *const RawPlan) -> usize;
    fn ww_cutlass_plan_bind(prepared: *mut RawPlan, a: u64, b: u64, c: u64, workspace: u64) -> i32;
    fn ww_cutlass_plan_run(prepared: *mut RawPlan, stream: *mut c_void) -> i32;
    fn ww_cutlass_plan_destroy(prepared: *mut RawPlan);
}

/// The compiled configurations, in the library's order.
pub fn configs() -> Result<&'static [Config], Error> {
    static CONFIGS: OnceLock<Vec<Config>> = OnceLock::new();
    // SAFETY: the functions are the library's, for its table of kernels.
    Ok(CONFIGS
        .get_or_init(|| unsafe { read_configs(ww_cutlass_config_count, ww_cutlass_config_at) }))
}

/// # Safety
/// The functions are those of one of the library's tables.
unsafe fn read_configs(
    count: unsafe extern "C" fn() -> i32,
    at: unsafe extern "C" fn(i32) -> *const RawConfig,
) -> Vec<Config> {
    // SAFETY: the function only returns a constant.
    let count = unsafe { count() };
    (0..count)
        .filter_map(|index| {
            // SAFETY: the library answers with static data or null.
            let raw = unsafe { at(index).as_ref() }?;
            // SAFETY: the name is a static string.
            let name = unsafe { CStr::from_ptr(raw.name) };
            Some(Config {
                name: name.to_str().unwrap_or("unnamed"),
                tile: raw.tile.map(|extent| extent as u32),
                cluster: raw.cluster.map(|extent| extent as u32),
                cooperative: raw.cooperative != 0,
                stream_k: raw.stream_k != 0,
            })
        })
        .collect()
}

/// A kernel for a problem on the device whose context was current when it was made.
#[derive(Debug)]
pub struct Prepared {
    config: &'static str,
    problem: GemmProblem,
    workspace: usize,
    create: Create,
    index: i32,
    raw_problem: RawProblem,
    launches: Launches<Key, Plan>,
}

type Create = unsafe extern "C" fn(i32, *const RawProblem, *mut *mut RawPlan) -> i32;

/// What a plan of the library is bound to: addresses of A, B, C and the workspace; of plans that wait also
/// the address of own rows and the pad.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    addresses: [u64; 4],
    own: u64,
    pad: Option<[u64; 10]>,
}

/// The library's plan, bound to the operands of a launch.
#[derive(Debug)]
struct Plan(NonNull<RawPlan>);

// SAFETY: the library's plan is plain host memory without thread affinity, and a mutex lets one thread in at
// a time.
unsafe impl Send for Plan {}

impl Prepared {
    /// Prepares `tiling` for `problem` on CUDA device `device`, using at most `sms` of its SMs. The device's
    /// context must be current.
    pub fn new(
        tiling: Tiling,
        problem: &GemmProblem,
        device: i32,
        sms: u32,
    ) -> Result<Self, Error> {
        let place = (device, sms);
        Self::create(configs()?, ww_cutlass_plan_create, tiling, problem, place)
    }

    /// A kernel of one of the tables of the library, by its function.
    fn create(
        configs: &'static [Config],
        create: Create,
        tiling: Tiling,
        problem: &GemmProblem,
        (device, sms): (i32, u32),
    ) -> Result<Self, Error> {
        check_problem(problem)?;
        let config = configs
            .get(tiling.config)
            .map_or("of no known index", |config| config.name);
        let raw_problem = RawProblem {
            m: problem.m as i32,
            n: problem.n as i32,
            k: problem.k as i32,
            lda: problem.lda as i64,
            ldb: problem.ldb as i64,
            ldc: problem.ldc as i64,
            dtype: i32::from(problem.dtype == DType::Bf16),
            raster: match tiling.raster {
                Raster::Heuristic => 0,
                Raster::AlongM => 1,
                Raster::AlongN => 2,
            },
            max_swizzle: tiling.swizzle as i32,
            device,
            sm_count: sms as i32,
        };
        let mut prepared = Self {
            config,
            problem: *problem,
            workspace: 0,
            create,
            index: tiling.config as i32,
            raw_problem,
            launches: Launches::default(),
        };
        // That it can be made is known now, and what a launch needs.
        let plan = prepared.plan()?;
        // SAFETY: the plan was just created.
        prepared.workspace = unsafe { ww_cutlass_plan_workspace(plan.0.as_ptr()) };
        Ok(prepared)
    }

    fn plan(&self) -> Result<Plan, Error> {
        // Sets attributes of the kernel, which stricter modes of a capture may refuse.
        let _relaxed = Relaxed::begin()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the problem is readable and `raw` a place for one plan; the library checks the index.
        let status = unsafe { (self.create)(self.index, &self.raw_problem, &mut raw) };
        check(self.config, "creating the plan", status)?;
        NonNull::new(raw).map(Plan).ok_or(Error::NoCandidate)
    }

    /// Bytes of device workspace that a launch needs.
    pub fn workspace(&self) -> usize {
        self.workspace
    }

    /// Enqueues the GEMM on `stream`, a `CUstream`. Tensor maps of the last 256 different operands are kept,
    /// others are encoded.
    ///
    /// # Errors
    /// [`Error::Operand`] for addresses that are not multiples of 16; [`Error::Cutlass`].
    ///
    /// # Safety
    /// - `operands` are device addresses of the problem's matrices and `workspace` of [`Prepared::workspace`]
    ///   bytes (or 0 where none are needed), all mapped until the GEMM has ended.
    /// - No unordered work conflicts with any of them; C overlaps neither A nor B.
    /// - The context in which the kernel was prepared is current.
    pub unsafe fn launch(
        &self,
        operands: GemmOperands,
        workspace: u64,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        // SAFETY: the caller's obligation.
        unsafe { self.launch_plan(operands, workspace, None, stream) }
    }

    /// As [`launch`](Self::launch), of a GEMM that waits for `arrivals` if there are any.
    ///
    /// # Safety
    /// As for [`launch`](Self::launch), and of a GEMM that waits as for
    /// [`launch_waiting`](Self::launch_waiting).
    unsafe fn launch_plan(
        &self,
        operands: GemmOperands,
        workspace: u64,
        arrivals: Option<&Arrivals>,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        operands.check(&self.problem, |_| ADDRESS_ALIGNMENT)?;
        let [a, b, c] = [operands.a, operands.b, operands.c].map(|address| address.0);
        let key = Key {
            addresses: [a, b, c, workspace],
            own: arrivals.map_or(0, |arrivals| arrivals.own),
            pad: arrivals.map(|arrivals| words_of(&arrivals.pad)),
        };
        let encode = || {
            let plan = self.plan()?;
            if let Some(arrivals) = arrivals {
                self.wait_for(&plan, arrivals)?;
            }
            // SAFETY: the plan lives and no other thread knows it; encoding reads no device memory.
            let status = unsafe { ww_cutlass_plan_bind(plan.0.as_ptr(), a, b, c, workspace) };
            check(self.config, "encoding the tensor maps", status)?;
            Ok(plan)
        };
        self.launches.with(&key, encode, |plan| {
            // SAFETY: the plan lives, is in this thread alone, and is bound to what the caller vouches for.
            let status = unsafe { ww_cutlass_plan_run(plan.0.as_ptr(), stream) };
            check(self.config, "launching", status)
        })
    }
}

/// All that a pad is, to compare it by.
fn words_of(pad: &PadView) -> [u64; 10] {
    let PadView {
        peers,
        sent,
        expected,
        tickets,
        fault,
        stop,
        timeout_ns,
        rank,
        world,
        slots,
        reserved: _,
    } = *pad;
    [
        peers.0,
        sent.0,
        expected.0,
        tickets.0,
        fault.0,
        stop.device.0,
        stop.host.0,
        timeout_ns,
        u64::from(rank) << 32 | u64::from(world),
        slots.into(),
    ]
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: the plan was created by the library and is not used again; a launch has copied its
        // parameters.
        unsafe { ww_cutlass_plan_destroy(self.0.as_ptr()) };
    }
}

fn check(config: &'static str, call: &'static str, status: i32) -> Result<(), Error> {
    if status == 0 {
        return Ok(());
    }
    // SAFETY: the library answers with a static string for any number.
    let text = unsafe { CStr::from_ptr(ww_cutlass_status_text(status)) };
    Err(Error::Cutlass {
        config: config.into(),
        call,
        text: text.to_string_lossy().into_owned(),
        status,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_readable_and_its_names_are_unique() {
        let configs = configs().unwrap();
        assert!(configs.len() >= 3);
        for (index, config) in configs.iter().enumerate() {
            let [m, n, k] = config.tile;
            let [cm, cn] = config.cluster;
            assert!(
                config.name.ends_with(&format!("{m}x{n}x{k}_{cm}x{cn}")),
                "{config:?}"
            );
            assert!(
                configs[..index]
                    .iter()
                    .all(|other| other.name != config.name)
            );
        }
    }

    #[test]
    fn an_unknown_configuration_is_a_typed_error() {
        let tiling = Tiling {
            config: 1000,
            raster: Raster::Heuristic,
            swizzle: 1,
        };
        let problem = GemmProblem::new(128, 128, 128, DType::Bf16);
        let error = Prepared::new(tiling, &problem, 0, 132).unwrap_err();
        assert!(
            matches!(error, Error::Cutlass { status, .. } if status < 0),
            "{error}"
        );
    }
}
