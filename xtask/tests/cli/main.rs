//! `xtask` as people and programs call it.

mod doctor;
mod launch;
mod workspace;

use std::process::Output;

/// How a command ended.
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self {
            code: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }
}

impl Ended {
    /// It succeeded, and said just this.
    fn says(&self, out: &str) {
        assert_eq!(
            (self.code, self.out.as_str()),
            (Some(0), out),
            "{}",
            self.err
        );
    }

    /// It ended with this status, and each of these is in what it said of errors.
    fn ends(&self, code: i32, told: &[&str]) {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        for words in told {
            assert!(self.err.contains(words), "no `{words}` in: {}", self.err);
        }
    }
}
