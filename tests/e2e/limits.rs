//! The relay at the limits the system sets it: it raises what it may raise. What it does where it can't go on stands in
//! `tests/chaos`.

use crate::relay::{PROGRAM, free_address, settings};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Operators rarely know the soft limit; where the hard one is too low as well, they are told both numbers.
#[test]
fn open_files_are_raised_and_too_few_are_told() {
    for (limits, raised, warned) in [
        ("ulimit -Sn 256; ulimit -Hn 2048", "2048", false),
        ("ulimit -n 600", "600", true),
    ] {
        let data = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        let script = format!("{limits}; exec \"$0\" serve");
        command.args(["-c", &script, PROGRAM]).stdout(Stdio::piped());
        settings(&mut command, data.path(), &free_address(), &free_address(), &[]);
        let mut child = command.spawn().unwrap();
        let mut said = Vec::new();
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            said.push(line.unwrap());
            if said
                .last()
                .is_some_and(|line| line.contains("wealdrelay listening"))
            {
                break;
            }
        }
        let now = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let soft = now
            .lines()
            .find(|line| line.starts_with("Max open files"))
            .and_then(|line| line.split_whitespace().nth(3));
        assert_eq!(soft, Some(raised));
        let warning = said
            .iter()
            .find(|line| line.contains("WEALD_RELAY_MAX_CONNECTIONS"));
        assert_eq!(warning.is_some(), warned, "{said:?}");
        if let Some(line) = warning {
            assert!(
                line.contains("600") && line.contains("256") && line.contains("512"),
                "{line}"
            );
        }
    }
}
