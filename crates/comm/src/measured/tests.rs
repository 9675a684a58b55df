//! Which files are read, and what a failed write leaves.

use super::*;
use crate::collective::Costs;

const COSTS: &str = "all-gather 2 push 4096=7.0\n";

/// A folder of a test, gone when it ends.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let name = format!("warpweave-measured-{test}-{}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn of(&self, devices: &[&str]) -> Measured {
        let devices = devices
            .iter()
            .map(|name| ((*name).into(), "CUDA 13.0".into()));
        Measured::at(self.0.clone(), &devices.collect::<Vec<_>>())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn costs(measured: &Measured) -> Option<Costs> {
    measured.read(Figures::Costs, str::parse)
}

#[test]
fn what_is_kept_is_found_on_the_same_machine_alone() {
    let folder = Folder::new("same");
    let two = folder.of(&["A", "B"]);
    assert_eq!(costs(&two), None);
    let path = two.write(Figures::Costs, COSTS).unwrap();
    assert!(path.starts_with(&folder.0));
    assert_eq!(costs(&folder.of(&["B", "A"])), Some(COSTS.parse().unwrap()));
    assert_eq!(costs(&folder.of(&["A"])), None);
    assert_eq!(costs(&folder.of(&["A", "A"])), None);
    assert_eq!(
        two.read(Figures::Machine, |text| Ok::<_, io::Error>(text.len())),
        None
    );
    // The name of the file is part of the format.
    assert!(
        path.ends_with("3c372a04cc3d10f9.costs.tsv"),
        "{}",
        path.display()
    );
}

#[test]
fn foreign_and_malformed_files_are_ignored() {
    let folder = Folder::new("foreign");
    let here = folder.of(&["A"]);
    let path = here.write(Figures::Costs, "all-gather two push\n").unwrap();
    assert_eq!(costs(&here), None, "malformed");
    fs::write(&path, format!("# measured on: 1 x B, CUDA 13.0\n{COSTS}")).unwrap();
    assert_eq!(costs(&here), None, "foreign");
    fs::write(&path, [0xff, 0xfe]).unwrap();
    assert_eq!(costs(&here), None, "no text");
    File::create(&path).unwrap().set_len(LARGEST + 1).unwrap();
    assert_eq!(costs(&here), None, "too long");
    here.write(Figures::Costs, COSTS).unwrap();
    assert!(costs(&here).is_some(), "and written anew");
}

/// It would be ignored, and the next write would begin anew.
#[test]
fn more_than_is_read_is_not_written() {
    let folder = Folder::new("large");
    let here = folder.of(&["A"]);
    here.write(Figures::Costs, COSTS).unwrap();
    let much = COSTS.repeat(LARGEST as usize / COSTS.len());
    let error = here.write(Figures::Costs, &much).unwrap_err().to_string();
    assert!(error.contains("remove the file"), "{error}");
    assert_eq!(costs(&here), Some(COSTS.parse().unwrap()));
}

#[test]
fn a_failed_write_leaves_what_was_there() {
    let folder = Folder::new("failed");
    let here = folder.of(&["A"]);
    let path = here.write(Figures::Costs, COSTS).unwrap();
    let full = replace(&path, |file| {
        file.write_all(b"half of it")?;
        Err(io::ErrorKind::StorageFull.into())
    });
    assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert!(costs(&here).is_some());
    assert_eq!(
        fs::read_dir(&folder.0).unwrap().count(),
        1,
        "no partial file"
    );
    // A file where the folder should be.
    let blocked = Measured::at(path, &[]);
    let error = blocked.write(Figures::Costs, COSTS).unwrap_err();
    assert!(matches!(error, CommError::NotKept { .. }), "{error}");
}

#[test]
fn the_folder_is_the_first_that_is_named() {
    let at = |kind, named: &[(&str, &str)]| {
        folder(kind, |name| {
            let found = named.iter().find(|(known, _)| *known == name)?;
            Some(found.1.into())
        })
    };
    let [own, xdg, home] = [
        (CACHE_DIR, "/own"),
        ("XDG_CACHE_HOME", "/xdg"),
        ("HOME", "/home/me"),
    ];
    use BackendKind::{Cuda, Host};
    for (kind, named, wanted) in [
        (Cuda, &[own, xdg, home][..], Some("/own")),
        (Cuda, &[xdg, home], Some("/xdg/warpweave")),
        (Cuda, &[home], Some("/home/me/.cache/warpweave")),
        (
            Cuda,
            &[(CACHE_DIR, ""), home],
            Some("/home/me/.cache/warpweave"),
        ),
        (
            Cuda,
            &[("XDG_CACHE_HOME", "relative"), home],
            Some("/home/me/.cache/warpweave"),
        ),
        (Cuda, &[], None),
        (Host, &[own], Some("/own")),
        (Host, &[xdg, home], None),
    ] {
        assert_eq!(
            at(kind, named),
            wanted.map(PathBuf::from),
            "{kind:?} {named:?}"
        );
    }
}
