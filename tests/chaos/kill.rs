//! SIGKILL where the end-to-end tests don't reach: while a start recovers, and under control operations.

use crate::faults::Faults;
use crate::ledger::{Fate, Ledger, OPEN_BUDGETS};
use crate::relay::{PROGRAM, Relay, settings};
use drover_client::Identity;
use drover_client::keys::{WrapStored, store_wrap};
use drover_client::wire::id::WrapTag;
use drover_client::wire::wrap::Wrap;
use std::process::{Command, Stdio};
use std::time::Duration;

const KILLS: usize = 20;

/// A random moment of the next so many milliseconds.
fn moment(within_ms: u64) -> Duration {
    let random = u64::from(Identity::generate().public().0[0]);
    Duration::from_micros(random * within_ms * 1_000 / 256)
}

/// Starts that are killed before they are through: recovery itself may be interrupted as often as it likes. The last
/// commit was torn by a write that failed halfway, so that each start has something to cut off.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_may_be_killed_at_any_moment() {
    let faults = Faults::new();
    let mut relay = faults.start(&OPEN_BUDGETS);
    let mut ledger = Ledger::open(&relay).await;
    for _ in 0..100 {
        assert_eq!(ledger.send(&relay, 50_000).await, Fate::Acknowledged);
    }
    for round in 0..KILLS {
        faults.begin("write,grow ENOSPC half in .seg");
        while ledger.send(&relay, 20_000).await == Fate::Acknowledged {}
        relay.kill();
        faults.end();
        for _ in 0..3 {
            let mut start = Command::new(PROGRAM);
            start.arg("serve").stdout(Stdio::null());
            let (listen, private) = (crate::relay::free_address(), crate::relay::free_address());
            settings(&mut start, relay.data.path(), &listen, &private, &[]);
            let mut start = start.spawn().unwrap();
            tokio::time::sleep(moment(250)).await;
            start.kill().unwrap();
            start.wait().unwrap();
        }
        relay.restart();
        ledger.send_until_acknowledged(&relay).await;
        if round % 5 == 4 {
            ledger.check(&relay).await;
        }
    }
    ledger.check(&relay).await;
}

/// What was acknowledged of the control side survives as well: each stored wrap is at least as new as the last one
/// acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_wraps_survive_kills() {
    let mut relay = Relay::start(&OPEN_BUDGETS);
    let ledger = Ledger::open(&relay).await;
    let mut acknowledged = [0u64; 8];
    let mut epoch = 0;
    for _ in 0..KILLS {
        let end = std::time::Instant::now() + moment(200);
        // Wraps of one connection have a budget a minute.
        let mut connection = ledger.connect(&relay).await.unwrap();
        let mut stored = 0;
        while std::time::Instant::now() < end && stored < 25 {
            epoch += 1;
            stored += 1;
            let at = (epoch % 8) as usize;
            let wrap = Wrap {
                group: ledger.root,
                epoch,
                tag: WrapTag([at as u8; 32]),
                ct: &[9; 3_000],
            };
            assert_eq!(store_wrap(&mut connection, &wrap).await.unwrap(), WrapStored::Now);
            acknowledged[at] = epoch;
        }
        // One more is under way when it dies.
        let child = &mut relay.child;
        let wrap = Wrap {
            group: ledger.root,
            epoch: epoch + 1,
            tag: WrapTag([((epoch + 1) % 8) as u8; 32]),
            ct: &[9; 3_000],
        };
        epoch += 1;
        let (last, ()) = tokio::join!(store_wrap(&mut connection, &wrap), async {
            tokio::time::sleep(moment(3)).await;
            child.kill().unwrap();
        });
        if last.is_ok() {
            acknowledged[(epoch % 8) as usize] = epoch;
        }
        relay.kill_and_restart();
        let mut connection = ledger.connect(&relay).await.unwrap();
        for (at, &newest) in acknowledged.iter().enumerate().filter(|(_, newest)| **newest > 0) {
            let wrap = Wrap {
                group: ledger.root,
                epoch: newest,
                tag: WrapTag([at as u8; 32]),
                ct: &[9; 3_000],
            };
            match store_wrap(&mut connection, &wrap).await.unwrap() {
                WrapStored::NotNewer(Some(stored)) => assert!(stored >= newest),
                other => panic!("the wrap of epoch {newest} was acknowledged: {other:?}"),
            }
        }
    }
}
