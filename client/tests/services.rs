//! The helpers over KEYS, WRAP, BLOB records, DROP, WAKE and INVITE refresh: over one connection and over a client, whose
//! answers have to find their requests among each other.
#![allow(clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use common::FakeRelay;
use drover_client::joining::SealedBundle;
use drover_client::keys::{WrapStored, fetch_key_packages, publish_key_packages, store_wrap};
use drover_client::wake::{WakeFor, WakeHandle, clear_wake, register_wake, wake_service};
use drover_client::wire::drop::{Answer, Request, Verdict};
use drover_client::wire::error::Code;
use drover_client::wire::id::{GroupId, Hash, PublicKey, Signature, Token, WrapTag};
use drover_client::wire::retention::{Control, Destruction, Manifest, Policy, Resolution};
use drover_client::wire::wrap::Wrap;
use drover_client::{Client, Connection, Error, Exchange, Hello, Identity, invites, retention};
use ed25519_dalek::SigningKey;

const GROUP: GroupId = GroupId([0x77; 32]);

async fn connection(relay: &FakeRelay) -> Connection {
    let identity = Identity::from_seed(&[1; 32]);
    Connection::connect(&relay.endpoint(), &identity, &Hello::groups([GROUP]))
        .await
        .unwrap()
}

fn client(relay: &FakeRelay) -> Client {
    Client::builder(relay.url.clone(), Identity::from_seed(&[1; 32]))
        .groups([GROUP])
        .start()
        .unwrap()
}

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> Option<Code> {
    result.unwrap_err().code()
}

/// W07.1 and W07.11 from the client's side.
async fn keys_and_wraps(exchange: &mut impl Exchange) {
    let device = Identity::from_seed(&[1; 32]).public();
    assert_eq!(
        publish_key_packages(exchange, &[b"kp1", b"kp2"]).await.unwrap(),
        2
    );
    assert_eq!(
        fetch_key_packages(exchange, device, 1).await.unwrap(),
        [Bytes::from_static(b"kp1")]
    );
    assert_eq!(
        fetch_key_packages(exchange, device, 8).await.unwrap(),
        [Bytes::from_static(b"kp2")]
    );
    assert!(fetch_key_packages(exchange, device, 8).await.unwrap().is_empty());
    let full = vec![b"kp"; 101];
    assert_eq!(
        code(publish_key_packages(exchange, &full).await),
        Some(Code::SeatsExhausted)
    );
    for count in [0, 9] {
        let refused = fetch_key_packages(exchange, device, count).await;
        assert!(matches!(refused, Err(Error::Invalid(_))));
    }
    let long = publish_key_packages(exchange, &[vec![0; 131_073]]).await;
    assert!(matches!(long, Err(Error::Invalid(_))));
    let many = publish_key_packages(exchange, &vec![vec![0; 131_072]; 9]).await;
    assert!(matches!(many, Err(Error::Invalid(_))));

    let mut wrap = Wrap {
        group: GROUP,
        epoch: 4,
        tag: WrapTag([0xaa; 32]),
        ct: b"ct",
    };
    assert_eq!(store_wrap(exchange, &wrap).await.unwrap(), WrapStored::Now);
    assert_eq!(
        store_wrap(exchange, &wrap).await.unwrap(),
        WrapStored::NotNewer(Some(4))
    );
    wrap.epoch = 5;
    assert_eq!(store_wrap(exchange, &wrap).await.unwrap(), WrapStored::Now);
    wrap.ct = b"";
    assert!(matches!(
        store_wrap(exchange, &wrap).await,
        Err(Error::Invalid(_))
    ));
}

async fn chain_and_compaction(exchange: &mut impl Exchange) {
    let key = SigningKey::from_bytes(&[3; 32]);
    let sig = Signature([0; 64]);
    let instruction = Request {
        group: GROUP,
        checkpoint: Hash([1; 32]),
        snapshots: vec![Hash([2; 32])],
        epoch: 0,
        policy_version: Some(1),
        destruction_digest: None,
        sig,
    }
    .signed(&key);
    assert_eq!(
        retention::drop_before(exchange, &instruction).await.unwrap(),
        Answer::Against(Verdict::NoRetentionChain)
    );

    let before = retention::position(exchange, GROUP).await.unwrap();
    assert_eq!((before.control_digest, before.next_sequence), (None, 1));
    let control = Control {
        group: GROUP,
        epoch: 0,
        verifier: PublicKey(key.verifying_key().to_bytes()),
        prev: None,
        sig,
    }
    .signed(&key);
    retention::publish_control(exchange, &control).await.unwrap();
    let manifest = Manifest {
        group: GROUP,
        epoch: 0,
        sequence: before.next_sequence,
        prev: None,
        blobs: vec![Hash([9; 32])],
        sig,
    }
    .signed(&key);
    retention::publish_manifest(exchange, &manifest).await.unwrap();
    let after = retention::position(exchange, GROUP).await.unwrap();
    assert_eq!(after.control_digest, Some(control.digest()));
    assert_eq!(
        (after.next_sequence, after.prev_manifest),
        (2, Some(manifest.digest()))
    );
    let policy = Policy {
        group: GROUP,
        version: 1,
        media_after_days: 30,
        text_after_days: 0,
        not_before_s: 5,
        authorizers: vec![control.verifier],
        sigs: vec![],
    }
    .signed(&key);
    retention::publish_policy(exchange, &policy).await.unwrap();
    let destruction = Destruction {
        group: GROUP,
        kind: Destruction::DROP_BEFORE.to_vec(),
        target: Hash([1; 32]),
        policy_version: None,
        not_before_s: 5,
        authorizers: vec![control.verifier],
        sigs: vec![],
    }
    .signed(&key);
    retention::publish_destruction(exchange, &destruction)
        .await
        .unwrap();
    let resolution = Resolution {
        group: GROUP,
        epoch: 1,
        verifier: control.verifier,
        sig,
    }
    .signed(&key);
    retention::resolve(exchange, &resolution).await.unwrap();
    assert_eq!(
        retention::drop_before(exchange, &instruction).await.unwrap(),
        Answer::Ran {
            deleted: 3,
            bytes: 45,
            kept: 1
        }
    );
}

async fn push(exchange: &mut impl Exchange, relay: &FakeRelay) {
    let handle = WakeHandle([5; 16]);
    assert!(!wake_service(exchange).await.unwrap().enabled);
    let off = register_wake(exchange, handle, WakeFor::CALL, 5).await;
    assert_eq!(code(off), Some(Code::PushNotConfigured));
    relay.lock().services.push = true;
    let service = wake_service(exchange).await.unwrap();
    assert!(service.enabled && service.register_url.starts_with("https://"));
    register_wake(exchange, handle, WakeFor::CALL | WakeFor::MESSAGE, 5)
        .await
        .unwrap();
    assert_eq!(relay.lock().services.registered, Some((handle.0, 3)));
    clear_wake(exchange).await.unwrap();
    assert_eq!(relay.lock().services.registered, None);
}

async fn refresh(exchange: &mut impl Exchange, relay: &FakeRelay) {
    let mut bundle = SealedBundle {
        group: GROUP,
        epoch: 2,
        ct: Bytes::from_static(b"sealed"),
    };
    invites::refresh_bundle(exchange, Token([1; 16]), &bundle)
        .await
        .unwrap();
    assert_eq!(relay.lock().services.refreshed, [b"sealed"]);
    bundle.ct = Bytes::new();
    let empty = invites::refresh_bundle(exchange, Token([1; 16]), &bundle).await;
    assert!(matches!(empty, Err(Error::Invalid(_))));
}

#[tokio::test]
async fn every_helper_over_a_connection() {
    let relay = FakeRelay::start().await;
    let mut connection = connection(&relay).await;
    keys_and_wraps(&mut connection).await;
    chain_and_compaction(&mut connection).await;
    push(&mut connection, &relay).await;
    refresh(&mut connection, &relay).await;
}

#[tokio::test]
async fn every_helper_over_a_client_at_once() {
    let relay = FakeRelay::start().await;
    let client = client(&relay);
    let (mut a, mut b, mut c, mut d) = (client.clone(), client.clone(), client.clone(), client.clone());
    tokio::join!(
        keys_and_wraps(&mut a),
        chain_and_compaction(&mut b),
        push(&mut c, &relay),
        refresh(&mut d, &relay),
    );
    client.close().await;
}

/// An acknowledgement has to be of the record that was sent.
#[tokio::test]
async fn a_relay_that_acknowledges_something_else_is_caught() {
    let relay = FakeRelay::start().await;
    relay.lock().services.lies = true;
    let key = SigningKey::from_bytes(&[3; 32]);
    let control = Control {
        group: GROUP,
        epoch: 0,
        verifier: PublicKey(key.verifying_key().to_bytes()),
        prev: None,
        sig: Signature([0; 64]),
    }
    .signed(&key);
    let answer = retention::publish_control(&mut connection(&relay).await, &control).await;
    assert!(matches!(answer, Err(Error::Protocol(_))));
}
