//! Too few open files: clients are turned away before the store lacks one, a process that could not keep its store alive
//! does not start, and one that is refused a file after all loses nothing.

use crate::faults::{Faults, until};
use crate::ledger::{Fate, Ledger, OPEN_BUDGETS};
use crate::relay::Relay;
use std::net::TcpStream;
use std::time::Instant;

/// Far more sockets than files, while tables are written and merged.
#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_sockets_takes_no_file_from_the_store() {
    let mut settings = OPEN_BUDGETS.to_vec();
    settings.push(("WEALD_RELAY_MAX_CONNECTIONS", "100000"));
    let mut relay = Relay::start(&settings);
    let mut ledger = Ledger::open(&relay).await;
    relay.kill_and_restart_in("ulimit -n 256");
    assert_eq!(ledger.send(&relay, 100).await, Fate::Acknowledged);
    let address = relay.address();
    let flood: Vec<_> = (0..600)
        .filter_map(|_| TcpStream::connect(&address).ok())
        .collect();
    assert!(flood.len() > 200);
    until("sockets are turned away", || {
        relay.metric("weald_relay_accepts_total{result=\"no_descriptor\"}") > 0
    })
    .await;
    // Enough for tables to be written twice.
    for _ in 0..90 {
        assert_eq!(ledger.send(&relay, 900_000).await, Fate::Acknowledged);
    }
    assert!(relay.child.try_wait().unwrap().is_none());
    assert!(relay.private("/readyz").starts_with("HTTP/1.1 200"));
    drop(flood);
    // Their places are free again.
    let end = Instant::now() + crate::faults::PATIENCE;
    while ledger.connect(&relay).await.is_err() {
        assert!(Instant::now() < end, "nobody is let in after the flood");
    }
    ledger.check(&relay).await;
}

/// Refused clearly where there are so few that the store could not live.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_with_hardly_any_files_is_refused_and_says_why() {
    let mut relay = Relay::start(&[]);
    for limit in [12, 20, 28, 40, 64, 127] {
        let (code, said) = relay.kill_and_fail_to_start_in(&format!("ulimit -n {limit}"));
        assert_eq!(code, Some(69), "ulimit -n {limit}: {said}");
        assert!(
            said.contains("open files") && said.contains("ulimit -n"),
            "{said}"
        );
        assert_eq!(said.trim().lines().count(), 1, "{said}");
    }
    relay.kill_and_restart_in("ulimit -n 128");
}

/// The log is refused a file in the middle of its work: it takes nothing until it gets one, and loses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_files_refuses_and_loses_nothing() {
    let faults = Faults::new();
    let mut relay = faults.start(&OPEN_BUDGETS);
    let mut ledger = Ledger::open(&relay).await;
    faults.begin("open EMFILE in /store/log/");
    let end = Instant::now() + crate::faults::PATIENCE;
    while ledger.send(&relay, 900_000).await == Fate::Acknowledged {
        assert!(Instant::now() < end, "it never needed a file");
    }
    assert!(faults.has_hit());
    assert!(relay.child.try_wait().unwrap().is_none());
    faults.end();
    relay.kill_and_restart();
    ledger.check(&relay).await;
    ledger.send_until_acknowledged(&relay).await;
}
