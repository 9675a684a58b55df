//! Sharing memory among processes on the host backend.

#[path = "support/processes.rs"]
mod processes;
#[path = "support/sharing.rs"]
mod sharing;

use processes::processes;
use warpweave_symm_mem::Host;

#[test]
fn memory_is_shared_freed_and_shared_again() {
    processes("memory_is_shared_freed_and_shared_again", 3, |exchange| {
        sharing::memory_is_shared_freed_and_shared_again(&Host::new(), &exchange);
    });
}

#[test]
fn one_registration_is_released() {
    processes("one_registration_is_released", 2, |exchange| {
        sharing::one_registration_is_released(&Host::new(), &exchange);
    });
}

#[test]
fn a_pool_is_used_again_and_again() {
    processes("a_pool_is_used_again_and_again", 3, |exchange| {
        sharing::a_pool_is_used_again_and_again(&Host::new(), &exchange);
    });
}
