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

/// An `ssh` that runs the command here, in the host's namespaces if it has some, and writes its arguments to a file.
fn fake_ssh(folder: &Path, hosts: Option<&cable::Hosts>) -> String {
    let on = |host| hosts.map_or(String::new(), |hosts| hosts.prefix(host).join(" "));
    let script = format!(
        "#!/bin/sh\nshift 3; host=$1; shift\nprintf '%s\\n' \"$host\" \"$@\" >> '{}/arguments'\n\
         case $host in one) exec {} /bin/sh -c \"$*\";; two) exec {} /bin/sh -c \"$*\";; esac\nexit 255\n",
        folder.display(),
        on(0),
        on(1),
    );
    let program = folder.join("ssh");
    fs::write(&program, script).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&program, mode).unwrap();
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap())
}

#[test]
fn ranks_of_two_hosts_start_by_ssh_and_the_token_is_on_no_command_line() {
    let hosts = cable::Hosts::new();
    let job = Job::new(4)
        .option("--hosts", "one,two")
        .option("--port", "4000");
    let path = fake_ssh(job.folder.path(), hosts.as_ref());
    let script = "readlink /proc/self/ns/net > $D/net.$R
         echo $WARPWEAVE_LOCAL_RANK of $WARPWEAVE_WORLD_SIZE at $WARPWEAVE_STORE > $D/place.$R
         echo $WARPWEAVE_JOB_TOKEN > $D/token.$R";
    let script = format!("D='{}'\n{script}", job.folder.path().display());
    let mut command = job.command(&script);
    command.env("PATH", path);
    Ended::of(command).succeeded();
    let read = |name: String| fs::read_to_string(job.file(&name)).unwrap();
    let token = read("token.0".into());
    assert_eq!(token.trim().len(), 64);
    let arguments = read("arguments".into());
    assert!(
        !arguments.contains(token.trim()) && arguments.contains("WARPWEAVE_RANK"),
        "{arguments}"
    );
    for rank in 0..4 {
        assert_eq!(read(format!("token.{rank}")), token);
        let place = format!("{} of 4 at one:4000\n", rank % 2);
        assert_eq!(read(format!("place.{rank}")), place);
        if hosts.is_some() {
            let same = read(format!("net.{rank}")) == read("net.0".into());
            assert_eq!(same, rank < 2, "rank {rank}");
        }
    }
}

#[test]
fn a_rank_on_another_host_ends_with_the_launcher() {
    let job = Job::new(2).option("--hosts", "one,two");
    let path = fake_ssh(job.folder.path(), None);
    let script = format!(
        "echo $$ > '{}'/pid.$R; sleep 1000",
        job.folder.path().display()
    );
    let mut launcher = job.command(&script).env("PATH", path).spawn().unwrap();
    let pids = job.pids(&["pid.0", "pid.1"]);
    launcher.kill().unwrap();
    launcher.wait().unwrap();
    wait_until("the ranks' ends", || pids.iter().all(|pid| is_gone(*pid)));
}

struct Job {
    folder: TempDir,
    options: Vec<String>,
    env: Vec<(&'static str, &'static str)>,
}

impl Job {
    fn new(ranks: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let logs = folder.path().join("logs").display().to_string();
        let options = ["-n", &ranks.to_string(), "--grace", "0.5", "--logs", &logs];
        Self {
            options: options.map(str::to_owned).into(),
            folder,
            env: Vec::new(),
        }
    }

    /// Sets an option, also one that is there already.
    fn option(mut self, name: &str, value: &str) -> Self {
        match self.options.iter().position(|word| word == name) {
            Some(place) => self.options[place + 1] = value.to_owned(),
            None => self.options.extend([name.to_owned(), value.to_owned()]),
        }
        self
    }

    /// A launcher of `script` on every rank, with `$D` for the job's folder and `$WARPWEAVE_RANK` as `$R`.
    fn command(&self, script: &str) -> Command {
        let mut command = crate::xtask(&["launch"]);
        command
            .args(&self.options)
            .args([
                "--",
                "/bin/sh",
                "-c",
                &format!("R=$WARPWEAVE_RANK\n{script}"),
            ])
            .env("D", self.folder.path())
            .envs(self.env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn start(&self, script: &str) -> Child {
        self.command(script).spawn().unwrap()
    }

    fn run(&self, script: &str) -> Ended {
        let began = Instant::now();
        let ended = Ended::of(self.command(script));
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        ended
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self, rank: usize) -> String {
        let jobs: Vec<_> = fs::read_dir(self.file("logs")).unwrap().flatten().collect();
        assert_eq!(jobs.len(), 1, "one folder for the one job");
        fs::read_to_string(jobs[0].path().join(format!("rank-{rank}.log"))).unwrap()
    }

    /// The process ids that the script wrote to `$D/NAME`, once all of them are there.
    fn pids(&self, names: &[&str]) -> Vec<u32> {
        let read = |name: &&str| {
            fs::read_to_string(self.file(name))
                .ok()?
                .strip_suffix('\n')?
                .parse()
                .ok()
        };
        let mut pids = Vec::new();
        wait_until("the ranks' process ids", || {
            pids = names.iter().filter_map(read).collect();
            pids.len() == names.len()
        });
        pids
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
    stat.map_or(true, |stat| {
        stat.rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with(['Z', 'X']))
    })
}

fn assert_gone(pids: &[u32]) {
    wait_until("the end of the processes", || {
        pids.iter().all(|&pid| is_gone(pid))
    });
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("/bin/sh")
        .args(["-c", &format!("kill -{name} {}", child.id())])
        .status()
        .unwrap();
    assert!(sent.success());
}

fn wait_for(mut child: Child) -> Ended {
    wait_until("the launcher's end", || child.try_wait().unwrap().is_some());
    child.wait_with_output().unwrap().into()
}

#[test]
fn every_rank_learns_its_place() {
    let mut job = Job::new(3);
    job.env = vec![
        ("NCCL_NVLS_ENABLE", "0"),
        ("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"),
        ("NVSHMEM_DISABLE_NVLS", "1"),
    ];
    let ended = job.run(
        "echo $R of $WARPWEAVE_WORLD_SIZE here $WARPWEAVE_LOCAL_RANK
         echo $WARPWEAVE_STORE $WARPWEAVE_JOB_TOKEN
         echo guards $NCCL_NVLS_ENABLE $TORCH_SYMM_MEM_DISABLE_MULTICAST $NVSHMEM_DISABLE_NVLS",
    );
    ended.succeeded();
    let logs: Vec<Vec<String>> = (0..3)
        .map(|rank| job.log(rank).lines().map(str::to_owned).collect())
        .collect();
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
    assert_eq!(
        ended.out,
        job.log(0),
        "rank 0's output passes through, and no other's"
    );
}

#[test]
fn a_failing_rank_ends_the_job() {
    let job = Job::new(3);
    let ended = job.run(
        "echo $$ >$D/pid-$R
         [ $R = 1 ] && { echo 'out of ideas' >&2; exit 7; }
         exec sleep 600",
    );
    // The end of its log is shown too.
    ended.failed(7, &["rank 1 of 3 exited with status 7", "out of ideas"]);
    assert_eq!(job.log(1), "out of ideas\n");
    assert_gone(&job.pids(&["pid-0", "pid-1", "pid-2"]));
}

#[test]
fn rank_0_that_fails_is_shown_too() {
    let ended =
        Job::new(2).run("[ $R = 0 ] && { echo 'no such suite' >&2; exit 2; }; exec sleep 600");
    ended.failed(2, &["no such suite", "rank 0 of 2"]);
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed() {
    let job = Job::new(2);
    let ended = job.run(
        "[ $R = 0 ] && exit 3
         trap '' TERM; echo $$ >$D/shell; sleep 600 & echo $! >$D/sleep; wait",
    );
    ended.failed(3, &["[1] are still running: SIGKILL"]);
    assert_gone(&job.pids(&["shell", "sleep"]));
}

#[test]
fn a_rank_that_ends_in_the_grace_is_not_signalled() {
    let job = Job::new(2).option("--grace", "20");
    let ended = job.run(
        "[ $R = 0 ] && exit 3; trap 'touch $D/signalled' TERM; sleep 0.3; touch $D/done; exit 76",
    );
    assert_eq!(ended.code, Some(3));
    assert!(job.file("done").exists() && !job.file("signalled").exists());
}

#[test]
fn the_rank_that_was_lost_is_named_and_not_the_one_that_noticed() {
    let ended = Job::new(2)
        .option("--grace", "20")
        .run("[ $R = 0 ] && exit 76; sleep 0.5; kill -SEGV $$");
    ended.failed(128 + 11, &["rank 1 of 2 was killed by SIGSEGV (signal 11)"]);
}

#[test]
fn what_every_rank_says_of_a_lost_one_is_shown() {
    let ended = Job::new(3).option("--grace", "20").run(
        "[ $R = 1 ] && { echo 'last words' >&2; kill -KILL $$; }
         sleep 0.3; echo \"error (rank $R): lost rank 1\" >&2; exit 76",
    );
    assert_eq!(ended.code, Some(128 + 9));
    let place = |part: &str| {
        ended
            .err
            .rfind(part)
            .unwrap_or_else(|| panic!("{part}: {}", ended.err))
    };
    assert!(place("last words") < place("error (rank 2): lost rank 1"));
    assert!(ended.err.contains("error (rank 0): lost rank 1"));
    assert_eq!(
        ended.err.matches("error (rank 0)").count(),
        1,
        "{}",
        ended.err
    );
    assert!(place("error (rank 2)") < place("rank 1 of 3 was killed by SIGKILL"));
}

#[test]
fn ranks_die_with_a_killed_launcher() {
    let job = Job::new(3);
    let launcher =
        job.start("trap '' TERM HUP INT; echo $$ >$D/pid-$R; while :; do sleep 0.1; done");
    let pids = job.pids(&["pid-0", "pid-1", "pid-2"]);
    assert!(pids.iter().all(|&pid| !is_gone(pid)));
    signal(&launcher, "KILL");
    assert_gone(&pids);
    assert_eq!(wait_for(launcher).code, None);
}

#[test]
fn an_interrupt_reaches_the_ranks() {
    let job = Job::new(2).option("--grace", "20");
    let launcher = job.start(
        "trap 'touch $D/int-$R; exit 1' INT; echo $$ >$D/pid-$R; while :; do sleep 0.05; done",
    );
    let pids = job.pids(&["pid-0", "pid-1"]);
    signal(&launcher, "INT");
    let ended = wait_for(launcher);
    ended.failed(130, &["interrupted by SIGINT"]);
    assert!(job.file("int-0").exists() && job.file("int-1").exists());
    assert_gone(&pids);
}

#[test]
fn a_second_interrupt_kills_at_once() {
    let job = Job::new(2).option("--grace", "600");
    let launcher = job.start(
        "trap 'touch $D/first-$R' INT TERM; echo $$ >$D/pid-$R; while :; do sleep 0.05; done",
    );
    let pids = job.pids(&["pid-0", "pid-1"]);
    signal(&launcher, "TERM");
    wait_until("the first signal", || {
        job.file("first-0").exists() && job.file("first-1").exists()
    });
    assert!(pids.iter().all(|&pid| !is_gone(pid)));
    signal(&launcher, "TERM");
    let ended = wait_for(launcher);
    ended.failed(143, &[]);
    assert_gone(&pids);
}

#[test]
fn what_a_rank_leaves_behind_dies_with_it() {
    let job = Job::new(2);
    let ended = job.run("sleep 600 & echo $! >$D/left-$R; echo done");
    ended.printed("done\n");
    assert_gone(&job.pids(&["left-0", "left-1"]));
}

#[test]
fn a_job_has_a_limit() {
    let job = Job::new(2).option("--timeout", "0.5");
    let ended = job.run("[ $R = 0 ] && exit 0; echo $$ >$D/pid; exec sleep 600");
    ended.failed(124, &["did not end within 500ms", "ranks [1]"]);
    assert_gone(&job.pids(&["pid"]));
}

#[test]
fn what_cannot_start_says_why() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (job, messages) in [
        (
            Job::new(2).option("--port", &port),
            [&*format!("port {port}"), "--port"],
        ),
        (Job::new(0), ["0 ranks", "4096"]),
        (Job::new(100_000), ["100000 ranks", "4096"]),
    ] {
        job.run("touch $D/started").failed(1, &messages);
        assert!(!job.file("started").exists());
    }
    let logs = Job::new(1).file("logs").display().to_string();
    let line = [
        "launch",
        "-n",
        "2",
        "--logs",
        &logs,
        "--",
        "/no/such/program",
    ];
    Ended::of(crate::xtask(&line)).failed(1, &["cannot run /no/such/program"]);
}
