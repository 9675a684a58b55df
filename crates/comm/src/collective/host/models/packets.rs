//! Packets: calls back to back, of every kernel.

use half::f16;

use super::{Memory, Rank, explore};
use crate::collective::host::group::Member;
use crate::collective::host::packet::{Areas, Payload, Sections, packets_of};
use crate::collective::host::packets::{Operands, collective};
use crate::collective::launch::{PAYLOAD, PacketKernel};

/// Calls of `kernel` back to back with nothing between them, each with other values; the results are
/// compared.
fn back_to_back(kernel: PacketKernel, bytes: usize, place: &Rank, first: u32, calls: u32) {
    let (rank, world) = (place.rank(), place.world());
    let count = bytes / 2;
    let of = |rank: usize, call: u32, index: usize| (rank + 3 * call as usize + index) as f32;
    let half = |value: f32| f16::from_f32(value).to_bits();
    for call in 1..=calls {
        let epoch = first.wrapping_add(call);
        let given = |rank: usize| (0..world * count).map(move |i| half(of(rank, call, i)));
        let input: Vec<u16> = given(rank).collect();
        let mut output = vec![0u16; world * count];
        let operands = Operands {
            input: input.as_ptr().cast(),
            output: output.as_mut_ptr().cast(),
            bytes,
            total: bytes,
            root: call as usize % world,
        };
        // SAFETY: both operands hold a chunk for each rank, which is as much as any kernel touches.
        unsafe { collective::<f16, _>(kernel, &Sections::new(place, epoch), &operands) };
        let chunk = |owner: usize, chunk: usize| given(owner).skip(chunk * count).take(count);
        let wanted: Vec<u16> = match kernel {
            PacketKernel::AllGather => (0..world).flat_map(|rank| chunk(rank, 0)).collect(),
            PacketKernel::AllToAll => (0..world).flat_map(|peer| chunk(peer, rank)).collect(),
            PacketKernel::Broadcast => chunk(operands.root, 0).collect(),
            PacketKernel::ReduceScatter => reduced(world, rank * count, count, call, of),
            _ => reduced(world, 0, count, call, of),
        };
        assert_eq!(output[..wanted.len()], wanted, "packets of another call");
    }
}

fn reduced(
    world: usize,
    start: usize,
    count: usize,
    call: u32,
    of: impl Fn(usize, u32, usize) -> f32,
) -> Vec<u16> {
    (start..start + count)
        .map(|i| {
            let sum = (0..world).map(|rank| of(rank, call, i)).sum();
            f16::from_f32(sum).to_bits()
        })
        .collect()
}

#[test]
fn loom_packets_of_calls_back_to_back_stay_apart() {
    for kernel in [PacketKernel::AllGather, PacketKernel::ReduceScatter] {
        explore(
            2,
            || Memory::new(2, 1, 2, 0),
            move |place| back_to_back(kernel, 6, place, 0, 4),
        );
    }
}

#[test]
fn loom_a_broadcast_waits_for_all() {
    explore(
        2,
        || Memory::new(2, 2, 2, 0),
        |place| back_to_back(PacketKernel::Broadcast, 16, place, 0, 3),
    );
}

#[test]
fn loom_flags_of_packets_wrap_around() {
    for first in [(1 << 31) - 2, u32::MAX - 1] {
        explore(
            2,
            || Memory::new(2, 1, 2, 0),
            move |place| back_to_back(PacketKernel::AllReduce, 2, place, first, 3),
        );
    }
}

#[test]
#[should_panic(expected = "packet")]
fn loom_with_one_section_a_packet_is_overwritten() {
    explore(
        2,
        || Memory::new(2, 1, 1, 0),
        |place| back_to_back(PacketKernel::AllGather, 6, place, 0, 2),
    );
}

/// A rank that does not wait for its peer runs ahead of it, and then two sections are not enough.
#[test]
#[should_panic(expected = "packet")]
fn loom_without_an_answer_a_packet_is_overwritten() {
    explore(
        2,
        || Memory::new(2, 1, 2, 0),
        |place| {
            for call in 1..=3 {
                let sections = Sections::new(place, call);
                let data: Payload = [call; PAYLOAD / 4];
                match place.rank() {
                    0 => sections.send(1, 0, &data),
                    _ => assert_eq!(sections.receive(0, 0), Some(data), "a torn packet"),
                }
            }
        },
    );
}

#[test]
fn loom_scrubbing_spares_packets_on_their_way() {
    assert_eq!(packets_of(2 * PAYLOAD), 2);
    explore(
        1,
        || Memory::new(2, 3, 2, 0),
        |place| {
            // Calls of one packet scrub what calls of two use.
            back_to_back(PacketKernel::AllGather, 2, place, 0, 1);
            back_to_back(PacketKernel::AllGather, 2 * PAYLOAD, place, 1, 1);
            back_to_back(PacketKernel::AllGather, 2, place, 2, 1);
            back_to_back(PacketKernel::AllGather, 2 * PAYLOAD, place, 3, 1);
        },
    );
}
