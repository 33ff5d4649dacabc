//! The client library against the program.

use crate::relay::Relay;
use drover_client::{Connection, Cursor, Event, Hello, Identity, MemoryStore, SealedEnvelope, Subscription};
use std::collections::BTreeSet;
use std::time::Duration;

async fn next(subscription: &mut Subscription) -> Event {
    tokio::time::timeout(Duration::from_secs(30), subscription.next())
        .await
        .expect("an event in time")
        .unwrap()
}

/// W02.8 from the client's side.
#[tokio::test(flavor = "multi_thread")]
async fn found_admit_send_and_receive() {
    let relay = Relay::start(&[]);
    let (mut workspace, founder) = relay.found(&[]).await;
    let phone = Identity::generate();
    let (mut laptop, _) = relay.client(&workspace, &founder);
    let mut draft = workspace.draft();
    draft.add(&phone.public());
    workspace
        .publish(&mut laptop, draft.sign(&founder).unwrap())
        .await
        .unwrap();

    let (phone, _) = relay.client(&workspace, &phone);
    let mut events = phone.subscribe(workspace.root(), Cursor::Stored).await.unwrap();
    while next(&mut events).await != Event::CaughtUp {}
    assert_eq!(
        laptop
            .publish_handshake(workspace.root(), &b"commit"[..])
            .await
            .unwrap(),
        0
    );
    let sent = SealedEnvelope::new(workspace.root(), 1, &b"sealed"[..]).unwrap();
    let ack = laptop.send(sent.clone()).await.unwrap();
    assert_eq!(
        next(&mut events).await,
        Event::Handshake {
            seq: 0,
            message: b"commit"[..].into()
        }
    );
    let Event::Envelope(got) = next(&mut events).await else {
        panic!("an envelope")
    };
    assert_eq!((got.hash(), got.seq()), (sent.hash(), ack.seq));
    laptop.live(workspace.root(), 1, &b"beat"[..]).await.unwrap();
    assert_eq!(
        next(&mut events).await,
        Event::Live {
            epoch: 1,
            ct: b"beat"[..].into()
        }
    );
}

/// Invariant 1 of design/architecture.md §9: an acknowledged SEND survives a crash, and a client notices nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn crashes_lose_and_double_nothing() {
    let mut relay = Relay::start(&[]);
    let (workspace, founder) = relay.found(&[]).await;
    let root = workspace.root();
    let ((writer, _), (reader, store)) = (
        relay.client(&workspace, &founder),
        relay.client(&workspace, &founder),
    );
    let mut events = reader.subscribe(root, Cursor::Stored).await.unwrap();
    let total = 3_000u64;
    let writing = tokio::spawn(async move {
        let mut sends = tokio::task::JoinSet::new();
        for n in 0..total {
            let writer = writer.clone();
            let envelope = SealedEnvelope::new(root, 1, n.to_be_bytes().to_vec()).unwrap();
            sends.spawn(async move { writer.send(envelope).await.unwrap() });
            if n % 4 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        let seqs: BTreeSet<u64> = sends.join_all().await.into_iter().map(|ack| ack.seq).collect();
        assert_eq!(seqs.len() as u64, total, "a cursor was given twice");
    });
    let mut seen = BTreeSet::new();
    let mut crashes = 0;
    while (seen.len() as u64) < total {
        if let Event::Envelope(envelope) = next(&mut events).await {
            assert!(seen.insert(envelope.hash()), "handed out twice");
        }
        if crashes < 3 && seen.len() as u64 > (crashes + 1) * total / 5 {
            crashes += 1;
            relay.kill_and_restart();
        }
    }
    writing.await.unwrap();
    assert_eq!(store.len(root) as u64, total);
}

/// W03.8: an empty client against a long log.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_device_gets_the_whole_log() {
    let relay = Relay::start(&[]);
    let (workspace, founder) = relay.found(&[]).await;
    let root = workspace.root();
    let (writer, written) = relay.client(&workspace, &founder);
    let mut sends = tokio::task::JoinSet::new();
    for n in 0..1000u64 {
        let (writer, bytes) = (writer.clone(), if n % 50 == 0 { 200_000 } else { 100 });
        let mut ct = vec![0; bytes];
        ct[..8].copy_from_slice(&n.to_be_bytes());
        sends.spawn(async move {
            writer
                .send(SealedEnvelope::new(root, 1, ct).unwrap())
                .await
                .unwrap()
        });
    }
    sends.join_all().await;

    let (late, held) = relay.client(&workspace, &founder);
    let mut events = late.subscribe(root, Cursor::Stored).await.unwrap();
    while next(&mut events).await != Event::CaughtUp {}
    assert_eq!((written.len(root), held.len(root)), (1000, 1000));

    let store = MemoryStore::new();
    let mut connection = Connection::connect(&relay.url().into(), &founder, &Hello::groups([root]))
        .await
        .unwrap();
    assert_eq!(connection.reconcile(root, &store).await.unwrap().received, 1000);
}
