//! Jobs over two hosts, which are network namespaces with a cable between them, started by nothing but the
//! variables of a launcher.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use warpweave_comm::Communicator;
use warpweave_symm_mem::{Host, SymmetricBuffer};

// The bench cuts the cable too.
#[allow(dead_code)]
#[path = "../../../bench/tests/cli/cable.rs"]
mod cable;

use cable::{ADDRESSES, ADDRESSES_V6, Hosts};

const ROLE: &str = "WARPWEAVE_TEST_ROLE";
const HOSTS: &str = "two hosts";

/// Ranks of a host.
const EACH: usize = 2;

/// Not a test of its own: what a rank runs.
#[test]
fn child() {
    if !std::env::var(ROLE).is_ok_and(|role| role == HOSTS) {
        return;
    }
    let met = Communicator::init().and_then(|comm| {
        let launcher = comm.job().launcher();
        let mine = format!("{} of {} by {launcher}", comm.rank(), comm.world());
        let all = comm.all_gather_bytes("who", mine.as_bytes())?;
        println!("child: met {}", String::from_utf8_lossy(&all.join(&b';')));
        println!("child: {}", comm.exchange().nodes()?);
        println!("child: at {:?}", comm.exchange().addresses()?);
        // Descriptors within each host.
        let pipe = rustix::pipe::pipe().expect("a pipe").0;
        let fds = [std::os::fd::AsFd::as_fd(&pipe)];
        let fds = comm.exchange().all_gather_fds("pipes", &fds)?;
        println!(
            "child: {:?} descriptors",
            fds.iter().map(Vec::len).collect::<Vec<_>>()
        );
        let memory = SymmetricBuffer::new(&Host::new(), &comm.shared_exchange(), "b", 64);
        println!(
            "child: memory: {}",
            memory.map_or_else(|e| e.to_string(), |_| "shared".into())
        );
        comm.barrier()
    });
    match met {
        Ok(()) => println!("child: fine"),
        Err(e) => println!("child: failed: {e}"),
    }
}

type Environment = Vec<(&'static str, String)>;

/// A command of this program as a rank, with nothing of a launcher's but what `env` has.
fn rank_with(env: &Environment) -> Command {
    const LAUNCHERS: [&str; 9] = [
        "WARPWEAVE_",
        "OMPI_",
        "PMI",
        "MPI_",
        "SLURM_",
        "MASTER_",
        "TORCHELASTIC_",
        "LOCAL_",
        "GROUP_",
    ];
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    for (name, _) in std::env::vars() {
        let starts = LAUNCHERS.iter().any(|start| name.starts_with(start));
        if starts || name == "RANK" || name == "WORLD_SIZE" {
            command.env_remove(name);
        }
    }
    command
        .args(["--exact", "hosts::child", "--nocapture"])
        .env(ROLE, HOSTS)
        .env("WARPWEAVE_TIMEOUT", "20")
        .envs(env.iter().map(|(name, value)| (name, value)));
    command
}

/// What each rank said: two ranks on each host, with these environments.
fn said(hosts: &Hosts, env: impl Fn(usize) -> Environment, names: Option<&Names>) -> Vec<String> {
    let ranks: Vec<Child> = (0..2 * EACH)
        .map(|rank| {
            let command = rank_with(&env(rank));
            let mut there = match names {
                Some(names) => hosts.on(rank / EACH, &names.known_to(&command)),
                None => hosts.on(rank / EACH, &command),
            };
            there
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            there.spawn().expect("nsenter")
        })
        .collect();
    ranks
        .into_iter()
        .map(|rank| {
            let output = rank.wait_with_output().expect("an end");
            let text = [output.stdout, output.stderr].concat();
            String::from_utf8_lossy(&text).into_owned()
        })
        .collect()
}

/// Expects that the ranks meet as two nodes, and that they reach each other at these addresses.
fn meet(said: &[String], launcher: &str, addresses: [&str; 2]) {
    let all = (0..2 * EACH).map(|rank| format!("{rank} of 4 by {launcher}"));
    let met = format!("met {}", all.collect::<Vec<_>>().join(";"));
    for (rank, said) in said.iter().enumerate() {
        let descriptors = match rank < EACH {
            true => "[1, 1, 0, 0] descriptors",
            false => "[0, 0, 1, 1] descriptors",
        };
        // The store's own host may be reached by its loopback addresses.
        let other = addresses[1 - rank / EACH];
        let expected = [
            met.as_str(),
            "2 nodes: ranks [0, 1], [2, 3]",
            descriptors,
            other,
            "child: fine",
        ];
        for part in expected {
            assert!(said.contains(part), "rank {rank}: {part}: {said}");
        }
    }
}

/// Names of hosts, in place of `/etc/hosts`.
struct Names(PathBuf);

impl Names {
    /// `None` where no file can be bound over another: the reason is printed.
    fn new(hosts: &Hosts, text: &str) -> Option<Self> {
        let file = std::env::temp_dir().join(format!("warpweave-names-{}", std::process::id()));
        std::fs::write(&file, text).expect("a file");
        let names = Names(file);
        let probe = names.known_to(Command::new("cat").arg("/etc/hosts"));
        let output = hosts.on(0, &probe).output().expect("nsenter");
        if output.status.success() && output.stdout == text.as_bytes() {
            return Some(names);
        }
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        eprintln!(
            "skipped: hosts cannot have names of their own here: {}",
            why.trim()
        );
        None
    }

    fn path(&self) -> &Path {
        &self.0
    }

    /// `command`, to which these names are known.
    fn known_to(&self, command: &Command) -> Command {
        let bind = format!(
            "mount --bind {} /etc/hosts && exec \"$@\"",
            self.path().display()
        );
        let mut inside = Command::new("unshare");
        inside.args(["--mount", "sh", "-c", &bind, "sh"]);
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn text(value: impl ToString) -> String {
    value.to_string()
}

fn torchrun(rank: usize, address: &str) -> Environment {
    vec![
        ("RANK", text(rank)),
        ("WORLD_SIZE", text(2 * EACH)),
        ("LOCAL_RANK", text(rank % EACH)),
        ("LOCAL_WORLD_SIZE", text(EACH)),
        ("GROUP_RANK", text(rank / EACH)),
        ("MASTER_ADDR", text(address)),
        ("MASTER_PORT", text(29500)),
        ("TORCHELASTIC_RUN_ID", text("two hosts")),
        ("TORCHELASTIC_RESTART_COUNT", text(0)),
    ]
}

fn open_mpi(rank: usize) -> Environment {
    vec![
        ("OMPI_COMM_WORLD_RANK", text(rank)),
        ("OMPI_COMM_WORLD_SIZE", text(2 * EACH)),
        ("OMPI_COMM_WORLD_LOCAL_RANK", text(rank % EACH)),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", text(EACH)),
        ("PMIX_RANK", text(rank)),
        ("PMIX_NAMESPACE", text("prterun-gpu1-77@1")),
    ]
}

fn slurm(rank: usize) -> Environment {
    vec![
        ("SLURM_JOB_ID", text(77)),
        ("SLURM_STEP_ID", text(1)),
        ("SLURM_PROCID", text(rank)),
        ("SLURM_LOCALID", text(rank % EACH)),
        ("SLURM_NTASKS", text(2 * EACH)),
        ("SLURM_STEP_NUM_TASKS", text(2 * EACH)),
        ("SLURM_STEP_NUM_NODES", text(2)),
        ("SLURM_STEP_NODELIST", text("gpu[1-2]")),
    ]
}

#[test]
fn torchrun_starts_a_job_on_two_hosts() {
    let Some(hosts) = Hosts::new() else { return };
    let said = said(&hosts, |rank| torchrun(rank, ADDRESSES[0]), None);
    meet(&said, "torchrun", ADDRESSES);
}

#[test]
fn a_job_on_two_hosts_is_started_over_ipv6() {
    let Some(hosts) = Hosts::new() else { return };
    let said = said(&hosts, |rank| torchrun(rank, ADDRESSES_V6[0]), None);
    meet(&said, "torchrun", ADDRESSES_V6);
}

/// The hosts of an NVLink domain may be one node. Memory of the host backend is of one host: that is an error
/// on all ranks, and not a wait.
#[test]
fn memory_of_a_node_of_two_hosts_is_refused_where_it_has_no_fabric_handles() {
    let Some(hosts) = Hosts::new() else { return };
    let one_node = |rank| {
        let node = vec![("WARPWEAVE_NODE", text("a domain"))];
        [torchrun(rank, ADDRESSES[0]), node].concat()
    };
    for (rank, said) in said(&hosts, one_node, None).iter().enumerate() {
        let memory = "across hosts all ranks need fabric handles";
        for part in ["1 nodes: ranks [0, 1, 2, 3]", memory, "child: fine"] {
            assert!(said.contains(part), "rank {rank}: {part}: {said}");
        }
    }
}

/// Its variables do not say on which host rank 0 is.
#[test]
fn open_mpi_starts_a_job_on_two_hosts_with_the_address_of_rank_0() {
    let Some(hosts) = Hosts::new() else { return };
    let with_store = |rank| {
        let store = format!("{}:29400", ADDRESSES[0]);
        [open_mpi(rank), vec![("WARPWEAVE_STORE", store)]].concat()
    };
    meet(&said(&hosts, with_store, None), "Open MPI", ADDRESSES);
    for without in said(&hosts, open_mpi, None) {
        assert!(
            without.contains("environment of Open MPI: missing: WARPWEAVE_STORE"),
            "{without}"
        );
    }
}

/// The first of SLURM's list, whose name resolves to several addresses: one that every host has for itself,
/// as Debian's `127.0.1.1`, one of nobody, and at last the right one.
#[test]
fn slurm_starts_a_job_on_two_hosts_by_a_name_of_several_addresses() {
    let Some(hosts) = Hosts::new() else { return };
    let of_nobody = "10.77.0.99";
    let table = format!(
        "127.0.0.1 localhost\n127.0.1.1 gpu1\n{of_nobody} gpu1\n{} gpu1\n{} gpu2\n",
        ADDRESSES[0], ADDRESSES[1]
    );
    let Some(names) = Names::new(&hosts, &table) else {
        return;
    };
    meet(&said(&hosts, slurm, Some(&names)), "SLURM", ADDRESSES);
}
