//! The compiler's command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::architecture::{Architecture, Kind};

/// The output of a compile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Output {
    Cubin,
    Ptx,
    Object,
}

/// The options that determine the code, in a fixed order: they are part of the cache key.
pub(crate) fn options(
    output: Output,
    architecture: &Architecture,
    include: &[PathBuf],
    defines: &[(String, Option<String>)],
    extra: &[String],
) -> Vec<OsString> {
    let mut options: Vec<OsString> = [
        "-O3",
        "-std=c++17",
        "--expt-relaxed-constexpr",
        "-lineinfo",
        "-DNDEBUG",
    ]
    .into_iter()
    .map(OsString::from)
    .collect();
    match output {
        Output::Cubin => options.push("-cubin".into()),
        Output::Ptx => options.push("-ptx".into()),
        Output::Object => {
            options.push("-c".into());
            options.extend(["-Xcompiler", "-fPIC"].map(OsString::from));
        }
    }
    options.push(match architecture.kind() {
        Kind::Real => architecture.machine_code().into(),
        Kind::Virtual => format!("-arch={architecture}").into(),
    });
    if output != Output::Ptx {
        options.extend(["-Xptxas", "-v"].map(OsString::from));
    }
    for folder in include {
        options.push("-I".into());
        options.push(folder.into());
    }
    for (name, value) in defines {
        options.push(match value {
            Some(value) => format!("-D{name}={value}").into(),
            None => format!("-D{name}").into(),
        });
    }
    options.extend(extra.iter().map(OsString::from));
    options
}

/// The file names, which are not part of the cache key.
pub(crate) fn files(source: &Path, result: &Path, depfile: &Path) -> Vec<OsString> {
    vec![
        "-MD".into(),
        "-MF".into(),
        depfile.into(),
        "-o".into(),
        result.into(),
        source.into(),
    ]
}

/// Assembles `ptx` to machine code for the device of its virtual architecture.
pub(crate) fn assemble(architecture: &Architecture, ptx: &Path, result: &Path) -> Vec<OsString> {
    vec![
        "-cubin".into(),
        architecture.machine_code().into(),
        "-Xptxas".into(),
        "-v".into(),
        "-o".into(),
        result.into(),
        ptx.into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(output: Output, architecture: &str) -> String {
        let architecture = Architecture::parse(architecture).unwrap();
        let defines = [
            ("A".to_owned(), None),
            ("B".to_owned(), Some("2".to_owned())),
        ];
        let options = options(
            output,
            &architecture,
            &["inc".into()],
            &defines,
            &["-x".to_owned()],
        );
        let words: Vec<_> = options.iter().map(|o| o.to_str().unwrap()).collect();
        words.join(" ")
    }

    #[test]
    fn machine_code_and_ptx_name_their_architecture() {
        let cubin = text(Output::Cubin, "sm_90a");
        assert!(
            cubin.contains(
                "-cubin -gencode=arch=compute_90a,code=sm_90a -Xptxas -v -I inc -DA -DB=2 -x"
            ),
            "{cubin}"
        );
        let ptx = text(Output::Ptx, "compute_80");
        assert!(ptx.contains("-ptx -arch=compute_80 -I inc"), "{ptx}");
    }

    #[test]
    fn assertions_are_always_off() {
        for output in [Output::Cubin, Output::Ptx, Output::Object] {
            assert!(text(output, "sm_90a").contains("-DNDEBUG"));
        }
    }
}
