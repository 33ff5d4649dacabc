//! The relay at the limits the system sets it: it raises what it may raise, and ends where it can't go on, so that
//! whoever started it starts it again.

use crate::relay::{PROGRAM, Relay, free_address, settings};
use drover_client::{Connection, Hello, SealedEnvelope};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Waits for the end of a process that is about to end; its exit code.
fn exit_code(child: &mut Child) -> Option<i32> {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        assert!(Instant::now() < end, "it lingers");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A write that fails is no reason to die of a signal, nor to stay: what is in the journal only a new start can tell.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_store_ends_the_relay_with_69_and_the_next_start_serves() {
    let mut relay = Relay::start(&[("WEALD_RELAY_GROUP_BACKLOG_BYTES", "0")]);
    let (workspace, founder) = relay.found(&[]).await;
    // The second start cuts the journal to what is used; no file may then grow beyond 4 MiB (blocks of 512 B).
    relay.kill_and_restart();
    relay.kill_and_restart_in("ulimit -f 8192");
    let hello = Hello::groups([workspace.root()]);
    let mut connection = Connection::connect(&relay.endpoint(), &founder, &hello)
        .await
        .unwrap();
    let mut acknowledged = Vec::new();
    loop {
        let ct = [acknowledged.len().to_be_bytes().to_vec(), vec![7; 200_000]].concat();
        let envelope = SealedEnvelope::new(workspace.root(), 1, ct).unwrap();
        match connection.send_envelope(&envelope).await {
            Ok(stored) => acknowledged.push((envelope, stored.seq)),
            Err(_) => break,
        }
        assert!(acknowledged.len() < 200, "the limit was none");
    }
    assert_eq!(exit_code(&mut relay.child), Some(69));

    relay.kill_and_restart();
    let mut connection = Connection::connect(&relay.endpoint(), &founder, &hello)
        .await
        .unwrap();
    for (envelope, seq) in &acknowledged {
        assert_eq!(connection.send_envelope(envelope).await.unwrap().seq, *seq);
    }
    let new = SealedEnvelope::new(workspace.root(), 1, b"it goes on".to_vec()).unwrap();
    connection.send_envelope(&new).await.unwrap();
}

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
