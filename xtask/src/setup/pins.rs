//! The wheels of the toolchain: names, versions and hashes, and nothing about where they come from.

use warpweave_nvcc::layout;

use super::OWN_TOOLCHAIN;
use crate::error::{Error, Result};

/// A wheel with the SHA-256 of each build of it.
#[derive(Debug)]
pub struct Wheel {
    pub name: &'static str,
    pub version: &'static str,
    /// Size of the x86-64 build in bytes; the others differ by little.
    pub bytes: u64,
    x86_64: &'static str,
    aarch64: &'static str,
}

impl Wheel {
    /// The hash of the build for `architecture`, as [`std::env::consts::ARCH`] names it.
    fn sha256(&self, architecture: &str) -> Result<&'static str> {
        match architecture {
            "x86_64" => Ok(self.x86_64),
            "aarch64" => Ok(self.aarch64),
            _ => {
                let why = format!("there are no pinned wheels for {architecture}{OWN_TOOLCHAIN}");
                Err(Error::Failed(why))
            }
        }
    }
}

/// A folder of the toolchain, and how to make it from wheels.
#[derive(Debug)]
pub struct Component {
    pub name: &'static str,
    pub wheels: &'static [Wheel],
    /// Bytes that the wheels take when they are unpacked.
    pub unpacked: u64,
    /// Folders and files of the wheels, and where they go.
    pub moves: &'static [(&'static str, &'static str)],
    /// Symbolic links and what they point to.
    pub links: &'static [(&'static str, &'static str)],
    /// Files without which the component is of no use.
    pub required: &'static [&'static str],
}

/// The compiler of CUDA 13.0 with its headers and the static run-time library.
#[rustfmt::skip]
pub const CUDA: Component = Component {
    name: layout::CUDA,
    wheels: &[
        Wheel { name: "nvidia-cuda-nvcc", version: "13.0.88", bytes: 37_384_532,
                x86_64: "56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03",
                aarch64: "c7ff28f86a24effdc6c034fa15230c549a273e4771b10a7fec14996f8cf3307f" },
        Wheel { name: "nvidia-nvvm", version: "13.0.88", bytes: 61_601_415,
                x86_64: "c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0",
                aarch64: "c4376a291d72d22a315d9d2f69bdae8f8cd83a627f75bad395cee49a0fe65dc1" },
        Wheel { name: "nvidia-cuda-crt", version: "13.0.88", bytes: 134_086,
                x86_64: "2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4",
                aarch64: "ee2ea2a97073e02ee62bb27841f437332be2c248e3eac013df07997ada39c003" },
        Wheel { name: "nvidia-cuda-cccl", version: "13.0.85", bytes: 3_120_526,
                x86_64: "e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649",
                aarch64: "6f0203e29fed809ee2b7fe9b1344df66ecab990c37d6a2e0e189b26d6c97ed7c" },
        Wheel { name: "nvidia-cuda-runtime", version: "13.0.96", bytes: 2_243_632,
                x86_64: "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
                aarch64: "ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55" },
    ],
    unpacked: 300_000_000,
    moves: &[("nvidia/cu13", "")],
    // nvcc looks for its libraries in lib64; the wheels have them in lib.
    links: &[("lib64", "lib")],
    required: &[
        "bin/nvcc",
        "bin/ptxas",
        "nvvm/bin/cicc",
        "nvvm/libdevice/libdevice.10.bc",
        "include/cuda_runtime.h",
        "include/crt/host_config.h",
        "include/cccl/cuda/std/cstdint",
        "lib64/libcudart_static.a",
    ],
};

/// The headers of CUTLASS 4.2 and of its utilities.
#[rustfmt::skip]
pub const CUTLASS: Component = Component {
    name: layout::CUTLASS,
    wheels: &[Wheel { name: "nvidia-cutlass", version: "4.2.0.0", bytes: 6_440_597,
                x86_64: "f9599ada45c7bcb6bf53f7d3f0a7d154183e53451c01bfa59eecd37dd4a693f6",
                aarch64: "f9599ada45c7bcb6bf53f7d3f0a7d154183e53451c01bfa59eecd37dd4a693f6" }],
    unpacked: 60_000_000,
    moves: &[
        ("cutlass_library/source/include", "include"),
        ("cutlass_library/source/tools/util/include", "tools/util/include"),
    ],
    links: &[],
    required: &[
        "include/cutlass/cutlass.h",
        "include/cute/tensor.hpp",
        "tools/util/include/cutlass/util/packed_stride.hpp",
    ],
};

#[rustfmt::skip]
const CUBLAS: Wheel = Wheel { name: "nvidia-cublas", version: "13.1.0.3", bytes: 423_133_236,
                x86_64: "ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171",
                aarch64: "c86fc7f7ae36d7528288c5d88098edcb7b02c633d262e7ddbb86b0ad91be5df2" };

/// The libraries that programs open at run time. The versions are those that PyTorch ships for CUDA 13.0, so
/// that a comparison with PyTorch compares schedules.
#[rustfmt::skip]
pub const RUNTIME: Component = Component {
    name: layout::RUNTIME,
    wheels: &[
        Wheel { name: "nvidia-nccl-cu13", version: "2.28.9", bytes: 196_493_177,
                x86_64: "e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42",
                aarch64: "01c873ba1626b54caa12272ed228dc5b2781545e0ae8ba3f432a8ef1c6d78643" },
        CUBLAS,
    ],
    unpacked: 820_000_000,
    // The rest of cuBLAS is not used.
    moves: &[
        ("nvidia/nccl/lib/libnccl.so.2", "lib/libnccl.so.2"),
        ("nvidia/cu13/lib/libcublasLt.so.13", "lib/libcublasLt.so.13"),
    ],
    // Programs built against the development packages open the names without a version.
    links: &[
        ("lib/libnccl.so", "libnccl.so.2"),
        ("lib/libcublasLt.so", "libcublasLt.so.13"),
    ],
    required: &["lib/libnccl.so.2", "lib/libcublasLt.so.13"],
};

/// The disassemblers. There are no wheels of them for CUDA 13.0; later ones read its code.
#[rustfmt::skip]
pub const INSPECT: Component = Component {
    name: layout::INSPECT,
    wheels: &[
        Wheel { name: "nvidia-cuda-cuobjdump", version: "13.2.51", bytes: 343_823,
                x86_64: "95c69d3ddf0c2c1f535ec44c3433a66aeee19f588d9d22f73356e20b25f12b50",
                aarch64: "f2f3bc433a91f4ff910841f2de8bc9e7ce92556602d6e363054fe2bb62a587c4" },
        Wheel { name: "nvidia-cuda-nvdisasm", version: "13.2.51", bytes: 4_418_606,
                x86_64: "5a7acf77c55d6d2911ed6155d4d5bc156ffadf9df7a68a89b0c1155f4b13688c",
                aarch64: "483c8f652c1ca006135584b4faf7ea1d2bafe4c40ec1c9ef57a04c6acfbdd57f" },
    ],
    unpacked: 7_000_000,
    moves: &[("nvidia/cu13/bin", "bin")],
    links: &[],
    required: &["bin/cuobjdump", "bin/nvdisasm"],
};

/// The libraries that candle links, for the check that a project with candle can be built. libcuda is no
/// wheel's.
#[rustfmt::skip]
pub const LINK: Component = Component {
    name: layout::LINK,
    wheels: &[
        CUBLAS,
        Wheel { name: "nvidia-curand", version: "10.4.0.35", bytes: 59_544_258,
                x86_64: "1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc",
                aarch64: "133df5a7509c3e292aaa2b477afd0194f06ce4ea24d714d616ff36439cee349a" },
        Wheel { name: "nvidia-cuda-nvrtc", version: "13.0.88", bytes: 90_215_200,
                x86_64: "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
                aarch64: "d27f20a0ca67a4bb34268a5e951033496c5b74870b868bacd046b1b8e0c3267b" },
    ],
    unpacked: 900_000_000,
    moves: &[("nvidia/cu13/lib", "lib")],
    // The linker looks for names without a version.
    links: &[
        ("lib/libcublas.so", "libcublas.so.13"),
        ("lib/libcublasLt.so", "libcublasLt.so.13"),
        ("lib/libcurand.so", "libcurand.so.10"),
        ("lib/libnvrtc.so", "libnvrtc.so.13"),
        // In the folder of the compiler's component, next to this one.
        ("lib/libcudart.so", "../../cuda-13.0/lib/libcudart.so.13"),
    ],
    required: &[
        "lib/libcublas.so",
        "lib/libcublasLt.so",
        "lib/libcurand.so",
        "lib/libnvrtc.so",
    ],
};

impl Component {
    /// The requirements file that pip is given: every wheel by version and hash.
    ///
    /// It is also the component's stamp: a folder with this text was made with these pins.
    pub fn requirements(&self, architecture: &str) -> Result<String> {
        let line = |wheel: &Wheel| {
            let Wheel { name, version, .. } = wheel;
            let hash = wheel.sha256(architecture)?;
            Ok(format!("{name}=={version} --hash=sha256:{hash}\n"))
        };
        self.wheels.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    #[test]
    fn every_component_has_a_folder_and_every_wheel_a_hash_of_its_own() {
        let all = [&CUDA, &CUTLASS, &RUNTIME, &INSPECT, &LINK];
        let folders: HashSet<_> = all.iter().map(|component| component.name).collect();
        assert_eq!(folders.len(), all.len());
        for architecture in ["x86_64", "aarch64"] {
            let mut seen = HashMap::new();
            for wheel in all.iter().flat_map(|component| component.wheels) {
                let hash = wheel.sha256(architecture).unwrap();
                let is_hash = hash.len() == 64
                    && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
                // Two components may need the same wheel.
                let of = *seen.entry(hash).or_insert(wheel.name);
                assert!(is_hash && of == wheel.name, "{} {architecture}", wheel.name);
            }
        }
    }

    #[test]
    fn requirements_pin_version_and_hash() {
        let text = CUTLASS.requirements("aarch64").unwrap();
        let expected = "nvidia-cutlass==4.2.0.0 --hash=sha256:f9599ada";
        assert!(text.starts_with(expected), "{text}");
        let lines = CUDA.requirements("x86_64").unwrap().lines().count();
        assert_eq!(lines, CUDA.wheels.len());
        assert!(CUDA.requirements("riscv64").is_err());
    }
}
