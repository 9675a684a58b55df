//! GEMMs through the host backend: in stream order, for every provider, from shared memory.

use half::f16;
use warpweave_gemm::host::reference;
use warpweave_gemm::{Error, Gemm, GemmOperands, GemmProblem, Provider};
use warpweave_symm_mem::{Backend, DType, DevicePtr, Host, Memory, Priority};

struct Operands {
    memory: <Host as Backend>::Memory,
    problem: GemmProblem,
    a: Vec<f16>,
    b: Vec<f16>,
}

impl Operands {
    fn new(host: &Host, stream: &<Host as Backend>::Stream, problem: GemmProblem) -> Self {
        let value = |i: usize| f16::from_f32((i * 7 % 11) as f32 - 5.0);
        let a: Vec<f16> = (0..problem.a_len()).map(value).collect();
        let b: Vec<f16> = (0..problem.b_len()).map(|i| value(i + 3)).collect();
        let memory = host
            .allocate(2 * (a.len() + b.len() + problem.c_len()))
            .unwrap();
        let this = Self {
            memory,
            problem,
            a,
            b,
        };
        let GemmOperands { a: pa, b: pb, .. } = this.addresses();
        // SAFETY: the ranges lie inside the allocation, which nothing else uses yet.
        unsafe {
            host.upload(stream, pa, bytes(&this.a)).unwrap();
            host.upload(stream, pb, bytes(&this.b)).unwrap();
        }
        this
    }

    fn addresses(&self) -> GemmOperands {
        let a = self.memory.address();
        let b = a.add(2 * self.a.len());
        GemmOperands::new(a, b, b.add(2 * self.b.len()))
    }

    fn check(&self, host: &Host, stream: &<Host as Backend>::Stream) {
        let mut c = vec![0u8; 2 * self.problem.c_len()];
        // SAFETY: C lies inside the allocation.
        unsafe { host.download(stream, self.addresses().c, &mut c).unwrap() };
        let exact = reference(&self.problem, &self.a, &self.b).unwrap();
        for (i, (got, want)) in c.chunks_exact(2).zip(exact).enumerate() {
            let got = f16::from_le_bytes([got[0], got[1]]);
            assert_eq!(f64::from(got), want, "element {i}");
        }
    }
}

fn bytes(values: &[f16]) -> &[u8] {
    // SAFETY: any bytes of an f16 slice may be read, and the length is in bytes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

#[test]
fn every_provider_is_served_by_the_host() {
    let host = Host::new();
    let stream = host.stream(Priority::Normal).unwrap();
    let gemm = Gemm::new(&host).unwrap();
    for provider in [
        Provider::CublasLt,
        Provider::Cutlass,
        Provider::Sm90,
        Provider::Host,
    ] {
        let operands = Operands::new(&host, &stream, GemmProblem::new(33, 20, 29, DType::F16));
        let prepared = gemm.prepare(&operands.problem, provider).unwrap();
        // SAFETY: the operands outlive the download in `check`, which waits for the stream.
        unsafe {
            gemm.launch(&stream, &prepared, operands.addresses())
                .unwrap()
        };
        operands.check(&host, &stream);
    }
}

#[test]
fn a_captured_gemm_is_computed_at_each_launch() {
    let host = Host::new();
    let stream = host.stream(Priority::Normal).unwrap();
    let gemm = Gemm::new(&host).unwrap();
    let operands = Operands::new(&host, &stream, GemmProblem::new(9, 16, 8, DType::F16));
    let prepared = gemm.prepare(&operands.problem, Provider::Cutlass).unwrap();
    let graph = host
        .capture(&stream, || {
            // SAFETY: the operands outlive the graph's launches, which `check` waits for.
            unsafe { gemm.launch(&stream, &prepared, operands.addresses()) }
        })
        .unwrap();
    for _ in 0..2 {
        // SAFETY: C lies inside the allocation; what was captured lives until the stream is empty.
        unsafe {
            host.fill(&stream, operands.addresses().c, 0xff, 2 * 9 * 16)
                .unwrap();
            host.launch_graph(&graph, &stream).unwrap()
        };
        operands.check(&host, &stream);
    }
}

#[test]
fn bad_problems_and_addresses_are_refused_before_the_launch() {
    let host = Host::new();
    let stream = host.stream(Priority::Normal).unwrap();
    let gemm = Gemm::new(&host).unwrap();
    let problem = GemmProblem::new(4, 4, 0, DType::F16);
    assert!(matches!(
        gemm.prepare(&problem, Provider::Host),
        Err(Error::InvalidProblem { .. })
    ));
    let prepared = gemm
        .prepare(
            &GemmProblem {
                k: 4,
                lda: 4,
                ..problem
            },
            Provider::Host,
        )
        .unwrap();
    let odd = DevicePtr(0x1001);
    let operands = GemmOperands::new(odd, odd, odd);
    // SAFETY: the misaligned address is refused before anything is enqueued.
    let error = unsafe { gemm.launch(&stream, &prepared, operands) }.unwrap_err();
    assert!(
        matches!(error, Error::Operand { operand: "A", .. }),
        "{error}"
    );
    let biased = GemmProblem::new(4, 4, 4, DType::F16).with_bias();
    let prepared = gemm.prepare(&biased, Provider::Host).unwrap();
    let even = DevicePtr(0x1000);
    for bias in [DevicePtr::NULL, odd] {
        let operands = GemmOperands::new(even, even, even).with_bias(bias);
        // SAFETY: the missing or misaligned bias is refused before anything is enqueued.
        let error = unsafe { gemm.launch(&stream, &prepared, operands) }.unwrap_err();
        assert!(error.to_string().contains("operand bias"), "{error}");
    }
}
