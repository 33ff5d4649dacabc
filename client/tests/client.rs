//! The client over real sockets, against a relay in memory with faults.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use common::FakeRelay;
use drover_client::access::access_state;
use drover_client::invites::{InviteDraft, create_invite};
use drover_client::joining::SealedBundle;
use drover_client::wire::error::Code;
use drover_client::wire::id::GroupId;
use drover_client::{
    Client, Connection, Cursor, Error, Event, Founding, Hello, Identity, InviteLink, MemoryStore,
    SealedEnvelope, Status, Store, Subscription,
};

const G: GroupId = GroupId([7; 32]);

fn client(relay: &FakeRelay) -> (Client, Arc<MemoryStore>) {
    let store = Arc::new(MemoryStore::new());
    let client = Client::builder(relay.endpoint(), Identity::generate())
        .groups([G])
        .store(store.clone())
        .start()
        .unwrap();
    (client, store)
}

fn envelope(n: u64) -> SealedEnvelope {
    SealedEnvelope::new(G, 1, n.to_be_bytes().to_vec()).unwrap()
}

async fn next(subscription: &mut Subscription) -> Event {
    tokio::time::timeout(Duration::from_secs(20), subscription.next())
        .await
        .expect("an event in time")
        .unwrap()
}

async fn until_caught_up(subscription: &mut Subscription) {
    while next(subscription).await != Event::CaughtUp {}
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_sends_the_other_gets() {
    let relay = FakeRelay::start().await;
    let ((alice, _), (bob, _)) = (client(&relay), client(&relay));
    let mut events = bob.subscribe(G, Cursor::Stored).await.unwrap();
    until_caught_up(&mut events).await;
    assert!(matches!(
        bob.subscribe(G, Cursor::Stored).await,
        Err(Error::AlreadySubscribed)
    ));
    let ack = alice.send(envelope(1)).await.unwrap();
    assert_eq!(
        next(&mut events).await,
        Event::Envelope(envelope(1).with_seq(ack.seq)).with_ts(1)
    );
    assert_eq!(alice.publish_handshake(G, &b"commit"[..]).await.unwrap(), 0);
    assert_eq!(
        next(&mut events).await,
        Event::Handshake {
            seq: 0,
            message: b"commit"[..].into()
        }
    );
    alice.live(G, 3, &b"beat"[..]).await.unwrap();
    assert_eq!(
        next(&mut events).await,
        Event::Live {
            epoch: 3,
            ct: b"beat"[..].into()
        }
    );
}

trait WithTs {
    fn with_ts(self, ts_ms: u64) -> Self;
}

impl WithTs for Event {
    /// The event with the relay's receipt time.
    fn with_ts(self, ts_ms: u64) -> Self {
        let Event::Envelope(envelope) = self else {
            return self;
        };
        let encoded = envelope.encode();
        let mut wire = drover_client::wire::envelope::Envelope::decode(&encoded).unwrap();
        wire.ts_ms = ts_ms;
        let mut out = Vec::new();
        wire.encode(&mut out);
        Event::Envelope(SealedEnvelope::from_push(&out.into()).unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_over_cut_connections() {
    let relay = FakeRelay::start().await;
    let ((alice, _), (bob, store)) = (client(&relay), client(&relay));
    let mut events = bob.subscribe(G, Cursor::Stored).await.unwrap();
    let kicker = tokio::spawn({
        let relay = relay.clone();
        async move {
            for _ in 0..8 {
                tokio::time::sleep(Duration::from_millis(60)).await;
                relay.kick(None);
            }
        }
    });
    let total = 600;
    let writer = tokio::spawn(async move {
        let mut sends = tokio::task::JoinSet::new();
        for n in 0..total {
            let alice = alice.clone();
            sends.spawn(async move { alice.send(envelope(n)).await });
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        sends
            .join_all()
            .await
            .into_iter()
            .for_each(|ack| assert!(ack.is_ok()));
    });
    let mut seen = BTreeSet::new();
    while seen.len() < total as usize {
        if let Event::Envelope(envelope) = next(&mut events).await {
            assert!(seen.insert(envelope.hash()), "handed out twice");
        }
    }
    writer.await.unwrap();
    kicker.await.unwrap();
    assert_eq!(relay.lock().model.logs[&G].envelopes.len(), total as usize);
    assert_eq!(store.len(G), total as usize);
    assert!(relay.lock().connects > 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarting_relay_is_given_its_time() {
    let relay = FakeRelay::start().await;
    let (mut alice, _) = client(&relay);
    alice.online().await.unwrap();
    // The next attempt meets a relay at capacity, which names its own interval.
    relay.lock().refuse_upgrades = 1;
    let restarted = std::time::Instant::now();
    relay.restart(1);
    let mut waits = Vec::new();
    let sent = tokio::spawn({
        let alice = alice.clone();
        async move { alice.send(envelope(1)).await }
    });
    loop {
        match alice.status_changed().await {
            Status::Waiting(error) => waits.push(error.retry_after_s()),
            Status::Online(_) if !waits.is_empty() => break,
            Status::Online(_) | Status::Connecting => {}
            other => panic!("{other:?}"),
        }
    }
    // Never earlier than asked: once by the ERROR before the cut, once by the 503.
    assert!(restarted.elapsed() >= Duration::from_secs(2));
    assert_eq!(waits, [None, Some(1)], "the cut, then the 503");
    sent.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_device_stops_and_says_why() {
    let relay = FakeRelay::start().await;
    let (alice, _) = client(&relay);
    let mut events = alice.subscribe(G, Cursor::Stored).await.unwrap();
    alice.online().await.unwrap();
    relay.lock().admitted = Some(vec![]);
    relay.kick(None);
    let why = loop {
        if let Err(error) = tokio::time::timeout(Duration::from_secs(10), events.next())
            .await
            .unwrap()
        {
            break error;
        }
    };
    assert_eq!(why.code(), Some(Code::WriterNotInAccessSet));
    assert!(matches!(alice.status(), Status::Stopped(Some(_))));
    assert_eq!(
        alice.send(envelope(1)).await.unwrap_err().code(),
        Some(Code::WriterNotInAccessSet)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_client_answers_everyone() {
    let relay = FakeRelay::start().await;
    let (alice, _) = client(&relay);
    let mut events = alice.subscribe(G, Cursor::Stored).await.unwrap();
    alice.close().await;
    assert!(matches!(alice.send(envelope(1)).await, Err(Error::Stopped(None))));
    while events.next().await.is_ok() {}
    assert!(matches!(alice.status(), Status::Stopped(None)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_created_by_its_first_use() {
    let relay = FakeRelay::start().await;
    let (alice, _) = client(&relay);
    let other = GroupId([9; 32]);
    let ack = alice
        .send(SealedEnvelope::new(other, 1, vec![1]).unwrap())
        .await
        .unwrap();
    assert_eq!(ack.seq, 1);
    assert!(alice.subscribe(GroupId([10; 32]), Cursor::Stored).await.is_ok());
}

/// manifest.json: env-version-below-client-floor.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_below_the_floor_is_left_for_good() {
    let relay = FakeRelay::start().await;
    let identity = Identity::generate();
    for (advertised, floor) in [(0, 1), (2, 3), (5, 1)] {
        relay.lock().advertise_version = advertised;
        let hello = Hello {
            version_min: floor,
            ..Hello::groups([G])
        };
        let error = Connection::connect(&relay.endpoint(), &identity, &hello)
            .await
            .err()
            .unwrap();
        assert_eq!(error.code(), Some(Code::BelowClientFloor), "{advertised}");
        assert!(!error.is_transient());
    }
    relay.lock().advertise_version = 0;
    let (alice, _) = client(&relay);
    assert_eq!(alice.online().await.unwrap_err().refusal(), None);
    assert!(matches!(
        alice.status(),
        Status::Stopped(Some(Error::BelowClientFloor { .. }))
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_takes_plaintext_is_left_when_encryption_is_demanded() {
    let relay = FakeRelay::start().await;
    let hello = Hello {
        require_encryption: true,
        ..Hello::groups([G])
    };
    let identity = Identity::generate();
    assert!(matches!(
        Connection::connect(&relay.endpoint(), &identity, &hello)
            .await
            .err(),
        Some(Error::PlaintextAllowed)
    ));
    relay.lock().min_enc = 1;
    let connection = Connection::connect(&relay.endpoint(), &identity, &hello)
        .await
        .unwrap();
    assert!(connection.info().unwrap().encryption_enforced);
}

/// manifest.json: clock-skew-refuses-issuance-only, clock-skew-under-bound-is-silent.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_clock_stops_issuing_and_nothing_else() {
    let relay = FakeRelay::start().await;
    let identity = Identity::generate();
    let draft = InviteDraft {
        root: G,
        seats: 1,
        life_ms: 1000,
        capabilities: vec!["chat.read".into()],
        update_pub: [0; 32],
        bundles: vec![SealedBundle {
            group: G,
            epoch: 1,
            ct: b"sealed"[..].into(),
        }],
    };
    for (minutes, warns) in [(6, true), (-6, true), (4, false)] {
        relay.lock().clock_ahead_ms = minutes * 60_000;
        let mut connection = Connection::connect(&relay.endpoint(), &identity, &Hello::groups([G]))
            .await
            .unwrap();
        assert_eq!(connection.info().unwrap().clock.is_warning(), warns);
        connection.send_envelope(&envelope(minutes as u64)).await.unwrap();
        if warns {
            let error = create_invite(&mut connection, &identity, &draft)
                .await
                .err()
                .unwrap();
            let Error::ClockSkew { skew_ms } = error else {
                panic!("{error}")
            };
            assert_eq!((skew_ms as f64 / 60_000.0).round() as i64, -minutes);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workspace_is_founded_and_its_set_chain_continued() {
    let relay = FakeRelay::start().await;
    let (founder, recovery, second) = (Identity::generate(), Identity::generate(), Identity::generate());
    let link: InviteLink = "https://relay.example/join/00112233445566778899aabbccddeeff"
        .parse()
        .unwrap();
    let wrong = Founding::new(relay.endpoint(), &link, "1111-1111-1111", G);
    let error = wrong.found(&founder, &recovery.public()).await.unwrap_err();
    assert_eq!(error.code(), Some(Code::SeatsExhausted));

    let founding = Founding::new(relay.endpoint(), &link, "0000-0000-0000", G).members([second.public()]);
    let mut mine = founding.found(&founder, &recovery.public()).await.unwrap();
    assert!(mine.admits(&second.public()) && mine.admits(&recovery.public()));
    assert_eq!(relay.lock().model.head.as_ref(), Some(mine.head()));
    let again = founding.found(&founder, &recovery.public()).await;
    assert!(matches!(again, Err(Error::SetConflict { version: 0, .. })));

    // Two authorizers' sets race; the loser learns the head, adopts it and goes on.
    let mut theirs = mine.clone();
    let mut connection = Connection::connect(&relay.endpoint(), &founder, &Hello::groups([G]))
        .await
        .unwrap();
    let mut draft = mine.draft();
    draft.add_authorizer(&second.public());
    let set = draft.sign(&founder).unwrap();
    mine.publish(&mut connection, set.clone()).await.unwrap();
    assert_eq!(
        access_state(&mut connection).await.unwrap().head,
        Some((1, mine.digest()))
    );
    let late = theirs.draft().sign(&founder).unwrap();
    let error = theirs.publish(&mut connection, late).await.unwrap_err();
    assert!(matches!(error, Error::SetConflict { version: 1, digest } if digest == mine.digest()));
    theirs.adopt(&set.encode()).unwrap();
    // The answer to a publication was lost: repeating it is no conflict.
    let next = theirs.draft().sign(&second).unwrap();
    theirs
        .clone()
        .publish(&mut connection, next.clone())
        .await
        .unwrap();
    theirs.publish(&mut connection, next).await.unwrap();
    assert_eq!(theirs.head().version, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_reconciles_a_store() {
    let relay = FakeRelay::start().await;
    relay.lock().model.fill(G, 600);
    let store = MemoryStore::new();
    for n in 590..620 {
        store.put(envelope(n).with_seq(n + 1)).unwrap();
    }
    let identity = Identity::generate();
    let mut connection = Connection::connect(&relay.endpoint(), &identity, &Hello::groups([G]))
        .await
        .unwrap();
    let done = connection.reconcile(G, &store).await.unwrap();
    assert_eq!((done.received, done.sent), (590, 20));
    assert_eq!(store.len(G), 620);
    assert_eq!(connection.reconcile(G, &store).await.unwrap().rounds, 1);
}

/// The client-side entries of the corpus are all known here (04, "Reading vectors/manifest.json").
#[test]
fn the_corpus_has_no_client_side_entry_without_a_test() {
    let Some(dir) = common::vectors() else { return };
    let text = std::fs::read_to_string(dir.join("manifest.json")).unwrap();
    let corpus: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ids: BTreeSet<_> = corpus["vectors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|vector| vector["id"].as_str().unwrap())
        .filter(|id| {
            id.starts_with("clock-skew-") || id.starts_with("seq-gap-") || id.contains("client-floor")
        })
        .collect();
    let known = [
        "clock-skew-refuses-issuance-only",
        "clock-skew-under-bound-is-silent",
        "env-version-below-client-floor",
        "seq-gap-after-rollback-is-legal",
    ];
    assert_eq!(ids, known.into());
    let minutes = |id: &str| {
        let vector = corpus["vectors"]
            .as_array()
            .unwrap()
            .iter()
            .find(|vector| vector["id"] == id)
            .unwrap();
        vector["clock"]["skew_minutes"].as_u64().unwrap()
    };
    let skew = |id| drover_client::clock::ClockSkew::between(0, minutes(id) * 60_000);
    assert!(
        skew("clock-skew-refuses-issuance-only")
            .permits_issuing()
            .is_err()
    );
    assert!(skew("clock-skew-under-bound-is-silent").permits_issuing().is_ok());
}
