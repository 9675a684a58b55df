//! The operating system, the processors and the memory.

use std::fs;
use std::os::unix::net::UnixStream;

use rustix::fs::MemfdFlags;

use super::{Answer, Finding, Use, doubtful, missing, present};

/// Four ranks at the bench's shapes for the host stay well below this.
const SCARCE_MEMORY: u64 = 2 << 30;

/// What the host backend needs.
pub fn examine() -> Vec<Finding> {
    vec![
        ("system", Use::Host, system()),
        ("processors", Use::Host, processors()),
        ("memory", Use::Host, memory()),
        ("shared segments", Use::Host, segments()),
    ]
}

fn system() -> Answer {
    let name = rustix::system::uname();
    let (os, release) = (std::env::consts::OS, name.release().to_string_lossy());
    let text = format!("{os} {release} {}", std::env::consts::ARCH);
    if cfg!(target_os = "linux") {
        present(text)
    } else {
        missing(text, "symmetric memory needs Linux")
    }
}

fn processors() -> Answer {
    match std::thread::available_parallelism().map(usize::from) {
        Ok(1) => doubtful(
            "1",
            "ranks share it: figures of the host backend say little",
        ),
        Ok(count) => present(count.to_string()),
        Err(error) => doubtful(error.to_string(), "one is assumed"),
    }
}

fn memory() -> Answer {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let (Some(total), Some(available)) =
        (meminfo(&text, "MemTotal"), meminfo(&text, "MemAvailable"))
    else {
        return doubtful("unknown", "/proc/meminfo cannot be read");
    };
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    let found = format!("{:.1} GiB, {:.1} GiB available", gib(total), gib(available));
    if available < SCARCE_MEMORY {
        return doubtful(found, "free some, or take fewer ranks and smaller shapes");
    }
    present(found)
}

/// A figure of `/proc/meminfo`, in bytes.
fn meminfo(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    let rest = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Creates what ranks share: an anonymous segment and a Unix socket, which carries its descriptor.
fn segments() -> Answer {
    let memfd = rustix::fs::memfd_create("warpweave-doctor", MemfdFlags::CLOEXEC);
    let tried = memfd
        .and_then(|segment| rustix::fs::ftruncate(&segment, 4096))
        .map_err(|errno| format!("memfd_create: {errno}"))
        .and_then(|()| UnixStream::pair().map_err(|error| format!("socketpair: {error}")));
    match tried {
        Ok(_) => present("memfd and Unix sockets"),
        Err(refused) => {
            let advice = "allow it in the container's seccomp profile, or use Linux 3.17 or newer";
            missing(refused, advice)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "MemTotal:       24675340 kB\nMemFree:  many kB\nMemAvailable:   1 kB\n";
        for (name, expected) in [
            ("MemTotal", Some(24_675_340 * 1024)),
            ("MemAvailable", Some(1024)),
            ("Mem", None),
            ("MemFree", None),
        ] {
            assert_eq!(meminfo(text, name), expected, "{name}");
        }
    }
}
