//! The README's first command.

use crate::relay::PROGRAM;
use std::process::Command;

#[test]
fn the_demonstration_runs_and_the_relay_saw_no_plaintext() {
    let done = Command::new(PROGRAM).arg("demo").output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&done.stderr)
    );
    for step in ["1.", "2.", "3.", "4.", "5.", "6.", "7.", "8."] {
        assert!(
            said.lines().any(|line| line.starts_with(step)),
            "no step {step} in\n{said}"
        );
    }
    assert!(said.contains("finds it 0 times"), "{said}");
}
