//! A rank on another host, by ssh.
//!
//! The token comes by standard input, where no list of processes shows it. The rank dies with the launcher
//! there too: a second shell ends it once standard input closes.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};

use crate::error::Result;

/// Variables of the launcher that ranks elsewhere have too begin with one of these. Its token is not theirs.
const PASSED_ON: [&str; 6] = [
    "WARPWEAVE_",
    "NCCL_",
    "CUDA_",
    "RUST_",
    "NVSHMEM_",
    "TORCH_",
];

/// What runs `local`, with its variables, in the same folder of `host`. The first line of its standard input
/// is the job's token.
pub(super) fn command(host: &str, local: &Command) -> Result<Command> {
    let folder = std::env::current_dir()?;
    let mut script = OsString::from("cd ");
    script.push(quoted(folder.as_os_str()));
    script.push(" && IFS= read -r WARPWEAVE_JOB_TOKEN && export WARPWEAVE_JOB_TOKEN || exit 1\n");
    let own = std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        name != "WARPWEAVE_JOB_TOKEN" && PASSED_ON.iter().any(|prefix| name.starts_with(prefix))
    });
    let set = local.get_envs();
    let set = set.filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
    for (name, value) in own.chain(set) {
        script.push("export ");
        script.push(name);
        script.push("=");
        script.push(quoted(&value));
        script.push("\n");
    }
    script.push("exec 3<&0\n");
    for word in [local.get_program()].into_iter().chain(local.get_args()) {
        script.push(quoted(word));
        script.push(" ");
    }
    script.push(
        "</dev/null 3<&- & P=$!\n\
         { cat <&3; kill -TERM $P; sleep 3; kill -KILL $P; } >/dev/null 2>&1 & W=$!\n\
         exec 3<&-; wait $P; S=$?; kill $W 2>/dev/null; exit $S",
    );
    // The user's own shell there may be any.
    let mut line = OsString::from("exec /bin/sh -c ");
    line.push(quoted(&script));
    let mut ssh = Command::new("ssh");
    ssh.args(["-T", "-o", "BatchMode=yes", host]).arg(line);
    ssh.stdin(Stdio::piped());
    Ok(ssh)
}

/// One word of a shell.
fn quoted(word: &OsStr) -> OsString {
    let word = word.to_string_lossy().replace('\'', r"'\''");
    format!("'{word}'").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_a_shell_as_they_are() {
        for word in ["plain", "two words", "it's", "$HOME `id` \\ \"x\"", ""] {
            let mut line = OsString::from("printf %s ");
            line.push(quoted(word.as_ref()));
            let mut shell = Command::new("/bin/sh");
            let output = shell.arg("-c").arg(line).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), word);
        }
    }
}
