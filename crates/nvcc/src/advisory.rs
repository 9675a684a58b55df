//! Advisories of ptxas about the code that it generated.

/// An advisory that fails the build: the kernel is not the one that was written.
struct Fatal {
    /// Its number, if ptxas prints only that.
    code: &'static str,
    /// Its text: ptxas has a number for each cause of the same loss (C7510, C7511, …).
    text: &'static str,
    meaning: &'static str,
}

const FATAL: [Fatal; 2] = [
    Fatal {
        code: "C7510",
        text: "wgmma.mma_async instructions are serialized",
        meaning: "wgmma is serialised; usually NDEBUG is missing, or a function call or a use of the \
        accumulators \
                  stands between the first wgmma and its wait",
    },
    Fatal {
        code: "C7508",
        text: "'setmaxnreg' ignored",
        meaning: "setmaxnreg is ignored; usually the kernel lacks __launch_bounds__",
    },
];

/// An advisory that fails the build.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Degraded {
    pub code: String,
    pub meaning: &'static str,
    pub lines: String,
}

/// The first fatal advisory in a compiler's output.
pub(crate) fn degraded(output: &str) -> Option<Degraded> {
    FATAL.iter().find_map(|fatal| {
        let matches = |line: &&str| line.contains(fatal.code) || line.contains(fatal.text);
        let lines: Vec<&str> = output.lines().filter(matches).collect();
        let first = lines.first()?;
        Some(Degraded {
            code: number(first).unwrap_or(fatal.code).to_owned(),
            meaning: fatal.meaning,
            lines: lines.join("\n"),
        })
    })
}

/// The number that ptxas puts before an advisory: C7510 of `(C7510) Potential …`.
fn number(line: &str) -> Option<&str> {
    let (_, rest) = line.split_once("(C")?;
    let digits = rest.split_once(')')?.0;
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let start = line.find("(C")? + 1;
    is_number.then(|| &line[start..start + 1 + digits.len()])
}

/// A function that spills registers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Spill {
    pub function: String,
    /// Bytes per thread.
    pub stores: u64,
    /// Bytes per thread.
    pub loads: u64,
}

/// The functions that spill, from the output of `ptxas -v`.
pub(crate) fn spills(output: &str) -> Vec<Spill> {
    let mut found = Vec::new();
    let mut function = "";
    for line in output.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            function = rest.split('\'').next().unwrap_or_default();
        } else if let Some((_, name)) = line.split_once("Function properties for ") {
            function = name.trim();
        } else if line.contains("bytes spill stores") {
            let (stores, loads) = (
                before(line, " bytes spill stores"),
                before(line, " bytes spill loads"),
            );
            if stores + loads > 0 {
                found.push(Spill {
                    function: function.to_owned(),
                    stores,
                    loads,
                });
            }
        }
    }
    found
}

fn before(line: &str, text: &str) -> u64 {
    line.split_once(text)
        .and_then(|(head, _)| head.rsplit([' ', ',', '\t']).next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// The lines of a successful compile that a user should see: warnings, not statistics.
pub(crate) fn warnings(output: &str) -> impl Iterator<Item = &str> {
    output.lines().filter(|line| {
        let statistic = line.contains("bytes stack frame") || line.contains("ptxas info");
        (line.contains("warning") || line.contains("Potential Performance Loss")) && !statistic
            || line.contains("(C75")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: &str = "ptxas info    : 0 bytes gmem\n\
        ptxas info    : Compiling entry function '_Z1fPfi' for 'sm_90a'\n\
        ptxas info    : Function properties for _Z1fPfi\n    \
        0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
        ptxas info    : Used 8 registers, used 0 barriers\n";

    #[test]
    fn a_clean_compile_says_nothing() {
        assert_eq!(degraded(CLEAN), None);
        assert!(spills(CLEAN).is_empty());
        assert_eq!(warnings(CLEAN).count(), 0);
    }

    #[test]
    fn spills_name_their_function() {
        let text = CLEAN.replace(
            "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads",
            "96 bytes stack frame, 104 bytes spill stores, 12 bytes spill loads",
        );
        let expected = Spill {
            function: "_Z1fPfi".to_owned(),
            stores: 104,
            loads: 12,
        };
        assert_eq!(spills(&text), [expected]);
    }

    #[test]
    fn every_cause_of_serialised_wgmma_is_fatal() {
        let line = "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are \
        serialized \
            due to insufficient register resources for the wgmma pipeline in the function '_Z1kPfmm'";
        assert_eq!(degraded(line).unwrap().code, "C7511");
        let line = "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to \
        determine \
            register count at entry.";
        assert_eq!(degraded(line).unwrap().code, "C7508");
        let harmless =
            "ptxas info    : (C7519) warpgroup.arrive is injected in around line 76 by compiler";
        assert_eq!(degraded(harmless), None);
        assert_eq!(warnings(harmless).count(), 1, "not fatal, but to be seen");
    }

    #[test]
    fn lost_performance_is_found() {
        for code in ["C7510", "C7508"] {
            let line =
                format!("ptxas info    : ({code}) Potential Performance Loss: in function 'f'");
            let found = degraded(&format!("{CLEAN}{line}\n")).unwrap();
            assert_eq!(found.code, code);
            assert_eq!(found.lines, line);
        }
    }

    #[test]
    fn a_compiler_warning_is_shown() {
        let line = "cuda/x.cu(4): warning #177-D: variable \"i\" was declared but never referenced";
        let text = format!("{CLEAN}{line}\n");
        assert_eq!(warnings(&text).collect::<Vec<_>>(), [line]);
    }
}
