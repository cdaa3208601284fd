//! The units that are shipped: systemd accepts them, and they fit the daemon.

mod daemon;

use std::path::{Path, PathBuf};
use std::process::Command;

use daemon::{Scratch, kadenced, model};

fn unit(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd").join(name)).unwrap()
}

/// The value of a key of a unit.
fn value(unit: &str, key: &str) -> String {
    let line = unit.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix('='));
    line.unwrap_or_else(|| panic!("no {key} in\n{unit}")).to_owned()
}

/// A folder with the units, which start the program that was built.
fn installed(scratch: &Scratch) -> PathBuf {
    for name in ["kadence.service", "kadence.socket", "kadence-user.service", "kadence-user.socket"] {
        let text = unit(name).replace("/usr/bin/kadenced", env!("CARGO_BIN_EXE_kadenced"));
        std::fs::write(scratch.path(name), text).unwrap();
    }
    scratch.0.clone()
}

fn systemd_analyze(arguments: &[&str], units: &[PathBuf]) -> Option<std::process::Output> {
    let output = Command::new("systemd-analyze").args(arguments).args(units).output();
    if output.is_err() {
        eprintln!("daemon_units: SKIPPED: there is no systemd-analyze");
    }
    output.ok()
}

#[test]
fn systemd_accepts_the_units() {
    let scratch = Scratch::new();
    let folder = installed(&scratch);
    for (manager, name) in [("--system", "kadence"), ("--user", "kadence-user")] {
        let units = ["service", "socket"].map(|kind| folder.join(format!("{name}.{kind}")));
        let Some(output) = systemd_analyze(&[manager, "verify", "--man=no"], &units) else { return };
        let said = String::from_utf8_lossy(&output.stderr);
        // It may have opinions about other units of the machine, and no manager to ask.
        let ours: Vec<&str> = said.lines().filter(|l| l.contains("kadence")).collect();
        assert!(ours.is_empty(), "{}", ours.join("\n"));
    }
}

#[test]
fn the_systems_daemon_is_shut_in() {
    let scratch = Scratch::new();
    let units = [installed(&scratch).join("kadence.service")];
    // In tenths; most services have 50 and more.
    let arguments = ["security", "--offline=yes", "--no-pager", "--threshold=10"];
    let Some(output) = systemd_analyze(&arguments, &units) else { return };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_units_and_the_daemon_mean_the_same() {
    let scratch = Scratch::new();
    for (service, socket, flags, variables) in [
        ("kadence.service", "kadence.socket", &[][..], &[][..]),
        ("kadence-user.service", "kadence-user.socket", &["--user"], &[("XDG_RUNTIME_DIR", "/run/user/7")]),
    ] {
        let (service, socket) = (unit(service), unit(socket));
        let output = kadenced(&scratch)
            .envs(variables.iter().copied())
            .args(flags)
            .args(["--config", "/dev/null", "--check-config", "--model", &model("k3-s-f16")])
            .output()
            .unwrap();
        let all = String::from_utf8(output.stdout).unwrap();
        let listens = value(&socket, "ListenStream").replace("%t", "/run/user/7");
        assert!(all.contains(&format!("socket = {listens:?}")), "{listens} isn't in\n{all}");
        let start = value(&service, "ExecStart");
        assert_eq!(start.split(' ').skip(1).collect::<Vec<_>>(), flags);
        // Users would become one user.
        assert!(!service.lines().any(|l| l.starts_with("PrivateUsers")));
        assert_eq!(value(&service, "Type"), "notify");
    }
}
