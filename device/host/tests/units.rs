// SPDX-License-Identifier: MIT OR Apache-2.0
//! The units of systemd in `ci/packaging/systemd`: systemd accepts them where it is installed, and the programs accept
//! the command lines in them.

use std::path::{Path, PathBuf};
use std::process::Command;

fn units() -> Vec<(PathBuf, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ci/packaging/systemd");
    let files = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
    let units = files.filter(|path| path.extension().is_some_and(|e| e == "service"));
    let units: Vec<_> = units.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect();
    assert_eq!(units.len(), 3, "{units:?}");
    units
}

/// The command line of a unit.
fn command(unit: &str) -> &str {
    unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/")).unwrap()
}

#[test]
fn systemd_accepts_the_units_and_finds_them_confined() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        println!("systemd-analyze is not installed: the units are not verified");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let analyze = |arguments: &[&str], unit: &Path| {
        let out = Command::new("systemd-analyze").args(arguments).arg(unit).output().unwrap();
        let said = [out.stdout, out.stderr].concat();
        (out.status.success(), String::from_utf8_lossy(&said).into_owned())
    };
    for (path, text) in units() {
        let name = path.file_name().unwrap().to_str().unwrap().replace("@.", "@0.");
        // The programs are not installed where this runs; a unit of a missing one is refused.
        let unit = dir.path().join(&name);
        let program = command(&text).split_whitespace().next().unwrap();
        std::fs::write(&unit, text.replace(&format!("/usr/bin/{program}"), "/bin/true")).unwrap();
        let (ok, said) = analyze(&["verify", "--man=no"], &unit);
        assert!(ok && !said.contains(&name), "{name}: {said}");
        // 0 is confined, 10 is not.
        let (ok, said) = analyze(&["security", "--offline=true", "--threshold=20"], &unit);
        assert!(ok, "{name}: {said}");
        // Both can fail.
        let wrong = text.replace("Type=notify", "Type=notifi").replace("NoNewPrivileges=yes", "");
        std::fs::write(&unit, wrong.replace("SystemCallFilter", "#").replace("Restrict", "#").replace("Protect", "#"))
            .unwrap();
        let (_, said) = analyze(&["verify", "--man=no"], &unit);
        assert!(said.contains("notifi"), "{name}: {said}");
        assert!(!analyze(&["security", "--offline=true", "--threshold=20"], &unit).0, "{name}");
    }
}

#[test]
fn the_programs_have_the_options_of_the_units() {
    let programs =
        [telegraphos_device::cli::command_line(), telegraphos_fabric::command_line(), telegraphos_host::command_line()];
    for (path, text) in units() {
        let line = command(&text).replace("$BOARDS", "-- --config b.toml");
        let words: Vec<&str> = line.split_whitespace().collect();
        let program = programs.iter().find(|program| program.get_name() == words[0]).unwrap();
        let parsed = program.clone().try_get_matches_from(&words);
        assert!(parsed.is_ok_and(|matches| matches.contains_id("config")), "{}: {line}", path.display());
    }
}
