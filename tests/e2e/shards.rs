//! Several shards: workspaces are served side by side, and a connection accepted on the wrong shard moves once.

use crate::relay::{Relay, banner};
use drover_client::{Connection, Cursor, Event, Hello, SealedEnvelope};

async fn two_workspaces_at_once(settings: &[(&str, &str)]) {
    let relay = Relay::start(settings);
    let second: Vec<String> = relay
        .command(&["workspace", "new", "other.example"])
        .lines()
        .map(Into::into)
        .collect();
    let second = banner(&second).expect("a further workspace prints its invite");
    let ((one, anna), (two, boris)) = tokio::join!(relay.found(&[]), relay.found_with(&second, &[]));
    // Enough connections for both shards to have accepted some of each workspace.
    let mut open = Vec::new();
    for _ in 0..8 {
        for (workspace, device) in [(&one, &anna), (&two, &boris)] {
            let hello = Hello::groups([workspace.root()]);
            open.push(
                Connection::connect(&relay.endpoint(), device, &hello)
                    .await
                    .unwrap(),
            );
        }
    }
    for (workspace, device, text) in [(&one, &anna, "for one"), (&two, &boris, "for two")] {
        let ((writer, _), (reader, _)) = (relay.client(workspace, device), relay.client(workspace, device));
        let mut events = reader.subscribe(workspace.root(), Cursor::Stored).await.unwrap();
        let sent = SealedEnvelope::new(workspace.root(), 1, text.as_bytes().to_vec()).unwrap();
        writer.send(sent.clone()).await.unwrap();
        loop {
            if let Event::Envelope(got) = events.next().await.unwrap() {
                assert_eq!(got.hash(), sent.hash());
                break;
            }
        }
    }
    for connection in &mut open {
        connection.sync().await.unwrap(); // wherever it was accepted, it still works
    }
    let metrics = relay.private("/metrics");
    let moved: u64 = metrics
        .lines()
        .find_map(|line| line.strip_prefix("weald_relay_connections_migrated_total "))
        .expect("moves are counted")
        .trim()
        .parse()
        .unwrap();
    assert!(
        moved > 0,
        "no connection was accepted on another shard than its workspace's"
    );
    // Each connection moves at most once: 16 held open, and those of founding and the four clients.
    assert!(moved <= 26, "{moved} moves");
}

/// Two shards serve two workspaces at once.
#[tokio::test(flavor = "multi_thread")]
async fn two_shards_serve_two_workspaces_and_move_a_connection_once() {
    two_workspaces_at_once(&[("DROVER_SHARDS", "2")]).await;
}

/// The same with TLS: its state moves with the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_moves_with_its_tls_state() {
    two_workspaces_at_once(&[("DROVER_SHARDS", "2"), ("WEALD_RELAY_TLS", "dev")]).await;
}
