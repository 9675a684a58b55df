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
    assert_eq!(job.token().as_bytes(), b"0123456789");
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
    let derived = JobToken::derived("warpweave job torchrun abc");
    assert_eq!(job.token().as_bytes(), derived.as_bytes());
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
        let missing = why(&[&vars[..], &[("WARPWEAVE_STORE", "[::1]:4000")]].concat());
        assert!(missing.contains("WARPWEAVE_JOB_TOKEN"), "{missing}");
        vars.push(("WARPWEAVE_STORE", "[::1]:4000"));
        vars.push(("WARPWEAVE_JOB_TOKEN", "0123456789"));
        let job = job(&vars).unwrap();
        assert_eq!(
            (job.rank(), job.world(), job.local_rank()),
            (2, 3, 1),
            "{launcher}"
        );
        assert_eq!((job.launcher(), job.store()), (launcher, "[::1]:4000"));
        assert_eq!(job.token().as_bytes(), b"0123456789");
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
        ("WARPWEAVE_JOB_TOKEN", "0123456789"),
    ])
    .unwrap();
    assert_eq!((job.launcher(), job.rank()), (Launcher::OpenMpi, 1));
    assert_eq!(job.store(), "[fe80::1]:5001");
}

#[test]
fn what_is_missing_is_named() {
    let cases: [(&[(&str, &str)], &str); 10] = [
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
        (
            &[
                ("RANK", "0"),
                ("WORLD_SIZE", "2"),
                ("LOCAL_RANK", "0"),
                ("MASTER_ADDR", "127.0.0.1"),
                ("MASTER_PORT", "29500"),
            ],
            "WARPWEAVE_JOB_TOKEN",
        ),
        (
            &[("SLURM_NTASKS", "2"), ("SLURM_STEP_ID", "0")],
            "SLURM_PROCID, SLURM_LOCALID",
        ),
        (&[("WARPWEAVE_TIMEOUT", "soon")], "WARPWEAVE_TIMEOUT"),
    ];
    for (vars, named) in cases {
        let why = why(vars);
        assert!(why.contains(named), "{why} should name {named}");
    }
}

#[test]
fn each_variable_of_each_launcher_is_named_where_it_is_missing_or_no_number() {
    let launchers = [
        ["RANK", "WORLD_SIZE", "LOCAL_RANK"],
        [
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
        ],
        ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"],
        ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"],
    ];
    for names in launchers {
        let whole = [(names[0], "0"), (names[1], "2"), (names[2], "0")];
        let step = [("SLURM_STEP_ID", "0")];
        let step = &step[..usize::from(names[0].starts_with("SLURM"))];
        for (place, name) in names.into_iter().enumerate() {
            let mut vars = [&whole[..], step].concat();
            vars[place].1 = "two";
            let wrong = why(&vars);
            assert!(wrong.contains(&format!("{name} is `two`")), "{wrong}");
            vars.remove(place);
            let missing = why(&vars);
            let named = missing.contains("missing") && missing.contains(name);
            assert!(named, "{missing} should name {name}");
        }
    }
}

#[test]
fn what_is_wrong_is_named() {
    assert!(why(&[("PMI_RANK", "x"), ("PMI_SIZE", "2")]).contains("PMI_RANK is `x`"));
    assert!(why(&[("RANK", "2"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")]).contains("RANK = 2"));
    assert!(why(&[("RANK", "0"), ("WORLD_SIZE", "99999"), ("LOCAL_RANK", "0")]).contains("4096"));
}

#[test]
fn what_contradicts_itself_is_named() {
    type Case = (
        &'static [(&'static str, &'static str)],
        &'static [&'static str],
    );
    let cases: [Case; 5] = [
        (
            &[
                ("OMPI_COMM_WORLD_RANK", "1"),
                ("OMPI_COMM_WORLD_SIZE", "2"),
                ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
                ("PMIX_RANK", "0"),
            ],
            &["OMPI_COMM_WORLD_RANK = 1", "PMIX_RANK = 0"],
        ),
        (
            &[
                ("RANK", "1"),
                ("WORLD_SIZE", "4"),
                ("LOCAL_RANK", "3"),
                ("LOCAL_WORLD_SIZE", "2"),
            ],
            &["LOCAL_RANK = 3", "LOCAL_WORLD_SIZE = 2"],
        ),
        (
            &[
                ("PMI_RANK", "1"),
                ("PMI_SIZE", "2"),
                ("MPI_LOCALRANKID", "1"),
                ("MPI_LOCALNRANKS", "3"),
            ],
            &["PMI_SIZE = 2", "MPI_LOCALNRANKS = 3"],
        ),
        (
            &[("RANK", "0"), ("LOCAL_RANK", "0")],
            &["torchrun", "WORLD_SIZE"],
        ),
        (
            &[
                ("SLURM_STEP_ID", "0"),
                ("SLURM_PROCID", "0"),
                ("SLURM_STEP_NUM_TASKS", "2"),
                ("SLURM_LOCALID", "0"),
                ("SLURM_STEP_NODELIST", "gpu[1-"),
            ],
            &["SLURM_STEP_NODELIST is `gpu[1-`"],
        ),
    ];
    for (vars, named) in cases {
        let why = why(vars);
        assert!(named.iter().all(|n| why.contains(n)), "{why}: {named:?}");
    }
}

#[test]
fn a_batch_script_is_no_rank_of_a_step() {
    let job = job(&[
        ("SLURM_JOB_ID", "7"),
        ("SLURM_PROCID", "0"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NTASKS", "16"),
    ])
    .unwrap();
    assert_eq!((job.launcher(), job.world()), (Launcher::Alone, 1));
}

#[test]
fn slurm_and_open_mpi_need_no_address() {
    let slurm = |nodes: &str, list: &str, job_id: &str| {
        job(&[
            ("SLURM_JOB_ID", job_id),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "8"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_STEP_NUM_NODES", nodes),
            ("SLURM_STEP_NODELIST", list),
        ])
        .unwrap()
    };
    let of = |job: &Job| {
        let (host, port) = job.store().rsplit_once(':').unwrap();
        let port: u16 = port.parse().unwrap();
        assert!((20000..30000).contains(&port));
        (host.to_owned(), port)
    };
    let (host, port) = of(&slurm("2", "gpu[007-012,020],login1", "77"));
    assert_eq!(host, "gpu007");
    assert_eq!(of(&slurm("1", "gpu3", "77")), ("127.0.0.1".into(), port));
    assert_ne!(of(&slurm("1", "gpu3", "78")).1, port);
    assert!(!slurm("1", "gpu3", "77").token().is_secret());

    let mpi = |local: &str| {
        job(&[
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", local),
            ("PMIX_NAMESPACE", "prterun-node0-77@1"),
        ])
    };
    assert_eq!(of(&mpi("4").unwrap()).0, "127.0.0.1");
    let elsewhere = mpi("2").unwrap_err().to_string();
    assert!(elsewhere.contains("WARPWEAVE_STORE"), "{elsewhere}");
}

#[test]
fn a_group_that_is_started_again_has_another_token() {
    let run = |count: &str| {
        job(&[
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "0"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_RUN_ID", "run"),
            ("TORCHELASTIC_RESTART_COUNT", count),
        ])
        .unwrap()
    };
    assert_ne!(run("0").token().as_bytes(), run("1").token().as_bytes());
}

#[test]
fn jobs_of_torchruns_default_run_id_are_told_apart_by_where_it_listens() {
    let run = |port: &str, count: &str| {
        job(&[
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "0"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", port),
            ("TORCHELASTIC_RUN_ID", "none"),
            ("TORCHELASTIC_RESTART_COUNT", count),
        ])
        .unwrap()
    };
    let token = |port, count| run(port, count).token().as_bytes().to_vec();
    assert_eq!(token("29500", "0"), token("29500", "0"));
    assert_ne!(token("29500", "0"), token("29600", "0"));
    assert_ne!(token("29500", "0"), token("29500", "1"));
    assert!(!run("29500", "0").token().is_secret());
    // With a store elsewhere, nothing tells them apart.
    let why = why(&[
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "0"),
        ("WARPWEAVE_STORE", "127.0.0.1:4000"),
        ("TORCHELASTIC_RUN_ID", "none"),
        ("TORCHELASTIC_RESTART_COUNT", "0"),
    ]);
    assert!(why.contains("WARPWEAVE_JOB_TOKEN"), "{why}");
}

#[test]
fn pmi_inside_slurm_takes_its_local_rank_from_there() {
    let job = job(&[
        ("PMI_RANK", "3"),
        ("PMI_SIZE", "4"),
        ("SLURM_LOCALID", "1"),
        ("SLURM_STEP_ID", "0"),
        ("WARPWEAVE_STORE", "node:4000"),
    ])
    .unwrap();
    assert_eq!((job.launcher(), job.local_rank()), (Launcher::Mpich, 1));
}
