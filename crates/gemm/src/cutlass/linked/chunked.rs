//! The kernels that wait for rows of A.

use std::ffi::c_void;
use std::ptr::from_ref;
use std::sync::OnceLock;

use super::{
    ADDRESS_ALIGNMENT, Arrivals, Config, Plan, Prepared, Raster, RawConfig, RawPlan, RawProblem,
    Tiling, check, read_configs,
};
use crate::{Error, GemmOperands, GemmProblem};

#[repr(C)]
struct RawArrivals {
    pad: *const c_void,
    own: u64,
    tables: [u64; 4],
    own_end: i32,
    slot: u32,
}

unsafe extern "C" {
    fn ww_cutlass_waiting_config_count() -> i32;
    fn ww_cutlass_waiting_config_at(index: i32) -> *const RawConfig;
    fn ww_cutlass_waiting_plan_create(
        config: i32,
        problem: *const RawProblem,
        prepared: *mut *mut RawPlan,
    ) -> i32;
    fn ww_cutlass_plan_await(prepared: *mut RawPlan, arrivals: *const RawArrivals) -> i32;
}

/// The compiled configurations of GEMMs that wait, in the library's order.
pub fn chunked_configs() -> Result<&'static [Config], Error> {
    static CONFIGS: OnceLock<Vec<Config>> = OnceLock::new();
    // SAFETY: the functions are the library's, for its table of kernels that wait.
    Ok(CONFIGS.get_or_init(|| unsafe {
        read_configs(
            ww_cutlass_waiting_config_count,
            ww_cutlass_waiting_config_at,
        )
    }))
}

impl Prepared {
    /// As [`Prepared::new`], for the kernel `config` of [`chunked_configs`].
    pub(crate) fn waiting(
        config: usize,
        problem: &GemmProblem,
        device: i32,
        sms: u32,
    ) -> Result<Self, Error> {
        // The order of the tiles is that of their rows' arrival.
        let tiling = Tiling {
            config,
            raster: Raster::AlongN,
            swizzle: 1,
        };
        Self::create(
            chunked_configs()?,
            ww_cutlass_waiting_plan_create,
            tiling,
            problem,
            (device, sms),
        )
    }

    /// Enqueues a GEMM that waits, whose A is staging. Otherwise as [`launch`](Prepared::launch).
    ///
    /// # Safety
    /// As for [`launch`](Prepared::launch), and the pad and the tables of `arrivals` are there until the GEMM
    /// has ended.
    pub(crate) unsafe fn launch_waiting(
        &self,
        operands: GemmOperands,
        arrivals: &Arrivals,
        stream: *mut c_void,
    ) -> Result<(), Error> {
        // SAFETY: the caller's obligation; the kernel needs no workspace.
        unsafe { self.launch_plan(operands, 0, Some(arrivals), stream) }
    }

    /// Says what a plan that no launch has been bound to waits for.
    pub(super) fn wait_for(&self, plan: &Plan, arrivals: &Arrivals) -> Result<(), Error> {
        if !arrivals.own.is_multiple_of(ADDRESS_ALIGNMENT) {
            return Err(Error::Operand {
                operand: "A",
                problem: Box::new(self.problem),
                reason: format!("own rows must lie at a multiple of {ADDRESS_ALIGNMENT}"),
            });
        }
        let raw = RawArrivals {
            pad: from_ref(&arrivals.pad).cast(),
            own: arrivals.own,
            tables: arrivals.tables,
            own_end: arrivals.own_end as i32,
            slot: arrivals.slot as u32,
        };
        // SAFETY: the plan lives and no other thread knows it; the pad is readable, and copied.
        let status = unsafe { ww_cutlass_plan_await(plan.0.as_ptr(), &raw) };
        check(self.config, "setting what it waits for", status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_configuration_is_readable_and_has_the_cluster_that_the_order_of_tiles_is_made_for() {
        let configs = chunked_configs().unwrap();
        assert!(!configs.is_empty());
        for Config {
            name,
            tile: [m, n, k],
            cluster,
            ..
        } in configs
        {
            assert!(name.starts_with("waiting_"), "{name}");
            assert!(name.ends_with(&format!("{m}x{n}x{k}_2x1")), "{name}");
            assert_eq!(*cluster, [2, 1], "{name}");
        }
        // As `warpweave_cutlass.cu` asserts of its own.
        assert_eq!(size_of::<RawArrivals>(), 56);
    }
}
