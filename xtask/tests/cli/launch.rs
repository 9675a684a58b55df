//! The launcher, with shells for ranks: how jobs end, and that nothing is left of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::Ended;

/// Far above what any of these jobs takes, far below what the ranks would sleep.
const SOON: Duration = Duration::from_secs(30);

// The bench cuts the cable too.
#[allow(dead_code)]
#[path = "../../../crates/bench/tests/cli/cable.rs"]
mod cable;

/// A job of shells. What a script starts leaves its process id in `$D/NAME.pid`, and is gone after the job.
struct Job {
    folder: TempDir,
    options: Vec<String>,
    env: Vec<(&'static str, String)>,
}

impl Job {
    fn new(ranks: usize, options: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path().join("logs");
        let own = format!("-n {ranks} --logs {} {options}", logs.display());
        let grace = if options.contains("--grace") {
            ""
        } else {
            "--grace 0.5"
        };
        let words = own.split_whitespace().chain(grace.split_whitespace());
        Self {
            options: words.map(str::to_owned).collect(),
            folder,
            env: Vec::new(),
        }
    }

    /// A launcher of `script` on every rank, with `$D` for the job's folder and `$WARPWEAVE_RANK` as `$R`.
    fn command(&self, script: &str) -> Command {
        let folder = self.folder.path().display();
        let script = format!("R=$WARPWEAVE_RANK; D='{folder}'\n{script}");
        let mut command = crate::xtask(&["launch"]);
        command
            .args(&self.options)
            .args(["--", "/bin/sh", "-c", &script])
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, script: &str) -> Ended {
        let began = Instant::now();
        let ended = Ended::of(self.command(script));
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        assert_gone(&self.pids());
        ended
    }

    /// Starts a job and waits until `$D` has as many process ids.
    fn start(&self, script: &str, processes: usize) -> (Child, Vec<u32>) {
        let launcher = self.command(script).spawn().unwrap();
        let all_started = || self.pids().len() == processes;
        wait_until("the ranks' process ids", all_started);
        let pids = self.pids();
        assert!(pids.iter().all(|&pid| !is_gone(pid)));
        (launcher, pids)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap()
    }

    fn log(&self, rank: usize) -> String {
        let jobs: Vec<_> = fs::read_dir(self.file("logs")).unwrap().flatten().collect();
        assert_eq!(jobs.len(), 1, "one folder for the one job");
        fs::read_to_string(jobs[0].path().join(format!("rank-{rank}.log"))).unwrap()
    }

    fn pids(&self) -> Vec<u32> {
        let files = fs::read_dir(self.folder.path()).unwrap().flatten();
        let files = files.filter(|file| file.path().extension().is_some_and(|end| end == "pid"));
        let whole = |text: String| text.strip_suffix('\n')?.parse().ok();
        files
            .filter_map(|file| whole(fs::read_to_string(file.path()).ok()?))
            .collect()
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < SOON, "no sign of {what}");
        sleep(Duration::from_millis(10));
    }
}

/// Whether the process has ended. A zombie has, if nobody reaps it.
fn is_gone(pid: u32) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    let has_ended = |stat: String| {
        stat.rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with(['Z', 'X']))
    };
    stat.map_or(true, has_ended)
}

fn assert_gone(pids: &[u32]) {
    let all_gone = || pids.iter().all(|&pid| is_gone(pid));
    wait_until("the end of the processes", all_gone);
}

fn signal(child: &Child, name: &str) {
    let kill = format!("kill -{name} {}", child.id());
    assert!(
        Command::new("/bin/sh")
            .args(["-c", &kill])
            .status()
            .unwrap()
            .success()
    );
}

fn wait_for(mut child: Child) -> Ended {
    wait_until("the launcher's end", || child.try_wait().unwrap().is_some());
    child.wait_with_output().unwrap().into()
}

#[test]
fn every_rank_learns_its_place() {
    let mut job = Job::new(3, "");
    let guards = [
        ("NCCL_NVLS_ENABLE", "0"),
        ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
        ("NVSHMEM_DISABLE_NVLS", "1"),
    ];
    job.env = guards.map(|(name, value)| (name, value.to_owned())).into();
    let ended = job.run(
        "echo $R of $WARPWEAVE_WORLD_SIZE here $WARPWEAVE_LOCAL_RANK
         echo $WARPWEAVE_STORE $WARPWEAVE_JOB_TOKEN
         echo guards $NCCL_NVLS_ENABLE $TORCH_SYMM_MEM_DISABLE_MULTICAST $NVSHMEM_DISABLE_NVLS",
    );
    ended.succeeded();
    let logs = [0, 1, 2].map(|rank| job.log(rank));
    let logs = logs.each_ref().map(|log| log.lines().collect::<Vec<_>>());
    for (rank, log) in logs.iter().enumerate() {
        assert_eq!(log[0], format!("{rank} of 3 here {rank}"));
        assert_eq!(log[1], logs[0][1], "one store and one token for all");
        assert_eq!(log[2], "guards 0 1 1");
    }
    let (store, token) = logs[0][1].split_once(' ').unwrap();
    assert!(
        store.starts_with("127.0.0.1:") && token.len() == 64,
        "{store} {token}"
    );
    // Rank 0's output passes through, and no other's.
    assert_eq!(ended.out, job.log(0));
}

/// An `ssh` that runs the command here, in the host's namespaces if it has some, and writes its arguments to
/// a file. The command is a child: as on another host, it outlives an `ssh` that is killed.
fn fake_ssh(job: &mut Job, hosts: Option<&cable::Hosts>) {
    let folder = job.folder.path().display().to_string();
    let on = |host| hosts.map_or(String::new(), |hosts| hosts.prefix(host).join(" "));
    let script = format!(
        "#!/bin/sh\nshift 3; host=$1; shift\nprintf '%s\\n' \"$host\" \"$@\" >> '{folder}/arguments'\n\
         case $host in one) {} /bin/sh -c \"$*\";; two) {} /bin/sh -c \"$*\";; *) exit 255;; esac\nexit $?\n",
        on(0),
        on(1),
    );
    let program = job.file("ssh");
    fs::write(&program, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&program, mode).unwrap();
    job.env = vec![(
        "PATH",
        format!("{folder}:{}", std::env::var("PATH").unwrap()),
    )];
}

#[test]
fn ranks_of_two_hosts_start_by_ssh_and_the_token_is_on_no_command_line() {
    let hosts = cable::Hosts::new();
    let mut job = Job::new(4, "--hosts one,two --port 4000");
    fake_ssh(&mut job, hosts.as_ref());
    // The launcher's own, as for another launcher, is not the job's, and no less secret.
    let own = "that of another job";
    job.env.push(("WARPWEAVE_JOB_TOKEN", own.into()));
    let ended = job.run(
        "readlink /proc/self/ns/net > $D/net.$R
         echo $WARPWEAVE_LOCAL_RANK of $WARPWEAVE_WORLD_SIZE at $WARPWEAVE_STORE > $D/place.$R
         echo $WARPWEAVE_JOB_TOKEN > $D/token.$R",
    );
    ended.succeeded();
    let token = job.read("token.0");
    assert_eq!(token.trim().len(), 64);
    let arguments = job.read("arguments");
    assert!(arguments.contains("WARPWEAVE_RANK"), "{arguments}");
    for secret in [token.trim(), own] {
        assert!(!arguments.contains(secret), "{arguments}");
    }
    for rank in 0..4 {
        assert_eq!(job.read(&format!("token.{rank}")), token);
        let place = format!("{} of 4 at one:4000\n", rank % 2);
        assert_eq!(job.read(&format!("place.{rank}")), place);
        if hosts.is_some() {
            let is_same = job.read(&format!("net.{rank}")) == job.read("net.0");
            assert_eq!(is_same, rank < 2, "rank {rank}");
        }
    }
}

#[test]
fn a_rank_on_another_host_ends_with_the_launcher() {
    let mut job = Job::new(2, "--hosts one,two");
    fake_ssh(&mut job, None);
    let (mut launcher, pids) = job.start("echo $$ >$D/$R.pid; sleep 1000", 2);
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    assert_gone(&pids);
}

#[test]
fn one_failing_rank_ends_the_job() {
    for (processes, ranks, options, code, messages, script) in [
        (
            3,
            3,
            "",
            7,
            // The end of its log is shown too.
            vec!["rank 1 of 3 exited with status 7", "out of ideas"],
            "echo $$ >$D/$R.pid; [ $R = 1 ] && { echo 'out of ideas' >&2; exit 7; }; exec sleep 600",
        ),
        (
            0,
            2,
            "",
            2,
            vec!["no such suite", "rank 0 of 2"],
            "[ $R = 0 ] && { echo 'no such suite' >&2; exit 2; }; exec sleep 600",
        ),
        (
            2,
            2,
            "",
            3,
            // SIGTERM is ignored.
            vec!["[1] are still running: SIGKILL"],
            "[ $R = 0 ] && exit 3
             trap '' TERM; echo $$ >$D/shell.pid; sleep 600 & echo $! >$D/sleep.pid; wait",
        ),
        (
            0,
            2,
            "--grace 20",
            128 + 11,
            // The rank that was lost is named, not the one that noticed.
            vec!["rank 1 of 2 was killed by SIGSEGV (signal 11)"],
            "[ $R = 0 ] && exit 76; sleep 0.5; kill -SEGV $$",
        ),
        (
            1,
            3,
            "",
            124,
            // Nor is it where the lost one is stopped and ends by SIGKILL only.
            vec![
                "[1] are still running: SIGKILL",
                "is 1",
                "rank 1 of 3 did not end within 500ms (--grace); its log is",
                "rank-1.log",
            ],
            "[ $R = 1 ] || exit 76; echo is $R; echo $$ >$D/1.pid; kill -STOP $$",
        ),
        (
            1,
            2,
            "--timeout 0.5",
            124,
            vec!["did not end within 500ms", "ranks [1]"],
            "[ $R = 0 ] && exit 0; echo $$ >$D/1.pid; exec sleep 600",
        ),
    ] {
        let job = Job::new(ranks, options);
        job.run(script).failed(code, &messages);
        assert_eq!(job.pids().len(), processes, "{script}");
    }
}

#[test]
fn a_rank_that_ends_in_the_grace_is_not_signalled() {
    let job = Job::new(2, "--grace 20");
    let ended = job.run(
        "[ $R = 0 ] && exit 3; trap 'touch $D/signalled' TERM; sleep 0.3; touch $D/done; exit 76",
    );
    ended.failed(3, &[]);
    assert!(job.file("done").exists() && !job.file("signalled").exists());
}

#[test]
fn what_every_rank_writes_of_a_lost_one_is_shown() {
    let job = Job::new(3, "--grace 20");
    let ended = job.run(
        "[ $R = 1 ] && { echo 'last line' >&2; kill -KILL $$; }
         sleep 0.3; echo \"error (rank $R): lost rank 1\" >&2; exit 76",
    );
    let in_order = [
        "last line",
        "error (rank 2): lost rank 1",
        "rank 1 of 3 was killed by SIGKILL",
    ];
    ended.failed(128 + 9, &in_order);
    assert!(
        in_order.map(|message| ended.err.rfind(message)).is_sorted(),
        "{}",
        ended.err
    );
    // Rank 0's errors were passed through.
    assert_eq!(
        ended.err.matches("error (rank 0): lost rank 1").count(),
        1,
        "{}",
        ended.err
    );
    assert_eq!(job.log(1), "last line\n");
}

#[test]
fn ranks_die_with_a_killed_launcher() {
    let job = Job::new(3, "");
    let script = "trap '' TERM HUP INT; echo $$ >$D/$R.pid; while :; do sleep 0.1; done";
    let (launcher, pids) = job.start(script, 3);
    signal(&launcher, "KILL");
    assert_gone(&pids);
    assert_eq!(wait_for(launcher).code, None);
}

#[test]
fn an_interrupt_reaches_the_ranks() {
    let job = Job::new(2, "--grace 20");
    let script =
        "trap 'touch $D/int-$R; exit 1' INT; echo $$ >$D/$R.pid; while :; do sleep 0.05; done";
    let (launcher, pids) = job.start(script, 2);
    signal(&launcher, "INT");
    wait_for(launcher).failed(130, &["interrupted by SIGINT"]);
    assert!(job.file("int-0").exists() && job.file("int-1").exists());
    assert_gone(&pids);
}

#[test]
fn a_second_interrupt_kills_at_once() {
    let job = Job::new(2, "--grace 600");
    let script =
        "trap 'touch $D/first-$R' INT TERM; echo $$ >$D/$R.pid; while :; do sleep 0.05; done";
    let (launcher, pids) = job.start(script, 2);
    signal(&launcher, "TERM");
    let both = || job.file("first-0").exists() && job.file("first-1").exists();
    wait_until("the first signal", both);
    assert!(pids.iter().all(|&pid| !is_gone(pid)));
    signal(&launcher, "TERM");
    wait_for(launcher).failed(143, &[]);
    assert_gone(&pids);
}

#[test]
fn what_a_rank_leaves_dies_with_it() {
    let job = Job::new(2, "");
    job.run("sleep 600 & echo $! >$D/$R.pid; echo done")
        .printed("done\n");
    assert_eq!(job.pids().len(), 2);
}

#[test]
fn output_that_cannot_be_written_is_an_error_and_a_log_a_warning() {
    let full = || fs::File::options().write(true).open("/dev/full").unwrap();
    let run = |script: &str| {
        let job = Job::new(1, "");
        let mut command = job.command(script);
        command.stdout(full());
        let ended: Ended = command.spawn().unwrap().wait_with_output().unwrap().into();
        (job, ended)
    };
    // The rank is not blocked, and its log is whole.
    let (job, ended) = run("yes | head -c 200000; echo the end >&2");
    let cause = "cannot write to standard output: No space left on device";
    ended.failed(1, &["the end", cause]);
    assert_eq!(job.log(0).matches("y\n").count(), 100_000);
    let (_, ended) = run("echo table; exit 3");
    ended.failed(3, &[cause, "rank 0 of 1 exited with status 3"]);

    // Who closes our output wants no more of it.
    let job = Job::new(1, "");
    let mut closed = job.command("yes | head -c 200000");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    closed.stdout(writer);
    let ended: Ended = closed.spawn().unwrap().wait_with_output().unwrap().into();
    ended.printed("");

    let command = job.command("yes | head -c 20000");
    let mut limited = Command::new("/bin/sh");
    limited
        .args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$0\" \"$@\""])
        .arg(command.get_program())
        .args(command.get_args());
    let ended = Ended::of(limited);
    ended.failed(0, &["rank-0.log is incomplete: File too large"]);
    assert_eq!(ended.out.len(), 20_000);
}

#[test]
fn what_cannot_start_says_why() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for (ranks, options, code, messages) in [
        (
            2,
            format!("--port {port}"),
            1,
            [&*format!("port {port}"), "--port"],
        ),
        (0, String::new(), 2, ["0 ranks", "4096"]),
        (100_000, String::new(), 2, ["100000 ranks", "4096"]),
        (3, "--hosts a,b".into(), 2, ["3 ranks", "2 hosts"]),
        (
            3,
            "--hosts a,,b".into(),
            2,
            ["--hosts", "a value is required"],
        ),
        (2, "--hosts=".into(), 2, ["--hosts", "a value is required"]),
    ] {
        let job = Job::new(ranks, &options);
        job.run("touch $D/started").failed(code, &messages);
        assert!(!job.file("started").exists());
    }
    let logs = Job::new(1, "").file("logs").display().to_string();
    for (logs, program, message) in [
        (&*logs, "/no/such/program", "cannot run /no/such/program"),
        (
            "/proc/no-such-folder",
            "true",
            "/proc/no-such-folder/launch-",
        ),
    ] {
        let line = ["launch", "-n", "2", "--logs", logs, "--", program];
        Ended::of(crate::xtask(&line)).failed(1, &[message]);
    }
}
