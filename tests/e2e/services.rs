//! The client's calls beyond the log: shelves, wraps, wakes, refreshed bundles, compaction.

use crate::relay::Relay;
use bytes::Bytes;
use drover_client::call::{self, Call, CallEvent};
use drover_client::clock::now_ms;
use drover_client::invites::{self, InviteDraft};
use drover_client::joining::SealedBundle;
use drover_client::keys::{WrapStored, fetch_key_packages, publish_key_packages, store_wrap};
use drover_client::wake::{WakeFor, WakeHandle, register_wake, wake_service};
use drover_client::wire::drop::{Answer, Request, Verdict};
use drover_client::wire::error::Code;
use drover_client::wire::frame::Frame;
use drover_client::wire::id::{CallId, GroupId, Hash, PublicKey, Signature, WrapTag};
use drover_client::wire::retention::{Control, Destruction, Manifest, Policy, SOLE_AUTHORIZER_DELAY_S};
use drover_client::wire::wrap::Wrap;
use drover_client::{Connection, Error, Hello, Identity, MemoryStore, SealedEnvelope, Store, retention};
use ed25519_dalek::SigningKey;

async fn session(relay: &Relay, device: &Identity, root: GroupId) -> Connection {
    Connection::connect(&relay.endpoint(), device, &Hello::groups([root]))
        .await
        .unwrap()
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> Option<Code> {
    result.unwrap_err().refusal().map(|refusal| refusal.code)
}

/// W07.1, W07.11, W12.5 and 06 D4 from the client's side.
#[tokio::test(flavor = "multi_thread")]
async fn shelves_wraps_wakes_and_refreshed_bundles() {
    let relay = Relay::start(&[]);
    let (workspace, founder) = relay.found(&[]).await;
    let root = workspace.root();
    let mut connection = session(&relay, &founder, root).await;

    let left = publish_key_packages(&mut connection, &[b"kp1", b"kp2"]).await;
    assert_eq!(left.unwrap(), 2);
    let device = founder.public();
    for expected in [vec!["kp1"], vec!["kp2"], vec![]] {
        let fetched = fetch_key_packages(&mut connection, device, 1).await.unwrap();
        assert_eq!(fetched, expected);
    }
    let stranger = Identity::generate().public();
    let fetched = fetch_key_packages(&mut connection, stranger, 1).await;
    assert_eq!(refused(fetched), Some(Code::WriterNotInAccessSet));

    let wrap = Wrap {
        group: root,
        epoch: 4,
        tag: WrapTag([0xaa; 32]),
        ct: b"ct",
    };
    for expected in [WrapStored::Now, WrapStored::NotNewer(Some(4))] {
        assert_eq!(store_wrap(&mut connection, &wrap).await.unwrap(), expected);
    }

    assert!(!wake_service(&mut connection).await.unwrap().enabled);
    let until = now_ms() + 60_000;
    let off = register_wake(&mut connection, WakeHandle([5; 16]), WakeFor::ANYTHING, until).await;
    assert_eq!(refused(off), Some(Code::PushNotConfigured));

    let mut bundle = SealedBundle {
        group: root,
        epoch: 1,
        ct: Bytes::from_static(b"issued"),
    };
    let draft = InviteDraft {
        root,
        seats: 1,
        life_ms: 3_600_000,
        capabilities: vec!["chat.read".into()],
        update_pub: [7; 32],
        bundles: vec![bundle.clone()],
    };
    let invite = invites::create_invite(&mut connection, &founder, &draft)
        .await
        .unwrap();
    (bundle.epoch, bundle.ct) = (2, Bytes::from_static(b"newer"));
    invites::refresh_bundle(&mut connection, invite.token, &bundle)
        .await
        .unwrap();
}

/// W08 and W09 from the client's side.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_compacted_under_its_policy() {
    let relay = Relay::start(&[]);
    let (mut workspace, founder) = relay.found(&[]).await;
    let root = workspace.root();
    let mut connection = session(&relay, &founder, root).await;
    let mut sent = Vec::new();
    for content in ["old", "checkpoint", "new"] {
        let envelope = SealedEnvelope::new(root, 1, content).unwrap();
        connection.send_envelope(&envelope).await.unwrap();
        sent.push(envelope.hash());
    }
    let (key, sig) = (SigningKey::from_bytes(&founder.seed()), Signature([0; 64]));
    let instruction = Request {
        group: root,
        checkpoint: sent[1],
        snapshots: vec![],
        epoch: 0,
        policy_version: Some(1),
        destruction_digest: None,
        sig,
    }
    .signed(&key);
    let answer = retention::drop_before(&mut connection, &instruction).await;
    assert_eq!(answer.unwrap(), Answer::Against(Verdict::NoRetentionChain));

    let control = Control {
        group: root,
        epoch: 0,
        verifier: PublicKey(key.verifying_key().to_bytes()),
        prev: None,
        sig,
    }
    .signed(&key);
    for _ in 0..2 {
        retention::publish_control(&mut connection, &control)
            .await
            .unwrap();
    }
    let at = retention::position(&mut connection, root).await.unwrap();
    assert_eq!(at.control_digest, Some(control.digest()));
    let manifest = Manifest {
        group: root,
        epoch: at.control_epoch,
        sequence: at.next_sequence,
        prev: at.prev_manifest.map(|digest| digest.0.to_vec()),
        blobs: vec![],
        sig,
    }
    .signed(&key);
    retention::publish_manifest(&mut connection, &manifest)
        .await
        .unwrap();
    let at = retention::position(&mut connection, root).await.unwrap();
    assert_eq!((at.next_sequence, at.prev_manifest), (2, Some(manifest.digest())));

    let now_s = now_ms() / 1000;
    let mut policy = Policy {
        group: root,
        version: 1,
        media_after_days: 30,
        text_after_days: 0,
        not_before_s: now_s,
        authorizers: vec![control.verifier],
        sigs: vec![],
    };
    let soon = retention::publish_policy(&mut connection, &policy.clone().signed(&key)).await;
    assert_eq!(refused(soon), Some(Code::WriterNotInAccessSet));
    let destruction = Destruction {
        group: root,
        kind: Destruction::BLOB.to_vec(),
        target: Hash([1; 32]),
        policy_version: Some(1),
        not_before_s: now_s + SOLE_AUTHORIZER_DELAY_S + 60,
        authorizers: vec![control.verifier],
        sigs: vec![],
    }
    .signed(&key);
    retention::publish_destruction(&mut connection, &destruction)
        .await
        .unwrap();
    let answer = retention::drop_before(&mut connection, &instruction).await;
    assert_eq!(answer.unwrap(), Answer::Against(Verdict::NoAuthorization));

    // Two authorizers need no delay.
    let second = Identity::generate();
    let mut draft = workspace.draft();
    draft.add_authorizer(&second.public());
    workspace
        .publish(&mut connection, draft.sign(&founder).unwrap())
        .await
        .unwrap();
    policy.authorizers.push(second.public());
    let policy = policy
        .signed(&key)
        .signed(&SigningKey::from_bytes(&second.seed()));
    retention::publish_policy(&mut connection, &policy).await.unwrap();
    for (deleted, bytes) in [(1, 3), (0, 0)] {
        let answer = retention::drop_before(&mut connection, &instruction).await;
        let kept = 0;
        assert_eq!(answer.unwrap(), Answer::Ran { deleted, bytes, kept });
    }
    let store = MemoryStore::new();
    let held = connection.reconcile(root, &store).await.unwrap();
    assert_eq!((held.received, store.contains(root, &sent[0])), (2, false));
}

/// W10.2 through sockets: offer, answer, audio both ways, bye; over plain text by reference and by copy, over TLS by copy.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_through_sockets() {
    for settings in [
        &[("DROVER_COPY_BELOW", "0")][..],
        &[("DROVER_COPY_BELOW", "65536"), ("DROVER_SHARDS", "2")],
        &[("WEALD_RELAY_TLS", "dev")],
    ] {
        let relay = Relay::start(settings);
        let (workspace, founder) = relay.found(&[]).await;
        let root = workspace.root();
        let id = CallId([0xc1; 16]);
        let mut listener = session(&relay, &founder, root).await;
        listener.subscribe(root, 0).await.unwrap();
        let join = async |kind| {
            let connection = session(&relay, &founder, root).await;
            Call::join(connection, id, root, 1, kind, b"sealed")
                .await
                .unwrap()
        };
        let mut calls = [
            join(call::OFFER).await,
            join(call::ANSWER).await,
            join(call::ANSWER).await,
        ];
        for kind in [call::OFFER, call::ANSWER, call::ANSWER] {
            let heard = listener.recv().await.unwrap();
            assert!(
                matches!(heard.frame().unwrap(), Frame::Call { kind: k, body: b"sealed", .. } if k == kind)
            );
        }
        for from in 0..3 {
            for (seq, len) in [(0, 0), (1, 80), (2, 160), (3, 1500)] {
                calls[from]
                    .send([0, 0, 0, 1], seq, &vec![from as u8; len])
                    .await
                    .unwrap();
            }
            for to in (0..3).filter(|&to| to != from) {
                for (seq, len) in [(0, 0), (1, 80), (2, 160), (3, 1500)] {
                    let expected = CallEvent::Media {
                        stream: [0, 0, 0, 1],
                        seq,
                        ct: vec![from as u8; len].into(),
                    };
                    assert_eq!(calls[to].next().await.unwrap(), expected);
                }
            }
        }
        let [first, mut second, third] = calls;
        first.leave(b"").await.unwrap().close().await;
        third.leave(b"").await.unwrap().close().await;
        for _ in 0..2 {
            let heard = listener.recv().await.unwrap();
            assert!(matches!(
                heard.frame().unwrap(),
                Frame::Call { kind: call::BYE, .. }
            ));
        }
        let mut stranger = session(&relay, &founder, root).await;
        let frame = Frame::Media {
            call_id: id,
            stream: [0; 4],
            seq: 0,
            ct: b"x",
        };
        stranger.send(&frame).await.unwrap();
        assert_eq!(refused(stranger.sync().await), Some(Code::WriterNotInAccessSet));
        second.send([0; 4], 9, b"nobody hears").await.unwrap();
        second.leave(b"").await.unwrap().sync().await.unwrap();
    }
}
