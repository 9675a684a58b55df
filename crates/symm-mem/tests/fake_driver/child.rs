//! This program again, with the fake driver instead of libcuda.

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, process};

use warpweave_fake_driver::Control;

/// Variable: the role of the child.
pub const ROLE: &str = "WARPWEAVE_FAKE_ROLE";

/// Variables that keep multicast away from machines whose fabric is shared. The fake driver has no fabric.
const REFUSALS: [&str; 3] = [
    "NCCL_NVLS_ENABLE",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "NVSHMEM_DISABLE_NVLS",
];

/// The longest that a child may take.
const LIMIT: Duration = Duration::from_secs(300);

/// A process with a role, in a folder of its own.
pub struct Child {
    command: Command,
    folder: PathBuf,
}

impl Child {
    pub fn new(role: &str) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fake-driver-{}-{number}", process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::copy(library(), folder.join("libcuda.so")).unwrap();
        let mut paths = vec![folder.clone()];
        let inherited = env::var_os("LD_LIBRARY_PATH");
        paths.extend(inherited.iter().flat_map(env::split_paths));
        let mut command = Command::new(env::current_exe().unwrap());
        command
            .args(["--exact", "child", "--nocapture"])
            .env(ROLE, role)
            .env("LD_LIBRARY_PATH", env::join_paths(paths).unwrap())
            .env_remove("WARPWEAVE_MULTICAST")
            .stdin(Stdio::null());
        Child { command, folder }
    }

    pub fn set(mut self, name: &str, value: &str) -> Self {
        self.command.env(name, value);
        self
    }

    /// Opens the multicast guard: the child has verified that it loaded the fake driver.
    pub fn multicast(mut self) -> Self {
        self.command.env("WARPWEAVE_MULTICAST", "1");
        for name in REFUSALS {
            self.command.env_remove(name);
        }
        self
    }

    /// Removes a function from the child's driver, by renaming it in the library.
    pub fn without(self, function: &str) -> Self {
        let path = self.folder.join("libcuda.so");
        let mut library = fs::read(&path).unwrap();
        let name = [b"\0", function.as_bytes(), b"\0"].concat();
        let found: Vec<_> = (0..library.len() - name.len())
            .filter(|at| library[*at..].starts_with(&name))
            .collect();
        assert!(!found.is_empty(), "the fake driver has no {function}");
        for at in found {
            library[at + 1] = b'X';
        }
        fs::write(&path, library).unwrap();
        self
    }

    /// Runs it to its end, which must be successful.
    pub fn run(self) {
        run_all(vec![self]);
    }

    fn start(&mut self) -> process::Child {
        let file = fs::File::create(self.folder.join("log")).unwrap();
        let command = self.command.stdout(file.try_clone().unwrap()).stderr(file);
        command.spawn().unwrap()
    }

    /// What is wrong with how it ended.
    fn judge(&self, status: Option<process::ExitStatus>) -> Option<String> {
        let text = fs::read_to_string(self.folder.join("log")).unwrap();
        let how = match status {
            None => "hangs".to_owned(),
            Some(status) if !status.success() => format!("ended with {status}"),
            Some(_) if !text.contains("1 passed") => "ran no test".to_owned(),
            Some(_) => return None,
        };
        Some(format!("{:?} {how}:\n{text}", self.command))
    }
}

/// Runs children concurrently; all must succeed.
pub fn run_all(mut children: Vec<Child>) {
    let start = Instant::now();
    let mut running: Vec<_> = children.iter_mut().map(Child::start).collect();
    let statuses: Vec<_> = running.iter_mut().map(|child| wait(child, start)).collect();
    let judged = children
        .iter()
        .zip(statuses)
        .filter_map(|(child, status)| child.judge(status));
    let wrong: Vec<_> = judged.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// How the child ended, if it did in time.
fn wait(child: &mut process::Child, start: Instant) -> Option<process::ExitStatus> {
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        if start.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The library that cargo built as a dev-dependency, next to this program.
fn library() -> PathBuf {
    let folder = env::current_exe().unwrap().parent().unwrap().to_owned();
    let file = folder.join("libwarpweave_fake_driver.so");
    assert!(file.is_file(), "{} is not there", file.display());
    file
}

/// The driver of this process, which must be the fake one.
pub fn loaded() -> Control {
    assert!(warpweave_symm_mem::cuda::is_driver_present(), "no libcuda");
    // SAFETY: loading a driver is what this process is for.
    let library = unsafe { libloading::Library::new("libcuda.so") }.expect("libcuda.so");
    let symbol = |name: &CStr| {
        // SAFETY: the symbol is looked up here; whoever calls it knows its type.
        let found = unsafe { library.get::<*const std::ffi::c_void>(name.to_bytes_with_nul()) };
        found.map_or(std::ptr::null(), |found| *found)
    };
    // SAFETY: `symbol` gives addresses or null, and the backend keeps the library loaded.
    unsafe { Control::find(symbol) }.expect("the loaded libcuda is not the fake driver")
}
