//! What ptxas says about the code it made.

/// An advisory after which a kernel is not the kernel that was written.
struct Fatal {
    code: &'static str,
    meaning: &'static str,
}

const FATAL: [Fatal; 2] = [
    Fatal {
        code: "C7510",
        meaning: "wgmma is serialised; usually NDEBUG is missing, or a function call or a register copy \
                  stands between the first wgmma and its wait",
    },
    Fatal {
        code: "C7508",
        meaning: "setmaxnreg is ignored; usually the kernel lacks __launch_bounds__",
    },
];

/// An advisory that fails the build.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Degraded {
    pub code: &'static str,
    pub meaning: &'static str,
    pub lines: String,
}

/// The first fatal advisory in a compiler's output.
pub(crate) fn degraded(output: &str) -> Option<Degraded> {
    FATAL.iter().find_map(|fatal| {
        let lines: Vec<&str> = output.lines().filter(|line| line.contains(fatal.code)).collect();
        (!lines.is_empty()).then(|| Degraded {
            code: fatal.code,
            meaning: fatal.meaning,
            lines: lines.join("\n"),
        })
    })
}

/// A function whose registers did not suffice.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Spill {
    pub function: String,
    /// Bytes a thread.
    pub stores: u64,
    /// Bytes a thread.
    pub loads: u64,
}

/// The functions that spill, out of what `ptxas -v` prints.
pub(crate) fn spills(output: &str) -> Vec<Spill> {
    let mut found = Vec::new();
    let mut function = "";
    for line in output.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            function = rest.split('\'').next().unwrap_or_default();
        } else if let Some((_, name)) = line.split_once("Function properties for ") {
            function = name.trim();
        } else if line.contains("bytes spill stores") {
            let (stores, loads) = (before(line, " bytes spill stores"), before(line, " bytes spill loads"));
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

fn before(line: &str, words: &str) -> u64 {
    line.split_once(words)
        .and_then(|(head, _)| head.rsplit([' ', ',', '\t']).next())
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

/// The lines a person should see of a successful compile: warnings, not statistics.
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
    fn lost_performance_is_found() {
        for code in ["C7510", "C7508"] {
            let line = format!("ptxas info    : ({code}) Potential Performance Loss: in function 'f'");
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
