//! The process stands still for longer than every deadline it keeps (a stopped virtual machine, a laptop's lid), and goes
//! on as if nothing had been.

use crate::faults::until;
use crate::ledger::{Fate, Ledger, OPEN_BUDGETS};
use crate::relay::Relay;
use drover_client::wire::frame::Frame;
use drover_client::{Cursor, Event, SealedEnvelope};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;

/// Longer than the longest deadline nobody can configure: ten seconds, of a reader that stalls.
const STOPPED: Duration = Duration::from_secs(11);

/// Everything that was sent meanwhile is acknowledged, subscribers get everything once, and the store isn't taken for
/// stuck.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_stood_still_goes_on() {
    let mut settings = OPEN_BUDGETS.to_vec();
    settings.extend([
        ("WEALD_RELAY_HANDSHAKE_TIMEOUT_MS", "2000"),
        ("WEALD_RELAY_IDLE_TIMEOUT_MS", "2000"),
    ]);
    let relay = Relay::start(&settings);
    let mut ledger = Ledger::open(&relay).await;
    assert_eq!(ledger.send(&relay, 100).await, Fate::Acknowledged);
    let mut writer = ledger.connect(&relay).await.unwrap();
    let store = std::sync::Arc::new(drover_client::MemoryStore::new());
    let reader = drover_client::Client::builder(relay.endpoint(), ledger.device.clone())
        .groups([ledger.root])
        .store(store.clone())
        .start()
        .unwrap();
    let mut events = reader.subscribe(ledger.root, Cursor::Stored).await.unwrap();
    while events.next().await.unwrap() != Event::CaughtUp {}

    let pid = Pid::from_child(&relay.child);
    kill_process(pid, Signal::STOP).unwrap();
    let mut sent = Vec::new();
    for n in 0..50u8 {
        let envelope = SealedEnvelope::new(ledger.root, 1, vec![n; 200]).unwrap();
        let bytes = envelope.encode();
        writer.send(&Frame::Send { envelope: &bytes }).await.unwrap();
        sent.push(envelope);
    }
    tokio::time::sleep(STOPPED).await;
    kill_process(pid, Signal::CONT).unwrap();

    let mut acknowledged = 0;
    while acknowledged < sent.len() {
        let incoming = writer
            .recv()
            .await
            .expect("a connection with work under way stays");
        match incoming.frame().unwrap() {
            Frame::SendAck { hash, .. } => {
                assert_eq!(hash, sent[acknowledged].hash());
                acknowledged += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    for envelope in &sent {
        let got = loop {
            if let Event::Envelope(got) = events.next().await.unwrap() {
                break got;
            }
        };
        assert_eq!(got.hash(), envelope.hash(), "in order, each once");
    }
    until("readiness says yes", || {
        relay.private("/readyz").starts_with("HTTP/1.1 200")
    })
    .await;
    assert_eq!(ledger.send(&relay, 100).await, Fate::Acknowledged);
    ledger.check(&relay).await;
}
