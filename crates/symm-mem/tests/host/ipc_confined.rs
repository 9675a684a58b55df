//! A process that is short of descriptors still gets memory, but other processes cannot open it. In a
//! process of its own, because it lowers the limit of the whole process.

use crate::alone::alone;
use crate::faulty::{Faulty, ranks};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use warpweave_symm_mem::{Backend, IpcCache, Memory};

#[test]
fn memory_beyond_the_descriptors_is_confined_and_says_why() {
    alone(
        "ipc_confined::memory_beyond_the_descriptors_is_confined_and_says_why",
        || {
            let maximum = getrlimit(Resource::Nofile).maximum;
            let limit = Rlimit {
                current: Some(120),
                maximum,
            };
            setrlimit(Resource::Nofile, limit).unwrap();
            let device = Faulty::new();
            let many: Vec<_> = (0..200).map(|_| device.allocate(100).unwrap()).collect();
            for apart in [false, true] {
                let errors = ranks(2, move |exchange| {
                    let device = if apart {
                        Faulty::apart()
                    } else {
                        Faulty::new()
                    };
                    let memory = device.allocate(100).unwrap();
                    let cache = IpcCache::new(&device).unwrap();
                    let error = cache
                        .register(exchange.as_ref(), memory.address(), 100)
                        .map(drop)
                        .err();
                    exchange.barrier("end").unwrap();
                    error
                });
                for error in errors {
                    match error {
                        Some(error) => {
                            assert!(apart, "threads need no descriptor: {error}");
                            assert!(error.to_string().contains("ulimit -n"), "{error}");
                        }
                        None => assert!(!apart),
                    }
                }
            }
            drop(many);
        },
    );
}
