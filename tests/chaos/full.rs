//! The disk takes no more: `retry/backpressure`, the connection and reading stay, readiness says 503; once there is room
//! again the same process goes on.

use crate::faults::{Faults, until};
use crate::ledger::{Fate, Ledger, OPEN_BUDGETS};
use crate::relay::Relay;
use drover_client::wire::drop::{Answer, Request};
use drover_client::wire::id::{PublicKey, Signature};
use drover_client::wire::retention::{Control, Policy};
use drover_client::{Identity, retention};
use ed25519_dalek::SigningKey;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

fn is_ready(relay: &Relay) -> bool {
    relay.private("/readyz").starts_with("HTTP/1.1 200")
}

/// Sends until one isn't acknowledged.
async fn send_until_refused(ledger: &mut Ledger, relay: &Relay, bytes: usize) -> Fate {
    for _ in 0..2_000 {
        let fate = ledger.send(relay, bytes).await;
        if fate != Fate::Acknowledged {
            return fate;
        }
    }
    panic!("the disk was never full");
}

/// What holds while the disk is full, and after there is room again.
async fn lasts_and_heals(relay: &mut Relay, ledger: &mut Ledger, make_room: impl FnOnce(&Relay)) {
    until("readiness says no", || !is_ready(relay)).await;
    assert!(relay.private("/healthz").starts_with("HTTP/1.1 200"));
    assert_eq!(ledger.send(relay, 100_000).await, Fate::Backpressure);
    ledger.check(relay).await;
    assert!(!is_ready(relay));
    make_room(relay);
    // Nobody writes: it notices by itself.
    until("readiness says yes", || is_ready(relay)).await;
    ledger.send_until_acknowledged(relay).await;
    assert!(
        relay.child.try_wait().unwrap().is_none(),
        "it is the same process"
    );
    ledger.check(relay).await;
    relay.kill_and_restart();
    ledger.check(relay).await;
}

/// The system refuses, before anything is written or halfway through.
#[tokio::test(flavor = "multi_thread")]
async fn writes_that_fail_are_refused_and_the_relay_heals() {
    for words in [
        "write ENOSPC in /store/",
        "write ENOSPC half in /store/",
        "write EDQUOT half in .seg",
        "write EIO half in .seg",
    ] {
        let faults = Faults::new();
        let mut relay = faults.start(&OPEN_BUDGETS);
        let mut ledger = Ledger::open(&relay).await;
        for _ in 0..10 {
            assert_eq!(ledger.send(&relay, 20_000).await, Fate::Acknowledged);
        }
        faults.begin(words);
        let fate = send_until_refused(&mut ledger, &relay, 20_000).await;
        assert_eq!(fate, Fate::Backpressure, "{words}");
        assert!(faults.has_hit());
        lasts_and_heals(&mut relay, &mut ledger, |_| faults.end()).await;
    }
}

/// A single write fails, in the middle of a load.
#[tokio::test(flavor = "multi_thread")]
async fn one_write_that_fails_costs_one_refusal() {
    for nth in [0, 1, 2, 7] {
        let faults = Faults::new();
        let mut relay = faults.start(&OPEN_BUDGETS);
        let mut ledger = Ledger::open(&relay).await;
        faults.begin(&format!("write ENOSPC skip {nth} times 1 half in .seg"));
        assert_eq!(
            send_until_refused(&mut ledger, &relay, 20_000).await,
            Fate::Backpressure
        );
        ledger.send_until_acknowledged(&relay).await;
        until("readiness says yes", || is_ready(&relay)).await;
        assert!(relay.child.try_wait().unwrap().is_none());
        ledger.check(&relay).await;
        relay.kill_and_restart();
        ledger.check(&relay).await;
    }
}

/// Not even what a failed write has left can be cut off: the connection may end, but nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_cut_off_yet_is_cut_off_later() {
    let faults = Faults::new();
    let mut relay = faults.start(&OPEN_BUDGETS);
    let mut ledger = Ledger::open(&relay).await;
    assert_eq!(ledger.send(&relay, 20_000).await, Fate::Acknowledged);
    faults.begin("write,grow ENOSPC half in /store/");
    let fate = send_until_refused(&mut ledger, &relay, 20_000).await;
    assert_ne!(fate, Fate::Acknowledged);
    until("readiness says no", || !is_ready(&relay)).await;
    assert_ne!(ledger.send(&relay, 100).await, Fate::Acknowledged);
    faults.end();
    until("readiness says yes", || is_ready(&relay)).await;
    ledger.send_until_acknowledged(&relay).await;
    assert!(relay.child.try_wait().unwrap().is_none());
    ledger.check(&relay).await;
    relay.kill_and_restart();
    ledger.check(&relay).await;
}

/// `ulimit -f`, put on the running process and taken off again. A limit that leaves room for a short segment costs a
/// refusal; one that does not lasts until it is taken off.
#[tokio::test(flavor = "multi_thread")]
async fn the_limit_on_file_sizes_is_no_signal_and_heals() {
    let mut relay = Relay::start(&OPEN_BUDGETS);
    let mut ledger = Ledger::open(&relay).await;
    // So that there is a segment to write to.
    assert_eq!(ledger.send(&relay, 100).await, Fate::Acknowledged);
    let pid = Pid::from_child(&relay.child);
    let limit = |current| {
        let limit = Rlimit {
            current,
            maximum: None,
        };
        prlimit(Some(pid), Resource::Fsize, limit).unwrap();
    };
    limit(Some(2 << 20));
    let fate = send_until_refused(&mut ledger, &relay, 100_000).await;
    assert_eq!(fate, Fate::Backpressure);
    assert!(ledger.acknowledged() > 5);
    until("readiness says yes", || is_ready(&relay)).await;
    ledger.send_until_acknowledged(&relay).await;
    ledger.check(&relay).await;
    limit(Some(64 << 10));
    let fate = send_until_refused(&mut ledger, &relay, 100_000).await;
    assert_eq!(fate, Fate::Backpressure);
    lasts_and_heals(&mut relay, &mut ledger, |_| limit(None)).await;
}

/// A file system of its own.
struct Mounted {
    place: TempDir,
}

impl Mounted {
    /// `None` where this test may not mount one.
    fn tmpfs(size: &str) -> Option<Self> {
        let place = tempfile::tempdir().unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(place.path())
            .output();
        if mount.is_ok_and(|mount| mount.status.success()) {
            return Some(Self { place });
        }
        println!("skipped: this user may not mount a tmpfs; writes that fail are injected instead");
        None
    }

    fn database(&self) -> String {
        format!("file://{}/store", self.place.path().display())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.place.path()).status();
    }
}

/// A log that has filled its disk: a DROP is taken, and what it deletes makes room for SENDs, in the same process.
#[tokio::test(flavor = "multi_thread")]
async fn a_drop_makes_room_on_a_full_disk() {
    let Some(mounted) = Mounted::tmpfs("520m") else {
        return;
    };
    let database = mounted.database();
    let mut settings = OPEN_BUDGETS.to_vec();
    settings.push(("WEALD_RELAY_DATABASE_URL", &database));
    let mut relay = Relay::start(&settings);
    let (mut workspace, founder) = relay.found(&[]).await;
    let key = SigningKey::from_bytes(&founder.seed());
    let mut ledger = Ledger::of(workspace.root(), founder.clone());
    let mut keeper = ledger.connect(&relay).await.unwrap();
    let sig = Signature([0; 64]);
    let control = Control {
        group: ledger.root,
        epoch: 0,
        verifier: PublicKey(key.verifying_key().to_bytes()),
        prev: None,
        sig,
    }
    .signed(&key);
    retention::publish_control(&mut keeper, &control).await.unwrap();
    // Two authorizers need no delay.
    let second = Identity::generate();
    let mut draft = workspace.draft();
    draft.add_authorizer(&second.public());
    let set = draft.sign(&founder).unwrap();
    workspace.publish(&mut keeper, set).await.unwrap();
    let policy = Policy {
        group: ledger.root,
        version: 1,
        media_after_days: 30,
        text_after_days: 0,
        not_before_s: 1,
        authorizers: vec![control.verifier, second.public()],
        sigs: vec![],
    }
    .signed(&key)
    .signed(&SigningKey::from_bytes(&second.seed()));
    retention::publish_policy(&mut keeper, &policy).await.unwrap();

    let fate = send_until_refused(&mut ledger, &relay, 250_000).await;
    assert_eq!(fate, Fate::Backpressure);
    until("readiness says no", || !is_ready(&relay)).await;
    let instruction = Request {
        group: ledger.root,
        checkpoint: ledger.newest().unwrap().hash(),
        snapshots: vec![],
        epoch: 0,
        policy_version: Some(1),
        destruction_digest: None,
        sig,
    }
    .signed(&key);
    let answer = retention::drop_before(&mut keeper, &instruction).await.unwrap();
    let expected = ledger.keep_newest();
    assert!(
        matches!(answer, Answer::Ran { deleted, kept: 0, .. } if deleted == expected),
        "{answer:?}, {expected} were acknowledged"
    );
    until("readiness says yes", || is_ready(&relay)).await;
    for _ in 0..100 {
        ledger.send_until_acknowledged(&relay).await;
    }
    assert!(relay.child.try_wait().unwrap().is_none());
    ledger.check(&relay).await;
    relay.kill_and_restart();
    ledger.check(&relay).await;
    drop((relay, mounted));
}

/// A real file system that is really full, where this test may mount one.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_file_system_is_backpressure_and_heals() {
    let Some(mounted) = Mounted::tmpfs("300m") else {
        return;
    };
    let database = mounted.database();
    let mut settings = OPEN_BUDGETS.to_vec();
    settings.push(("WEALD_RELAY_DATABASE_URL", &database));
    let mut relay = Relay::start(&settings);
    let mut ledger = Ledger::open(&relay).await;
    assert_eq!(ledger.send(&relay, 1_000).await, Fate::Acknowledged);
    // Somebody else fills it to the last block.
    let filler = mounted.place.path().join("filler");
    let filled = Command::new("dd")
        .args(["if=/dev/zero", "bs=1M"])
        .arg(format!("of={}", filler.display()))
        .output()
        .unwrap();
    assert!(!filled.status.success(), "it was not full");
    let fate = send_until_refused(&mut ledger, &relay, 100_000).await;
    assert_eq!(fate, Fate::Backpressure);
    lasts_and_heals(&mut relay, &mut ledger, |_| {
        std::fs::remove_file(&filler).unwrap();
    })
    .await;
    drop((relay, mounted));
}

/// A relay that starts on a full disk serves what it has, and says that it takes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_a_disk_that_takes_nothing_says_so() {
    let faults = Faults::new();
    let mut relay = faults.start(&OPEN_BUDGETS);
    let mut ledger = Ledger::open(&relay).await;
    assert_eq!(ledger.send(&relay, 1_000).await, Fate::Acknowledged);
    faults.begin("write ENOSPC in /");
    let (code, said) = relay.kill_and_fail_to_start();
    assert_eq!(code, Some(69), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
    assert_eq!(said.trim().lines().count(), 1, "{said}");
    faults.end();
    relay.kill_and_restart();
    ledger.check(&relay).await;
    ledger.send_until_acknowledged(&relay).await;
    tokio::time::timeout(Duration::from_secs(30), ledger.check(&relay))
        .await
        .unwrap();
}
