//! A project outside of the workspace that depends on two of its crates by path.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::metadata::{cargo, root};

const PROGRAM: &str = r#"
use std::sync::Arc;
use warpweave_overlap::execute::Executor;
use warpweave_overlap::{Checked, Problem, algorithms, check};
use warpweave_symm_mem::{Backend, DType, Exchange, Host, SymmetricBuffer, ThreadExchange};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let problem = Problem::new(4, 1, 2, DType::F32);
    let ring = algorithms::find("ringPut")?;
    let report = check(&ring.plans(2, &problem)?, 3);
    println!("{report}");

    let exchange: Arc<dyn Exchange> = Arc::new(ThreadExchange::group(1).remove(0));
    let device = Host::new();
    let stream = device.stream(Default::default())?;
    let buffer = SymmetricBuffer::new(&device, &exchange, "buffer", 100)?;
    let executor = Executor::new(&device, &exchange)?;
    let checked = Checked::prove(ring.plans(1, &problem)?)?;
    let plan = executor.bind(&checked, &stream)?;
    plan.write("a", &[1.0f32; 8].map(f32::to_ne_bytes).concat())?;
    plan.write("b", &[3.0f32; 2].map(f32::to_ne_bytes).concat())?;
    plan.run()?;
    let mut c = [0; 16];
    plan.read("c", &mut c)?;
    assert_eq!(c.to_vec(), [6.0f32; 4].map(f32::to_ne_bytes).concat());
    println!("{} symmetric bytes, and C is right", buffer.bytes());
    Ok(())
}
"#;

/// The versions are those of the workspace's lock file. A project of its own chooses features of its own, but
/// most of its dependencies are those that the workspace's tests have compiled: it builds in the same folder,
/// with their settings.
#[test]
fn a_project_outside_builds_and_runs() {
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (target, folder) = (scratch.parent().unwrap(), scratch.join("outside"));
    let write = |path: &str, text: &str| fs::write(folder.join(path), text).unwrap();
    let mut manifest = String::from(
        "[package]\nname = \"outside\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[dependencies]\n",
    );
    for name in ["symm-mem", "overlap"] {
        let path = root().join("crates").join(name);
        manifest += &format!("warpweave-{name} = {{ path = {path:?} }}\n");
    }
    manifest += "\n[profile.dev]\ndebug = false\nincremental = false\nlto = \"off\"\n";
    manifest += "[workspace]\n";
    fs::create_dir_all(folder.join("src")).unwrap();
    write("Cargo.toml", &manifest);
    write("src/main.rs", PROGRAM);
    fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();

    let output = cargo(&folder, &["build"], &[("CARGO_TARGET_DIR", target)]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let output = Command::new(target.join("debug/outside")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        text.contains("ringPut, 2 ranks, 3 calls back to back: holds"),
        "{text}"
    );
    assert!(
        text.contains("100 symmetric bytes, and C is right"),
        "{text}"
    );
}
