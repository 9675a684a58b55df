use super::*;

fn job(vars: &[(&str, &str)]) -> Result<Job> {
    Job::from_lookup(|name| {
        vars.iter()
            .find(|(n, _)| *n == name)
            .map(|(_, value)| value.to_string())
    })
}

fn why(vars: &[(&str, &str)]) -> String {
    let error = job(vars).unwrap_err();
    assert!(matches!(error, CommError::Environment { .. }), "{error:?}");
    error.to_string()
}

#[test]
fn no_launcher_is_a_job_of_one() {
    let job = job(&[("HOME", "/")]).unwrap();
    assert_eq!((job.rank(), job.world(), job.local_rank()), (0, 1, 0));
    assert_eq!(job.launcher(), Launcher::Alone);
    assert_eq!(job.timeout(), DEFAULT_TIMEOUT);
}

#[test]
fn own_variables_come_first() {
    let job = job(&[
        ("WARPWEAVE_RANK", "1"),
        ("WARPWEAVE_WORLD_SIZE", "4"),
        ("WARPWEAVE_STORE", "127.0.0.1:4000"),
        ("WARPWEAVE_JOB_TOKEN", "0123456789"),
        ("WARPWEAVE_TIMEOUT", "2.5"),
        ("RANK", "7"),
        ("WORLD_SIZE", "8"),
    ])
    .unwrap();
    assert_eq!((job.rank(), job.world(), job.local_rank()), (1, 4, 1));
    assert_eq!(job.store(), "127.0.0.1:4000");
    assert!(job.token().admits(b"0123456789"));
    assert_eq!(job.timeout(), Duration::from_millis(2500));
}

#[test]
fn torchrun_leaves_its_own_port_alone() {
    let job = job(&[
        ("RANK", "5"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "node0"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RUN_ID", "abc"),
    ])
    .unwrap();
    assert_eq!((job.rank(), job.world(), job.local_rank()), (5, 8, 1));
    assert_eq!(job.launcher(), Launcher::Torchrun);
    assert_eq!(job.store(), "node0:29501");
    assert!(job.token().admits(b"warpweave job torchrun abc"));
}

#[test]
fn each_foreign_launcher_is_read() {
    let cases: [(&[(&str, &str)], Launcher); 3] = [
        (
            &[
                ("OMPI_COMM_WORLD_RANK", "2"),
                ("OMPI_COMM_WORLD_SIZE", "3"),
                ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ],
            Launcher::OpenMpi,
        ),
        (
            &[
                ("PMI_RANK", "2"),
                ("PMI_SIZE", "3"),
                ("MPI_LOCALRANKID", "1"),
            ],
            Launcher::Mpich,
        ),
        (
            &[
                ("SLURM_PROCID", "2"),
                ("SLURM_NTASKS", "16"),
                ("SLURM_STEP_NUM_TASKS", "3"),
                ("SLURM_LOCALID", "1"),
            ],
            Launcher::Slurm,
        ),
    ];
    for (vars, launcher) in cases {
        let mut vars = vars.to_vec();
        vars.push(("WARPWEAVE_STORE", "[::1]:4000"));
        let job = job(&vars).unwrap();
        assert_eq!(
            (job.rank(), job.world(), job.local_rank()),
            (2, 3, 1),
            "{launcher}"
        );
        assert_eq!((job.launcher(), job.store()), (launcher, "[::1]:4000"));
        assert!(!job.token().as_bytes().is_empty());
    }
}

#[test]
fn an_mpi_job_inside_slurm_is_an_mpi_job() {
    let job = job(&[
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "1"),
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("MASTER_ADDR", "fe80::1"),
        ("MASTER_PORT", "5000"),
    ])
    .unwrap();
    assert_eq!((job.launcher(), job.rank()), (Launcher::OpenMpi, 1));
    assert_eq!(job.store(), "[fe80::1]:5001");
}

#[test]
fn what_is_missing_is_named() {
    let cases: [(&[(&str, &str)], &str); 9] = [
        (&[("WARPWEAVE_RANK", "0")], "WARPWEAVE_WORLD_SIZE"),
        (&[("WARPWEAVE_STORE", "127.0.0.1:4000")], "WARPWEAVE_RANK"),
        (
            &[("WARPWEAVE_RANK", "0"), ("WARPWEAVE_WORLD_SIZE", "2")],
            "WARPWEAVE_STORE",
        ),
        (
            &[
                ("WARPWEAVE_RANK", "0"),
                ("WARPWEAVE_WORLD_SIZE", "2"),
                ("WARPWEAVE_STORE", "h:1"),
            ],
            "WARPWEAVE_JOB_TOKEN",
        ),
        (
            &[
                ("WARPWEAVE_RANK", "0"),
                ("WARPWEAVE_WORLD_SIZE", "2"),
                ("WARPWEAVE_STORE", "h"),
            ],
            "not host:port",
        ),
        (&[("RANK", "0"), ("WORLD_SIZE", "2")], "LOCAL_RANK"),
        (
            &[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")],
            "MASTER_ADDR and MASTER_PORT",
        ),
        (&[("SLURM_NTASKS", "2")], "SLURM_PROCID, SLURM_LOCALID"),
        (&[("WARPWEAVE_TIMEOUT", "soon")], "WARPWEAVE_TIMEOUT"),
    ];
    for (vars, named) in cases {
        let why = why(vars);
        assert!(why.contains(named), "{why} should name {named}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    assert!(why(&[("PMI_RANK", "x"), ("PMI_SIZE", "2")]).contains("PMI_RANK is `x`"));
    assert!(why(&[("RANK", "2"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")]).contains("RANK = 2"));
    assert!(why(&[("RANK", "0"), ("WORLD_SIZE", "99999"), ("LOCAL_RANK", "0")]).contains("4096"));
}
