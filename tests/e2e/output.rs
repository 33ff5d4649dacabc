//! What becomes of a command that can't print: it must not look as if it had succeeded. One whose reader has seen enough
//! ends quietly.

use crate::relay::{PROGRAM, Relay, banner};
use std::fs::File;
use std::process::{Command, Output, Stdio};

/// Runs a command whose standard output is a disk without room.
fn to_full(mut command: Command) -> Output {
    let full = File::options().write(true).open("/dev/full").unwrap();
    command.stdout(full).output().unwrap()
}

/// Runs a command whose reader is gone before it begins.
fn to_nobody(mut command: Command) -> Output {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    command.stdout(writer).stderr(Stdio::piped()).output().unwrap()
}

fn assert_ends(done: &Output, code: i32, mention: &str) {
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(code), "{said}");
    assert!(said.contains(mention) && !said.contains("panicked"), "{said}");
    assert_eq!(said.is_empty(), mention.is_empty(), "{said}");
}

#[test]
fn a_command_that_can_not_print_fails() {
    let relay = Relay::start(&[]);
    let command = |arguments: &[&str]| relay.prepare(arguments);
    for arguments in [
        &["--help"][..],
        &["--check-config"],
        &["status"],
        &["workspace", "list"],
    ] {
        assert_ends(&to_full(command(arguments)), 74, "No space left");
        assert_ends(&to_nobody(command(arguments)), 0, "");
    }
    // The code of an invite is shown once: that it was lost is worth telling.
    for (name, done) in [
        ("a.example", to_full as fn(Command) -> Output),
        ("b.example", to_nobody),
    ] {
        assert_ends(
            &done(command(&["workspace", "new", name])),
            74,
            "its invite is lost",
        );
    }
    let url = relay.url().to_string();
    let conform = |link: &str, code: &str| {
        command(&[
            "conform",
            &url,
            "--invite",
            link,
            code,
            "--only",
            "connect.selects-version",
        ])
    };
    assert_ends(&to_full(conform(&relay.link, &relay.code)), 74, "No space left");
    let fresh = relay.command(&["workspace", "new", "c.example"]);
    let fresh: Vec<String> = fresh.lines().map(str::to_owned).collect();
    let fresh = banner(&fresh).unwrap();
    assert_ends(&to_nobody(conform(&fresh.link, &fresh.code)), 0, "");
}

/// Those that bring a relay of their own.
#[test]
fn a_demonstration_that_nobody_can_see_ends() {
    let demo = || {
        let mut command = Command::new(PROGRAM);
        command.arg("demo");
        command
    };
    assert_ends(&to_full(demo()), 74, "No space left");
    assert_ends(&to_nobody(demo()), 0, "");
}
