//! A sync fails. What the disk holds then, nobody can tell from inside: not one acknowledgement more, the process ends
//! with 69, and the next start writes what it finds once more before it believes in it.

use crate::faults::{Faults, until};
use crate::ledger::{Fate, Ledger, OPEN_BUDGETS};
use std::time::Instant;

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failed_sync_nothing_is_acknowledged() {
    for words in [
        "sync EIO in /store/",
        // The second one would succeed, and mean nothing.
        "sync EIO times 1 in /store/",
        "sync EIO skip 5 times 1 in .seg",
        "sync ENOSPC times 1 in .seg",
        "sync EDQUOT times 1 in .seg",
    ] {
        let faults = Faults::new();
        let mut relay = faults.start(&OPEN_BUDGETS);
        let mut ledger = Ledger::open(&relay).await;
        for _ in 0..10 {
            assert_eq!(ledger.send(&relay, 5_000).await, Fate::Acknowledged);
        }
        faults.begin(words);
        let end = Instant::now() + crate::faults::PATIENCE;
        let mut refused = 0;
        let ended = loop {
            // Looked at before the SEND: what is acknowledged then was synced before the fault or not at all.
            let hit = faults.has_hit();
            let fate = ledger.send(&relay, 5_000).await;
            if hit {
                assert_ne!(
                    fate,
                    Fate::Acknowledged,
                    "{words}: acknowledged after a failed sync"
                );
                refused += 1;
            }
            if let Some(ended) = relay.child.try_wait().unwrap() {
                break ended;
            }
            assert!(Instant::now() < end, "{words}: it lingers");
        };
        assert!(faults.has_hit() && refused > 0, "{words}");
        assert_eq!(ended.code(), Some(69), "{words}");
        faults.end();
        relay.kill_and_restart();
        ledger.check(&relay).await;
        ledger.send_until_acknowledged(&relay).await;
        ledger.check(&relay).await;
    }
}

/// As long as syncs fail no start succeeds, since what the last one could not sync has to be.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_can_not_sync_is_refused_and_says_why() {
    let faults = Faults::new();
    let mut relay = faults.start(&OPEN_BUDGETS);
    let mut ledger = Ledger::open(&relay).await;
    assert_eq!(ledger.send(&relay, 5_000).await, Fate::Acknowledged);
    faults.begin("sync EIO in .seg");
    while ledger.send(&relay, 5_000).await == Fate::Acknowledged {}
    until("the end of the process", || {
        relay.child.try_wait().unwrap().is_some()
    })
    .await;
    let (code, said) = relay.kill_and_fail_to_start();
    assert_eq!(code, Some(69), "{said}");
    assert!(said.contains(".seg") && said.contains("os error 5"), "{said}");
    faults.end();
    relay.kill_and_restart();
    ledger.check(&relay).await;
    ledger.send_until_acknowledged(&relay).await;
}
