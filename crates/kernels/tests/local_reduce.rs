//! Local reductions, on the host and on a GPU, compared with sums in f64.

use proptest::prelude::*;
use warpweave_kernels::{Error, KernelBackend, LocalReduce, MAX_PARTIALS, Strided};
use warpweave_symm_mem::host::encode;
use warpweave_symm_mem::{Backend, Cuda, DType, DevicePtr, Host, Memory};

/// Memory repeats after this many elements: a prime, so that boxes begin differently.
const PERIOD: usize = 65_537;

/// A local reduction of boxes that lie one after the other in one allocation, the destination last.
#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    rows: usize,
    cols: usize,
    /// For each partial and the destination: elements before the box, and elements after each row.
    boxes: Vec<(usize, usize)>,
    /// The index of the partial that the result replaces, if any.
    in_place: Option<usize>,
    /// The index of the partial whose first row is added to every row, if any: not that one.
    repeated: Option<usize>,
    seed: u64,
}

impl Case {
    /// Elements from a row of a box to the next.
    fn stride(&self, of: usize) -> usize {
        match self.repeated == Some(of) && of != self.written() {
            true => 0,
            false => self.cols + self.boxes[of].1,
        }
    }

    fn partials(&self) -> usize {
        self.boxes.len() - 1
    }

    /// Elements before each box begins.
    fn starts(&self) -> Vec<usize> {
        let mut at = 0;
        let start = |&(before, gap): &(usize, usize)| {
            let start = at + before;
            at = (start + self.rows * (self.cols + gap)).next_multiple_of(16);
            start
        };
        self.boxes.iter().map(start).collect()
    }

    fn elements(&self) -> usize {
        let last = self.starts()[self.partials()];
        last + self.rows * (self.cols + self.boxes[self.partials()].1)
    }

    /// The repeating content of memory before the launch: numbers with few bits and very different
    /// magnitudes.
    fn pattern(&self) -> Vec<f32> {
        let mut state = self.seed;
        let mut value = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let integer = ((state >> 33) % 255) as f32 - 127.0;
            integer * [1.0, 0.0625, 16.0][(state >> 50) as usize % 3]
        };
        (0..PERIOD).map(|_| value()).collect()
    }

    /// Memory before the launch.
    fn before(&self) -> Vec<u8> {
        let pattern = encode(self.dtype, &self.pattern());
        let len = self.elements() * self.dtype.size();
        let mut memory = pattern.repeat(len.div_ceil(pattern.len()));
        memory.truncate(len);
        memory
    }

    /// The index of the box that is written.
    fn written(&self) -> usize {
        self.in_place.unwrap_or(self.partials())
    }

    /// Memory after the launch. Partial sums of these numbers are exact in f32, so one rounding of the f64
    /// sum gives the result.
    fn wanted(&self) -> Vec<u8> {
        let (pattern, size) = (self.pattern(), self.dtype.size());
        let mut after = self.before();
        let starts = self.starts();
        let row_of = |of: usize, row| starts[of] + row * self.stride(of);
        for row in 0..self.rows {
            let to = row_of(self.written(), row) * size;
            let mut totals = vec![0f64; self.cols];
            for partial in 0..self.partials() {
                let from = pattern.iter().cycle().skip(row_of(partial, row) % PERIOD);
                for (total, &value) in totals.iter_mut().zip(from) {
                    *total += f64::from(value);
                }
            }
            let sums: Vec<f32> = totals.into_iter().map(|total| total as f32).collect();
            after[to..][..self.cols * size].copy_from_slice(&encode(self.dtype, &sums));
        }
        after
    }

    fn launch(&self, memory: DevicePtr) -> LocalReduce {
        let size = self.dtype.size();
        let boxes: Vec<Strided> = self
            .starts()
            .iter()
            .enumerate()
            .map(|(of, start)| Strided {
                address: memory.add(start * size),
                row_stride: self.stride(of),
            })
            .collect();
        let (dst, shape) = (boxes[self.written()], (self.rows, self.cols));
        LocalReduce::new(0, &boxes[..self.partials()], dst, shape, self.dtype).unwrap()
    }

    fn is_right_on<B: KernelBackend>(&self, device: &B) {
        let stream = device.stream(Default::default()).unwrap();
        let mut got = self.before();
        let memory = device.allocate(got.len()).unwrap();
        // SAFETY: all boxes lie in the memory without overlap, and it outlives the download.
        unsafe {
            device.upload(&stream, memory.address(), &got).unwrap();
            device
                .local_reduce(&stream, &self.launch(memory.address()))
                .unwrap();
            device
                .download(&stream, memory.address(), &mut got)
                .unwrap();
        }
        device.synchronize(&stream).unwrap();
        let size = self.dtype.size();
        let wanted = self.wanted();
        let wrong = got
            .chunks(size)
            .zip(wanted.chunks(size))
            .position(|(a, b)| a != b);
        assert_eq!(wrong, None, "{self:?}");
    }
}

fn case() -> impl Strategy<Value = Case> {
    let dtype = prop_oneof![Just(DType::F32), Just(DType::F16), Just(DType::Bf16)];
    // Whole vectors half of the time.
    let length = |most: usize| prop_oneof![0..=most, (0..=most / 16).prop_map(|n| 16 * n)];
    let boxes = prop::collection::vec(
        (prop_oneof![Just(0), 0usize..16], length(48)),
        2..=MAX_PARTIALS + 1,
    );
    (
        dtype,
        0usize..7,
        length(1100),
        boxes,
        any::<u64>(),
        any::<[Option<prop::sample::Index>; 2]>(),
    )
        .prop_map(|(dtype, rows, cols, boxes, seed, [index, repeated])| Case {
            dtype,
            rows,
            cols,
            in_place: index.map(|index| index.index(boxes.len() - 1)),
            repeated: repeated.map(|index| index.index(boxes.len() - 1)),
            boxes,
            seed,
        })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn the_host_adds_boxes_of_any_shape(case in case()) {
        case.is_right_on(&Host::new());
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_gpu_adds_boxes_of_any_shape() {
    let device = Cuda::new(0).unwrap();
    proptest!(|(case in case())| case.is_right_on(&device));
    // More than a grid takes at a time, in rows of vectors and in rows of elements with gaps.
    for partials in [1, 2, 3, MAX_PARTIALS] {
        for (rows, cols, gap) in [(24, 1 << 20, 0), (70, 1 << 13, 8), (70, (1 << 13) + 1, 3)] {
            let case = Case {
                dtype: DType::Bf16,
                rows,
                cols,
                boxes: vec![(0, gap); partials + 1],
                in_place: None,
                repeated: (partials > 1).then_some(partials - 1),
                seed: partials as u64,
            };
            case.is_right_on(&device);
        }
    }
}

#[test]
fn partials_are_added_in_order_and_rounded_once() {
    let device = Host::new();
    let stream = device.stream(Default::default()).unwrap();
    let memory = device.allocate(12).unwrap();
    let tiny = f32::EPSILON / 2.0;
    for (values, sum) in [
        ([1.0, tiny, tiny], 1.0),
        ([tiny, tiny, 1.0], 1.0 + f32::EPSILON),
    ] {
        let boxes = [0, 4, 8].map(|at| Strided {
            address: memory.address().add(at),
            row_stride: 1,
        });
        let launch = LocalReduce::new(0, &boxes, boxes[2], (1, 1), DType::F32).unwrap();
        let mut got = [0; 4];
        // SAFETY: three elements in twelve bytes.
        unsafe {
            device
                .upload(&stream, memory.address(), &encode(DType::F32, &values))
                .unwrap();
            device.local_reduce(&stream, &launch).unwrap();
            device
                .download(&stream, boxes[2].address, &mut got)
                .unwrap();
        }
        assert_eq!(f32::from_ne_bytes(got), sum);
    }
}

#[test]
fn inconsistent_descriptors_are_refused() {
    let device = Host::new();
    let stream = device.stream(Default::default()).unwrap();
    let good = Strided {
        address: DevicePtr(64),
        row_stride: 4,
    };
    let launch = |partial, dst, shape| {
        let launch = LocalReduce::new(3, &[partial], dst, shape, DType::F32)?;
        // SAFETY: a refused launch accesses nothing.
        unsafe { device.local_reduce(&stream, &launch) }
    };
    let refused = |result| match result {
        Err(Error::InvalidLaunch { what, rank: 3, .. }) => what,
        other => panic!("{other:?}"),
    };
    let odd = Strided {
        address: DevicePtr(66),
        ..good
    };
    assert_eq!(refused(launch(odd, good, (1, 1))), "partials");
    assert_eq!(refused(launch(good, odd, (1, 1))), "dst");
    assert_eq!(refused(launch(good, good, (2, 5))), "partials");
    let repeated = Strided {
        row_stride: 0,
        ..good
    };
    assert_eq!(refused(launch(good, repeated, (2, 4))), "dst");
    assert_eq!(refused(launch(good, good, (usize::MAX, 2))), "size");
    for count in [0, MAX_PARTIALS + 1] {
        let many = vec![good; count];
        let refusal = LocalReduce::new(3, &many, good, (1, 1), DType::F32).map(drop);
        assert_eq!(refused(refusal), "partials");
    }
}
