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

use drover_client::wire::id::GroupId;
use drover_client::{
    Client, Connection, Cursor, Event, Founding, Hello, Identity, InviteLink, MemoryStore, RelayUrl,
    SealedEnvelope, Subscription, Workspace,
};

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
