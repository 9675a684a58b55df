//! Copies in one batch, on a GPU.

use warpweave_symm_mem::{Backend, Cuda, Memory, Priority};

const COPIES: usize = 7;
const BYTES: usize = 100_003;

#[test]
#[ignore = "needs a GPU"]
fn a_batch_copies_everything_captured_or_not() {
    let device = Cuda::new(0).unwrap();
    let stream = device.stream(Priority::Normal).unwrap();
    let from = device.allocate(COPIES * BYTES).unwrap();
    let to = device.allocate(COPIES * BYTES).unwrap();
    // Backwards, with one of no bytes.
    let copies: Vec<_> = (0..COPIES)
        .map(|i| {
            let dst = to.address().add((COPIES - 1 - i) * BYTES);
            (
                dst,
                from.address().add(i * BYTES),
                if i == 3 { 0 } else { BYTES - i },
            )
        })
        .collect();
    let run = |pass: u8, enqueue: &dyn Fn()| {
        let given: Vec<u8> = (0..COPIES * BYTES)
            .map(|i| (i % 251) as u8 ^ pass)
            .collect();
        let mut got = vec![0; COPIES * BYTES];
        // SAFETY: all ranges are of the two allocations above.
        unsafe {
            device.upload(&stream, from.address(), &given).unwrap();
            device
                .fill(&stream, to.address(), 0xee, COPIES * BYTES)
                .unwrap();
            enqueue();
            device.download(&stream, to.address(), &mut got).unwrap();
        }
        for i in 0..COPIES {
            let place = &got[(COPIES - 1 - i) * BYTES..][..BYTES];
            let bytes = copies[i].2;
            assert!(
                place[..bytes] == given[i * BYTES..][..bytes],
                "copy {i} of pass {pass}"
            );
            assert!(
                place[bytes..].iter().all(|byte| *byte == 0xee),
                "copy {i} goes too far"
            );
        }
    };
    // SAFETY: the ranges live until the stream has been synchronised, by the download, and do not overlap.
    let batch = || unsafe { device.copy_batch(&stream, &copies) };
    run(0, &|| batch().unwrap());
    run(1, &|| batch().unwrap());
    let graph = device.capture(&stream, batch).unwrap();
    for pass in 2..5 {
        // SAFETY: as above.
        run(pass, &|| unsafe {
            device.launch_graph(&graph, &stream).unwrap()
        });
    }
}
