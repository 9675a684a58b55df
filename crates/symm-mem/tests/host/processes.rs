//! Sharing memory among processes on the host backend.

use crate::ranks::processes;
use crate::sharing;
use warpweave_symm_mem::Host;

#[test]
fn memory_is_shared_freed_and_shared_again() {
    processes(
        "processes::memory_is_shared_freed_and_shared_again",
        3,
        |exchange| {
            sharing::memory_is_shared_freed_and_shared_again(&Host::new(), &exchange);
        },
    );
}

#[test]
fn one_registration_is_released() {
    processes("processes::one_registration_is_released", 2, |exchange| {
        sharing::one_registration_is_released(&Host::new(), &exchange);
    });
}

#[test]
fn a_pool_is_used_again_and_again() {
    processes("processes::a_pool_is_used_again_and_again", 3, |exchange| {
        sharing::a_pool_is_used_again_and_again(&Host::new(), &exchange);
    });
}
