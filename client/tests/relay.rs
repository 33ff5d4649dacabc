//! The client against the real relay: the `drover` program of the same target directory, on an embedded store in a
//! temporary folder. Build it first (`cargo build`); without it these tests say so and pass.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use drover_client::clock::now_ms;
use drover_client::invites::{self, InviteDraft};
use drover_client::joining::SealedBundle;
use drover_client::keys::{WrapStored, fetch_key_packages, publish_key_packages, store_wrap};
use drover_client::wake::{WakeFor, WakeHandle, register_wake, wake_service};
use drover_client::wire::drop::{Answer, Request, Verdict};
use drover_client::wire::error::Code;
use drover_client::wire::id::{GroupId, Hash, PublicKey, Signature, WrapTag};
use drover_client::wire::retention::{Control, Destruction, Manifest, Policy, SOLE_AUTHORIZER_DELAY_S};
use drover_client::wire::wrap::Wrap;
use drover_client::{
    Client, Connection, Cursor, Error, Event, Founding, Hello, Identity, InviteLink, MemoryStore, RelayUrl,
    SealedEnvelope, Store, Subscription, Workspace, retention,
};
use ed25519_dalek::SigningKey;

const START_WITHIN: Duration = Duration::from_secs(20);

struct Relay {
    program: PathBuf,
    data: tempfile::TempDir,
    port: u16,
    child: Child,
    link: String,
    code: String,
}

/// The program next to the test's own `deps` folder.
fn program() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let program = test
        .parent()?
        .parent()?
        .join(format!("drover{}", std::env::consts::EXE_SUFFIX));
    program.is_file().then_some(program)
}

impl Relay {
    /// Starts a fresh relay; `None` when there is no program to start.
    fn start() -> Option<Self> {
        let Some(program) = program() else {
            println!("skipped: no drover program has been built");
            return None;
        };
        let port = free_port();
        let data = tempfile::tempdir().unwrap();
        let child = spawn(&program, &data, port);
        let mut relay = Self {
            program,
            data,
            port,
            child,
            link: String::new(),
            code: String::new(),
        };
        let out = relay.child.stdout.take().unwrap();
        let (lines, heard) = std::sync::mpsc::channel();
        // Read to the end, so that the relay never blocks on its output.
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let _ = lines.send(line);
            }
        });
        let end = Instant::now() + START_WITHIN;
        while relay.link.is_empty() || relay.code.is_empty() {
            let Ok(line) = heard.recv_timeout(end.saturating_duration_since(Instant::now())) else {
                println!("skipped: this drover prints no invite");
                return None;
            };
            let field = |label| {
                line.strip_prefix("weald:")?
                    .trim()
                    .strip_prefix(label)
                    .map(|text| text.trim().to_owned())
            };
            relay.link = field("invite link").unwrap_or(std::mem::take(&mut relay.link));
            relay.code = field("invite code").unwrap_or(std::mem::take(&mut relay.code));
        }
        Some(relay)
    }

    fn url(&self) -> RelayUrl {
        format!("ws://127.0.0.1:{}", self.port).parse().unwrap()
    }

    /// Kills the relay without warning and starts it again on its data.
    fn crash(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.child = spawn(&self.program, &self.data, self.port);
    }

    async fn found(&self) -> (Workspace, Identity) {
        let (founder, recovery) = (Identity::generate(), Identity::generate());
        let link: InviteLink = self.link.parse().unwrap();
        let root = GroupId(Identity::generate().public().0);
        let founding = Founding::new(self.url(), &link, &self.code, root);
        (
            founding.found(&founder, &recovery.public()).await.unwrap(),
            founder,
        )
    }

    fn client(&self, workspace: &Workspace, identity: &Identity) -> (Client, Arc<MemoryStore>) {
        let store = Arc::new(MemoryStore::new());
        let client = Client::builder(self.url(), identity.clone())
            .groups([workspace.root()])
            .store(store.clone());
        (client.start().unwrap(), store)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

fn spawn(program: &PathBuf, data: &tempfile::TempDir, port: u16) -> Child {
    Command::new(program)
        .arg("serve")
        .env("WEALD_RELAY_LISTEN", format!("127.0.0.1:{port}"))
        .env(
            "WEALD_RELAY_OBSERVABILITY_LISTEN",
            format!("127.0.0.1:{}", free_port()),
        )
        .env("WEALD_RELAY_HOSTNAME", "relay.example")
        .env("DROVER_DATA_DIR", data.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

async fn next(subscription: &mut Subscription) -> Event {
    tokio::time::timeout(Duration::from_secs(30), subscription.next())
        .await
        .expect("an event in time")
        .unwrap()
}

/// W02.8 from the client's side.
#[tokio::test(flavor = "multi_thread")]
async fn found_admit_send_and_receive() {
    let Some(relay) = Relay::start() else { return };
    let (mut workspace, founder) = relay.found().await;
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
    let Some(mut relay) = Relay::start() else { return };
    let (workspace, founder) = relay.found().await;
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
            relay.crash();
        }
    }
    writing.await.unwrap();
    assert_eq!(store.len(root) as u64, total);
}

/// W03.8: an empty client against a long log.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_device_gets_the_whole_log() {
    let Some(relay) = Relay::start() else { return };
    let (workspace, founder) = relay.found().await;
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

async fn session(relay: &Relay, device: &Identity, root: GroupId) -> Connection {
    Connection::connect(&relay.url().into(), device, &Hello::groups([root]))
        .await
        .unwrap()
}

fn refused<T: std::fmt::Debug>(result: Result<T, Error>) -> Option<Code> {
    result.unwrap_err().refusal().map(|refusal| refusal.code)
}

/// W07.1, W07.11, W12.5 and 06 D4 from the client's side.
#[tokio::test(flavor = "multi_thread")]
async fn shelves_wraps_wakes_and_refreshed_bundles() {
    let Some(relay) = Relay::start() else { return };
    let (workspace, founder) = relay.found().await;
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
    let Some(relay) = Relay::start() else { return };
    let (mut workspace, founder) = relay.found().await;
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
