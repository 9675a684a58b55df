#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| warpweave_comm::fuzzing::places(data));
