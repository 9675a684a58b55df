//! The cuBLASLt path against a library that records its calls.

use std::ffi::{CStr, CString, c_char};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};

use warpweave_gemm::cublaslt::{Handle, Library, Matmul};
use warpweave_gemm::{Error, GemmBatch, GemmOperands, GemmProblem, Layout, Scaling};
use warpweave_symm_mem::{DType, DevicePtr};

/// The library's log is global, so that tests take turns.
static TURN: Mutex<()> = Mutex::new(());

struct Fake {
    controls: libloading::Library,
    handle: Arc<Handle>,
    _turn: MutexGuard<'static, ()>,
}

fn build(name: &str, flags: &[&str]) -> PathBuf {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake/cublaslt.c");
    let status = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Werror", "-fPIC", "-shared", "-o"])
        .arg(&out)
        .args(flags)
        .arg(source)
        .status()
        .expect("the tests need a C compiler named cc");
    assert!(status.success());
    out
}

impl Fake {
    fn new(name: &str) -> Self {
        let turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let path = build(name, &[]);
        // SAFETY: the library has no initialisers.
        let controls = unsafe { libloading::Library::new(&path) }.unwrap();
        let library = Library::open(&path).unwrap();
        assert_eq!(library.version(), 130_100);
        let handle = Handle::new(Arc::new(library)).unwrap();
        let fake = Self {
            controls,
            handle,
            _turn: turn,
        };
        fake.clear();
        fake
    }

    fn log(&self) -> String {
        // SAFETY: the function has this signature and returns a buffer that lives as long as the library.
        unsafe {
            let log = self
                .controls
                .get::<unsafe extern "C" fn() -> *const c_char>(b"fake_log")
                .unwrap();
            CStr::from_ptr(log()).to_str().unwrap().to_owned()
        }
    }

    fn clear(&self) {
        // SAFETY: the function has this signature.
        unsafe {
            self.controls
                .get::<unsafe extern "C" fn()>(b"fake_clear")
                .unwrap()()
        }
    }

    fn fail(&self, function: &str, status: u32) {
        let function = CString::new(function).unwrap();
        // SAFETY: the function has this signature and copies the string.
        unsafe {
            let fail = self
                .controls
                .get::<unsafe extern "C" fn(*const c_char, u32)>(b"fake_fail")
                .unwrap();
            fail(function.as_ptr(), status);
        }
    }
}

fn launch(matmul: &Matmul) -> Result<(), Error> {
    launch_with_bias(matmul, 0)
}

fn launch_with_bias(matmul: &Matmul, bias: u64) -> Result<(), Error> {
    let operands = GemmOperands::new(DevicePtr(0xa00), DevicePtr(0xb00), DevicePtr(0xc00));
    let algorithms = matmul.heuristics(8, 1 << 20, 16)?;
    assert_eq!(algorithms.len(), 2, "the third proposal is not usable");
    // SAFETY: the library dereferences no address but those of the scalars.
    unsafe {
        matmul.launch(
            &algorithms[1],
            operands.with_bias(DevicePtr(bias)),
            0xf00,
            0x500 as *mut _,
        )
    }
}

#[test]
fn a_row_major_gemm_is_asked_for_as_its_transpose() {
    let fake = Fake::new("libfake_row_major.so");
    let problem = GemmProblem::new(5, 7, 3, DType::Bf16)
        .with_leading_dimensions(11, 13, 17)
        .with_output(DType::F32);
    launch(&Matmul::new(&fake.handle, &problem).unwrap()).unwrap();
    let log = fake.log();
    // CUBLAS_COMPUTE_32F = 68; CUDA_R_16BF = 14, CUDA_R_32F = 0. Their A is our B and has our n as its rows.
    assert!(log.contains("operation compute=68 scale=0\n"), "{log}");
    assert!(
        log.contains(
            "matmul trans=00 alpha=1 beta=0 a=0xb00 b=0xa00 c=0xc00 d=0xc00 algorithm=41 workspace=0xf00+4096 stream=0x500\n\
             A type=14 rows=7 cols=3 ld=13\n\
             B type=14 rows=3 cols=5 ld=11\n\
             C type=0 rows=7 cols=5 ld=17\n\
             D type=0 rows=7 cols=5 ld=17\n"
        ),
        "{log}"
    );
    // CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1, REDUCTION_SCHEME_MASK = 3 (2: in the compute type alone),
    // and the four MIN_ALIGNMENT attributes 5 to 8.
    for preference in ["1=1048576", "3=2", "5=16", "6=16", "7=16", "8=16"] {
        assert!(log.contains(&format!("preference {preference}\n")), "{log}");
    }
}

#[test]
fn transposed_operands_swap_their_stored_extents() {
    let fake = Fake::new("libfake_transposed.so");
    let problem =
        GemmProblem::new(5, 7, 3, DType::F16).with_layouts(Layout::RowMajor, Layout::Transposed);
    launch(&Matmul::new(&fake.handle, &problem).unwrap()).unwrap();
    let log = fake.log();
    assert!(log.contains("matmul trans=10 "), "{log}");
    assert!(
        log.contains("A type=2 rows=3 cols=7 ld=3\nB type=2 rows=3 cols=5 ld=3\n"),
        "{log}"
    );

    fake.clear();
    let problem =
        GemmProblem::new(5, 7, 3, DType::F16).with_layouts(Layout::Transposed, Layout::RowMajor);
    launch(&Matmul::new(&fake.handle, &problem).unwrap()).unwrap();
    let log = fake.log();
    assert!(log.contains("matmul trans=01 "), "{log}");
    assert!(
        log.contains("A type=2 rows=7 cols=3 ld=7\nB type=2 rows=5 cols=3 ld=5\n"),
        "{log}"
    );
}

#[test]
fn a_bias_is_set_for_the_heuristics_and_for_every_launch() {
    let fake = Fake::new("libfake_bias.so");
    let problem = GemmProblem::new(5, 7, 3, DType::F16).with_bias();
    let matmul = Matmul::new(&fake.handle, &problem).unwrap();
    // CUBLASLT_EPILOGUE_BIAS = 4. The heuristics see an address of the alignment that they are promised.
    for bias in [0xd00, 0xd00, 0xe00] {
        fake.clear();
        launch_with_bias(&matmul, bias).unwrap();
        let log = fake.log();
        assert!(log.contains("heuristic epilogue=4 bias=0x10\n"), "{log}");
        assert!(
            log.contains(&format!("matmul epilogue=4 bias={bias:#x}\n")),
            "{log}"
        );
    }

    fake.clear();
    let plain = GemmProblem {
        bias: false,
        ..problem
    };
    launch_with_bias(&Matmul::new(&fake.handle, &plain).unwrap(), 0xd00).unwrap();
    assert!(!fake.log().contains("epilogue"), "{}", fake.log());
}

#[test]
fn threads_that_share_a_plan_launch_with_their_own_bias() {
    let fake = Fake::new("libfake_bias_threads.so");
    let problem = GemmProblem::new(5, 7, 3, DType::F16).with_bias();
    let matmul = Matmul::new(&fake.handle, &problem).unwrap();
    let algorithm = matmul.heuristics(1, 1 << 20, 16).unwrap()[0];
    fake.clear();
    const LAUNCHES: u64 = 16;
    std::thread::scope(|threads| {
        for thread in 1..=2u64 {
            let matmul = &matmul;
            threads.spawn(move || {
                // The stream tells the log whose launch it is.
                let (bias, stream) = (DevicePtr(thread << 12), (thread << 12) as *mut _);
                let address = DevicePtr(0xa00);
                let operands = GemmOperands::new(address, address, address).with_bias(bias);
                for _ in 0..LAUNCHES {
                    // SAFETY: the library dereferences no address but those of the scalars.
                    unsafe { matmul.launch(&algorithm, operands, 0, stream).unwrap() };
                }
            });
        }
    });
    let log = fake.log();
    let launches: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("matmul "))
        .collect();
    assert_eq!(launches.len() as u64, 2 * 2 * LAUNCHES, "{log}");
    for launch in launches.chunks_exact(2) {
        let after = |line: &str, key: &str| line.rsplit_once(key).unwrap().1.to_owned();
        assert_eq!(after(launch[0], "bias="), after(launch[1], "stream="));
    }
}

#[test]
fn a_batch_is_described_by_every_layout() {
    let fake = Fake::new("libfake_batch.so");
    let batch = GemmBatch {
        count: 3,
        a_stride: 15,
        b_stride: 0,
        c_stride: 40,
    };
    let problem = GemmProblem::new(5, 7, 3, DType::F16).with_batch(batch);
    launch(&Matmul::new(&fake.handle, &problem).unwrap()).unwrap();
    let log = fake.log();
    let layouts = "A type=2 rows=7 cols=3 ld=7 batch=3 by 0\n\
                   B type=2 rows=3 cols=5 ld=3 batch=3 by 15\n\
                   C type=2 rows=7 cols=5 ld=7 batch=3 by 40\n";
    assert_eq!(
        log.matches(layouts).count(),
        2,
        "heuristic and launch: {log}"
    );
    assert!(
        log.contains("D type=2 rows=7 cols=5 ld=7 batch=3 by 40\n"),
        "{log}"
    );

    fake.fail("cublasLtMatrixLayoutSetAttribute", 7);
    let error = Matmul::new(&fake.handle, &problem).unwrap_err();
    assert!(
        matches!(error, Error::CublasLt { status: 7, .. }),
        "{error}"
    );
}

#[test]
fn a_batch_invariant_algorithm_is_chosen_without_m_and_checked_with_it() {
    let fake = Fake::new("libfake_invariant.so");
    for (m, count) in [(1, 1), (7, 3), (256, 1), (4000, 2)] {
        fake.clear();
        let batch = GemmBatch {
            count,
            a_stride: 24 * m,
            b_stride: 0,
            c_stride: 40 * m,
        };
        let problem = GemmProblem::new(m, 40, 24, DType::F16)
            .with_bias()
            .with_batch(batch)
            .with_batch_invariance();
        let matmul = Matmul::new(&fake.handle, &problem).unwrap();
        let algorithm = matmul.batch_invariant(1 << 20, 16).unwrap();
        assert_eq!(algorithm.workspace, m, "what the check says");
        let log = fake.log();
        // CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3, CUBLASLT_REDUCTION_SCHEME_NONE = 0.
        assert!(log.contains("preference 3=0\n"), "{log}");
        let layouts = |m: usize, batch: [&str; 3]| {
            let [a, b, c] = batch;
            format!(
                "A type=2 rows=40 cols=24 ld=40{a}\n\
                 B type=2 rows=24 cols={m} ld=24{b}\n\
                 C type=2 rows=40 cols={m} ld=40{c}\n"
            )
        };
        let asked = layouts(256, [""; 3]);
        assert!(
            log.contains(&format!("heuristic epilogue=4 bias=0x10\n{asked}")),
            "{log}"
        );
        let strides = [0, 24 * m, 40 * m].map(|stride| match count {
            1 => String::new(),
            _ => format!(" batch={count} by {stride}"),
        });
        let checked = layouts(m, strides.each_ref().map(String::as_str));
        let check = format!("check epilogue=4 bias=0x10\ncheck algorithm=40\n{checked}");
        assert!(log.contains(&check), "{log}");
    }
}

#[test]
fn what_would_make_the_algorithm_depend_on_m_is_refused() {
    let fake = Fake::new("libfake_variant.so");
    let problem = GemmProblem::new(8, 40, 24, DType::F16).with_batch_invariance();
    let asked = |problem: &GemmProblem, alignment| {
        let matmul = Matmul::new(&fake.handle, problem).unwrap();
        matmul.batch_invariant(1 << 20, alignment).unwrap_err()
    };
    let transposed = problem.with_layouts(Layout::Transposed, Layout::RowMajor);
    let error = asked(&transposed, 16).to_string();
    assert!(error.contains("A must be row-major"), "{error}");
    let error = asked(&problem, 4).to_string();
    assert!(error.contains("strides of a batch"), "{error}");
    // CUBLAS_STATUS_INVALID_VALUE
    fake.fail("cublasLtMatmulAlgoCheck", 7);
    let error = asked(&problem, 16);
    assert!(matches!(error, Error::NoAlgorithm { .. }), "{error}");
}

#[test]
fn bad_statuses_are_named_and_nothing_leaks() {
    let fake = Fake::new("libfake_failures.so");
    let problem = GemmProblem::new(8, 8, 8, DType::F16);
    for (function, status, name) in [
        (
            "cublasLtMatrixLayoutCreate",
            14,
            "CUBLAS_STATUS_INTERNAL_ERROR",
        ),
        (
            "cublasLtMatmulDescSetAttribute",
            7,
            "CUBLAS_STATUS_INVALID_VALUE",
        ),
        (
            "cublasLtMatmulAlgoGetHeuristic",
            14,
            "CUBLAS_STATUS_INTERNAL_ERROR",
        ),
        ("cublasLtMatmul", 999, "an unknown status"),
    ] {
        fake.clear();
        fake.fail(function, status);
        let error = Matmul::new(&fake.handle, &problem)
            .and_then(|matmul| launch(&matmul))
            .unwrap_err();
        match error {
            Error::CublasLt {
                call,
                name: got,
                status: number,
            } => {
                assert_eq!((call, got.as_str(), number), (function, name, status));
            }
            other => panic!("{function}: {other}"),
        }
        assert!(
            fake.log().contains("destroy operation\n"),
            "{function}: {}",
            fake.log()
        );
    }
}

#[test]
fn no_algorithm_is_an_error_of_its_own() {
    let fake = Fake::new("libfake_no_algorithm.so");
    let matmul = Matmul::new(&fake.handle, &GemmProblem::new(8, 8, 8, DType::F16)).unwrap();
    assert_eq!(
        matmul.heuristics(8, 1024, 16).unwrap().len(),
        1,
        "4096 bytes exceed the limit"
    );
    // CUBLAS_STATUS_NOT_SUPPORTED
    fake.fail("cublasLtMatmulAlgoGetHeuristic", 15);
    let error = matmul.heuristics(8, 1 << 20, 16).unwrap_err();
    assert!(
        matches!(
            error,
            Error::NoAlgorithm {
                workspace: 1_048_576,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn a_handle_that_cannot_be_made_is_an_error() {
    let fake = Fake::new("libfake_handle.so");
    fake.fail("cublasLtCreate", 14);
    let error = Handle::new(fake.handle.library().clone()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("cublasLtCreate failed with CUBLAS_STATUS_INTERNAL_ERROR (14)"),
        "{error}"
    );
}

#[test]
fn a_missing_library_says_what_was_tried() {
    let error = Library::open("/nonexistent/libcublasLt.so.13").unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::LibraryNotFound { .. }));
    assert!(
        text.contains("/nonexistent/libcublasLt.so.13") && text.contains("WARPWEAVE_CUBLASLT"),
        "{text}"
    );
}

#[test]
fn a_library_without_a_symbol_is_refused() {
    let path = build("libfake_incomplete.so", &["-DWITHOUT_VERSION"]);
    let error = Library::open(&path).unwrap_err();
    assert!(
        matches!(&error, Error::MissingSymbol { symbol: "cublasLtGetVersion", library } if *library == path),
        "{error}"
    );
}

#[test]
fn scales_that_a_library_does_not_know_are_refused_with_its_version() {
    let path = build("libfake_old.so", &["-DVERSION=120804"]);
    let library = Library::open(&path).unwrap();
    let handle = Handle::new(Arc::new(library)).unwrap();
    let of = |scaling| GemmProblem::e4m3(16, 32, 48, scaling, DType::Bf16);
    for scaling in [Scaling::Row, Scaling::Block] {
        let error = Matmul::new(&handle, &of(scaling)).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        let text = error.to_string();
        for needle in [
            "CUDA 12.9",
            "libfake_old.so is of 12.8",
            "WARPWEAVE_CUBLASLT",
        ] {
            assert!(text.contains(needle), "{text}");
        }
    }
    Matmul::new(&handle, &of(Scaling::Tensor)).unwrap();
}

#[test]
fn extents_of_e4m3_that_it_has_no_algorithm_for_are_refused_with_what_to_do() {
    let fake = Fake::new("libfake_ragged.so");
    for ((m, n, k), scaling, needle) in [
        (
            (5, 32, 40),
            Scaling::Tensor,
            "k = 40 must be a multiple of 16",
        ),
        ((5, 24, 48), Scaling::Row, "n = 24 must be a multiple of 16"),
        ((5, 32, 48), Scaling::Block, "m = 5 must be a multiple of 4"),
    ] {
        let problem = GemmProblem::e4m3(m, n, k, scaling, DType::Bf16);
        let error = Matmul::new(&fake.handle, &problem).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(needle) && text.contains("pad it"), "{text}");
        assert_eq!(fake.log(), "", "cuBLASLt was not asked");
    }
    let any_m = GemmProblem::e4m3(5, 32, 48, Scaling::Tensor, DType::Bf16);
    for (lda, ldb, needle) in [
        (56, 48, "lda = 56 must be a multiple of 16"),
        (48, 50, "ldb = 50 must be a multiple of 16"),
    ] {
        let error = Matmul::new(&fake.handle, &GemmProblem { lda, ldb, ..any_m }).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(needle), "{error}");
    }
    assert_eq!(fake.log(), "", "cuBLASLt was not asked");
    Matmul::new(&fake.handle, &any_m).unwrap();
    let (lda, ldb) = (64, 80);
    Matmul::new(&fake.handle, &GemmProblem { lda, ldb, ..any_m }).unwrap();
}
