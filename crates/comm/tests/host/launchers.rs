//! Jobs of real processes in the environment of each launcher, and what they show of the token.

use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use warpweave_comm::Communicator;

const ROLE: &str = "WARPWEAVE_TEST_ROLE";
const SECRET: &str = "a secret that nobody may see";

/// Not a test of its own: what a child process runs.
#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let result = Communicator::init().and_then(|comm| {
        let job = comm.job();
        println!("child: {:?}", job);
        let mine = format!("{} of {} by {}", comm.rank(), comm.world(), job.launcher());
        let all = comm.all_gather_bytes("who", mine.as_bytes())?;
        let pipe = rustix::pipe::pipe().expect("a pipe").0;
        let fds = [std::os::fd::AsFd::as_fd(&pipe)];
        comm.exchange().all_gather_fds("pipes", &fds)?;
        println!("child: met {}", String::from_utf8_lossy(&all.join(&b';')));
        if role == "linger" {
            println!("child: ready");
            std::thread::sleep(Duration::from_secs(60));
        }
        comm.barrier()
    });
    match result {
        Ok(()) => println!("child: fine"),
        Err(e) => println!("child: failed: {e} {e:?}"),
    }
}

type Environment = Vec<(&'static str, String)>;

fn start(role: &str, env: &Environment, folder: Option<&Path>) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command
        .args(["--exact", "launchers::child", "--nocapture"])
        .env_clear()
        .env(ROLE, role)
        .env("WARPWEAVE_TIMEOUT", "20")
        .envs(env.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if let Some(folder) = folder {
        command.current_dir(folder);
        for name in ["TMPDIR", "HOME", "XDG_RUNTIME_DIR"] {
            command.env(name, folder);
        }
    }
    command.spawn().expect("starting this binary")
}

fn output(child: Child) -> String {
    let output = child.wait_with_output().expect("an end");
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

/// A port that was free a moment ago, and the one before it.
fn port() -> u16 {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("its number").port();
        if port > 1025 && TcpListener::bind(("127.0.0.1", port - 1)).is_ok() {
            return port;
        }
    }
}

/// Starts a rank with each environment, and expects that all join.
fn meets(launcher: &str, ranks: Vec<Environment>) {
    let world = ranks.len();
    let expected: Vec<_> = (0..world)
        .map(|rank| format!("{rank} of {world} by {launcher}"))
        .collect();
    let children: Vec<_> = ranks.iter().map(|env| start("meet", env, None)).collect();
    for child in children {
        let message = output(child);
        assert!(
            message.contains(&format!("met {}", expected.join(";"))),
            "{message}"
        );
        assert!(message.contains("child: fine"), "{message}");
    }
}

fn text(value: impl ToString) -> String {
    value.to_string()
}

#[test]
fn torchrun_starts_a_job() {
    let port = port();
    // torchrun itself listens at its own port.
    let _agent = TcpListener::bind(("127.0.0.1", port - 1)).expect("free a moment ago");
    let rank = |rank: usize| {
        vec![
            ("RANK", text(rank)),
            ("WORLD_SIZE", text(3)),
            ("LOCAL_RANK", text(rank)),
            ("LOCAL_WORLD_SIZE", text(3)),
            ("GROUP_RANK", text(0)),
            ("MASTER_ADDR", text("localhost")),
            ("MASTER_PORT", text(port - 1)),
            ("TORCHELASTIC_RUN_ID", text("none")),
            ("TORCHELASTIC_RESTART_COUNT", text(0)),
        ]
    };
    meets("torchrun", (0..3).map(rank).collect());
}

#[test]
fn open_mpi_starts_a_job_on_one_host_with_no_address() {
    let rank = |rank: usize| {
        vec![
            ("OMPI_COMM_WORLD_RANK", text(rank)),
            ("OMPI_COMM_WORLD_SIZE", text(2)),
            ("OMPI_COMM_WORLD_LOCAL_RANK", text(rank)),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", text(2)),
            ("PMIX_RANK", text(rank)),
            (
                "PMIX_NAMESPACE",
                format!("prterun-{}@1", std::process::id()),
            ),
        ]
    };
    meets("Open MPI", (0..2).map(rank).collect());
}

#[test]
fn mpich_starts_a_job() {
    let store = format!("127.0.0.1:{}", port());
    let rank = |rank: usize| {
        vec![
            ("PMI_RANK", text(rank)),
            ("PMI_SIZE", text(2)),
            ("MPI_LOCALRANKID", text(rank)),
            ("MPI_LOCALNRANKS", text(2)),
            ("WARPWEAVE_STORE", store.clone()),
            ("WARPWEAVE_JOB_TOKEN", text("a token of this job")),
        ]
    };
    meets("MPICH", (0..2).map(rank).collect());
}

#[test]
fn slurm_starts_a_job_on_one_node_with_no_address() {
    let rank = |rank: usize| {
        vec![
            ("SLURM_JOB_ID", text(std::process::id())),
            ("SLURM_STEP_ID", text(1)),
            ("SLURM_PROCID", text(rank)),
            ("SLURM_LOCALID", text(rank)),
            ("SLURM_NTASKS", text(16)),
            ("SLURM_STEP_NUM_TASKS", text(2)),
            ("SLURM_STEP_NUM_NODES", text(1)),
            ("SLURM_STEP_NODELIST", text("gpu007")),
        ]
    };
    meets("SLURM", (0..2).map(rank).collect());
}

fn own(rank: usize, world: usize, port: u16, token: &str) -> Environment {
    vec![
        ("WARPWEAVE_RANK", text(rank)),
        ("WARPWEAVE_WORLD_SIZE", text(world)),
        ("WARPWEAVE_STORE", format!("127.0.0.1:{port}")),
        ("WARPWEAVE_JOB_TOKEN", text(token)),
    ]
}

#[test]
fn a_part_of_a_launchers_variables_is_an_error_that_names_the_rest() {
    let message = output(start("meet", &vec![("PMI_RANK", text(0))], None));
    assert!(
        message.contains("failed: environment of MPICH: missing: PMI_SIZE"),
        "{message}"
    );
}

#[test]
fn the_token_is_shown_to_nobody() {
    let port = port();
    let zero = start("meet", &own(0, 2, port, SECRET), None);
    let wrong = "another secret that nobody may see";
    let stranger = output(start("meet", &own(1, 2, port, wrong), None));
    assert!(stranger.contains("wrong job token"), "{stranger}");
    let one = start("meet", &own(1, 2, port, SECRET), None);
    // `ps` reads this.
    let line = std::fs::read_to_string(format!("/proc/{}/cmdline", one.id())).expect("procfs");
    let message = [line, stranger, output(zero), output(one)].concat();
    assert!(
        message.contains("met 0 of 2 by warpweave;1 of 2"),
        "{message}"
    );
    assert!(
        message.contains("JobToken"),
        "the job was printed: {message}"
    );
    assert!(!message.contains("nobody may see"), "{message}");
}

#[test]
fn killed_ranks_leave_nothing_behind() {
    let folder = empty_folder();
    let left = || std::fs::read_dir(&folder).expect("a folder").count();
    let sockets = || {
        let all = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
        all.lines()
            .filter(|l| l.contains(&*folder.to_string_lossy()))
            .count()
    };
    let port = port();
    let mut ranks: Vec<_> = (0..2)
        .map(|rank| start("linger", &own(rank, 2, port, SECRET), Some(&folder)))
        .collect();
    for rank in &mut ranks {
        let (mut message, mut byte) = (String::new(), [0]);
        let start = Instant::now();
        let out = rank.stdout.as_mut().expect("a pipe");
        while !message.contains("child: ready") {
            assert_eq!(out.read(&mut byte).expect("a pipe"), 1, "{message}");
            message.push(byte[0] as char);
            assert!(start.elapsed() < Duration::from_secs(30), "{message}");
        }
    }
    for rank in &mut ranks {
        rank.kill().expect("SIGKILL");
        rank.wait().expect("an end");
    }
    assert_eq!((left(), sockets()), (0, 0));
    std::fs::remove_dir(&folder).expect("an empty folder");
}

/// An empty folder of this process's own.
fn empty_folder() -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("warpweave-launchers-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a new folder");
    folder
}
