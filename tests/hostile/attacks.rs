//! The attacks. Each holds what it has taken until the server's memory was judged, and a well-behaved client beside it
//! gets its SEND acknowledged meanwhile.

use crate::bounds::{self, Gauge};
use crate::faults::until;
use crate::raw::{self, Raw, framed, head, message};
use crate::relay::Relay;
use drover_client::connection::encode;
use drover_client::wire::frame::Frame;
use drover_client::wire::id::{GroupId, Hash};
use drover_client::wire::join::Request;
use drover_client::wire::recon::{self, Mode, Range};
use drover_client::{Connection, Hello, Identity, SealedEnvelope};
use std::sync::Arc;
use tokio::task::JoinSet;

const BUDGETS: [(&str, &str); 5] = [
    ("WEALD_RELAY_SEND_FRAMES_PER_MINUTE", "100000000"),
    ("WEALD_RELAY_SEND_BYTES_PER_MINUTE", "100000000000"),
    ("WEALD_RELAY_GROUP_INGRESS_BYTES_PER_MINUTE", "0"),
    ("WEALD_RELAY_WORKSPACE_INGRESS_BYTES_PER_MINUTE", "0"),
    ("WEALD_RELAY_GROUP_BACKLOG_BYTES", "0"),
];

/// A relay with default limits, a member, and its connection.
struct Scene {
    relay: Relay,
    device: Identity,
    root: GroupId,
    member: Connection,
    sent: u64,
}

impl Scene {
    async fn open() -> Self {
        Self::open_with(&[]).await
    }

    async fn open_with(settings: &[(&str, &str)]) -> Self {
        raise_open_files();
        // Attackers are to be let go of by nothing but their own end: none of these tests waits for a deadline.
        let mut all = vec![
            ("WEALD_RELAY_HANDSHAKE_TIMEOUT_MS", "600000"),
            // What is freed goes back at once. Otherwise an attack could use what the start has left behind, and look cheap.
            ("MIMALLOC_PURGE_DELAY", "0"),
        ];
        all.extend(BUDGETS);
        all.extend(settings);
        let relay = Relay::start(&all);
        let (workspace, device) = relay.found(&[]).await;
        let root = workspace.root();
        let hello = Hello::groups([root]);
        let member = Connection::connect(&relay.endpoint(), &device, &hello)
            .await
            .unwrap();
        let mut scene = Self {
            relay,
            device,
            root,
            member,
            sent: 0,
        };
        for _ in 0..20 {
            scene.send(1_000).await;
        }
        scene
    }

    /// The well-behaved client.
    async fn send(&mut self, bytes: usize) {
        self.sent += 1;
        let ct = [self.sent.to_be_bytes().to_vec(), vec![3; bytes]].concat();
        let envelope = SealedEnvelope::new(self.root, 1, ct).unwrap();
        self.member.send_envelope(&envelope).await.unwrap();
    }

    fn bytes_in(&self) -> u64 {
        self.relay
            .metric("weald_relay_frame_bytes_total{direction=\"in\"}")
    }

    /// Waits until the server has read that many bytes since `before`.
    async fn has_read(&self, before: u64, bytes: usize) {
        until("all was read", || self.bytes_in() >= before + bytes as u64).await;
    }

    /// Upgraded connections that have not authenticated, from as many sources as that takes.
    async fn strangers(&self, count: usize) -> Vec<Raw> {
        let mut all = Vec::new();
        for n in 0..count {
            // A source's share is 64 of 256, and the member holds one seat.
            let source = 10 + (n / 60) as u8;
            all.push(raw::upgraded(&self.relay, source).await.unwrap());
        }
        all
    }
}

/// These tests hold thousands of sockets.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Runs one for each of the connections at once, and gives them back.
async fn each<F, R>(raws: Vec<Raw>, run: F) -> (Vec<Raw>, usize)
where
    F: Fn(Raw) -> R,
    R: Future<Output = (Raw, usize)> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for raw in raws {
        tasks.spawn(run(raw));
    }
    let (mut raws, mut sum) = (Vec::new(), 0);
    for (raw, count) in tasks.join_all().await {
        raws.push(raw);
        sum += count;
    }
    (raws, sum)
}

/// Pushes the same bytes into each, all at once, as far as it takes them; what they took in all.
async fn flood(raws: Vec<Raw>, bytes: impl Into<Arc<[u8]>>) -> (Vec<Raw>, usize) {
    let bytes: Arc<[u8]> = bytes.into();
    each(raws, move |mut raw| {
        let bytes = bytes.clone();
        async move {
            let taken = raw.push(&bytes).await;
            (raw, taken)
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_upgrades() {
    let mut scene = Scene::open().await;
    let gauge = Gauge::start(&scene.relay);
    let mut open = Vec::new();
    for n in 0..1_500 {
        open.extend(raw::connect(&scene.relay, 10 + (n / 250) as u8).await.ok());
    }
    // All but the last byte, one at a time.
    for at in 0..raw::UPGRADE.len() - 1 {
        for raw in &mut open {
            let _ = raw.0.try_write(&raw::UPGRADE[at..=at]);
        }
        if at % 40 == 0 {
            scene.send(100).await;
        }
    }
    until("the places are taken", || {
        scene.relay.metric("weald_relay_sockets") >= 1_024
    })
    .await;
    scene.send(100).await;
    let sockets = scene.relay.metric("weald_relay_sockets");
    assert!(sockets <= 1_024 + 8, "{sockets}");
    gauge.judge(
        &bounds::SLOW_UPGRADES,
        &format!("{} tried, {sockets} held", open.len()),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_without_end() {
    let mut scene = Scene::open().await;
    let gauge = Gauge::start(&scene.relay);
    let before = scene.bytes_in();
    let mut open = Vec::new();
    for n in 0..1_000 {
        open.extend(raw::connect(&scene.relay, 10 + (n / 250) as u8).await.ok());
    }
    let line = format!("X-Header: {}\r\n", "x".repeat(88));
    let begun = format!("GET /relay HTTP/1.1\r\n{}", line.repeat(163));
    assert!(begun.len() < 16_384 && begun.len() + line.len() > 16_384);
    let (mut open, taken) = flood(open, begun.into_bytes()).await;
    scene.has_read(before, taken).await;
    scene.send(100).await;
    gauge.judge(
        &bounds::ENDLESS_HEADERS,
        &format!("{} heads of 16 KiB", open.len()),
    );
    // One line more is too many.
    let last = &mut open[0];
    last.push(line.as_bytes()).await;
    until_ended(last).await;
}

async fn until_ended(raw: &mut Raw) {
    let end = std::time::Instant::now() + crate::faults::PATIENCE;
    while !raw.is_ended().await {
        assert!(std::time::Instant::now() < end, "it was not let go of");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_hellos_without_end() {
    let mut scene = Scene::open_with(&[("WEALD_RELAY_TLS", "dev")]).await;
    let gauge = Gauge::start(&scene.relay);
    let before = scene.bytes_in();
    let mut open = Vec::new();
    for n in 0..1_020 {
        open.extend(raw::connect(&scene.relay, 10 + (n / 255) as u8).await.ok());
    }
    // A handshake record of 16 KiB, in it a ClientHello that is as long; its last byte never comes.
    let mut hello = vec![0x16, 3, 1, 0x40, 0, 1, 0, 0x3f, 0xfc, 3, 3];
    hello.resize(5 + 0x4000 - 1, 0);
    let (open, taken) = flood(open, hello).await;
    scene.has_read(before, taken).await;
    scene.send(100).await;
    gauge.judge(&bounds::TLS_HELLOS, &format!("{} hellos of 16 KiB", open.len()));
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_half_open_connections() {
    let mut scene = Scene::open().await;
    let gauge = Gauge::start(&scene.relay);
    let room = rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .unwrap_or(u64::MAX);
    let wanted = 10_000.min(room.saturating_sub(500)) as usize;
    if wanted < 10_000 {
        println!("hostile: scaled down to {wanted} connections: this process may open no more files");
    }
    let mut open = Vec::new();
    for n in 0..wanted {
        match raw::connect(&scene.relay, 10 + (n % 40) as u8).await {
            Ok(raw) => open.push(raw),
            Err(error) => println!("hostile: connection {n}: {error}"),
        }
        if n % 1_000 == 0 {
            scene.send(100).await;
        }
    }
    until("all were accepted or closed", || {
        let result = |result| {
            scene
                .relay
                .metric(&format!("weald_relay_accepts_total{{result=\"{result}\"}}"))
        };
        result("accepted") + result("half_open") >= open.len() as u64
    })
    .await;
    scene.send(100).await;
    let sockets = scene.relay.metric("weald_relay_sockets");
    assert!(sockets <= 1_024 + 8, "{sockets}");
    let descriptors = scene.relay.metric("process_open_fds");
    assert!(descriptors < 1_024 + 300, "{descriptors}");
    gauge.judge(
        &bounds::HALF_OPEN,
        &format!("{} tried, {sockets} held", open.len()),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_beyond_its_share() {
    let mut scene = Scene::open().await;
    let gauge = Gauge::start(&scene.relay);
    let (mut held, mut refused) = (Vec::new(), 0);
    for _ in 0..600 {
        match raw::upgraded(&scene.relay, 10).await {
            Ok(raw) => held.push(raw),
            Err(status) => {
                assert!(matches!(status, Some(503) | None), "{status:?}");
                refused += 1;
            }
        }
    }
    assert_eq!(held.len(), 64, "a quarter of 256");
    // Its half-open sockets have a share of their own.
    let mut silent = Vec::new();
    for _ in 0..600 {
        silent.extend(raw::connect(&scene.relay, 10).await.ok());
    }
    let mut neighbour = raw::upgraded(&scene.relay, 11).await.expect("another is let in");
    neighbour.authenticate(&scene.device, scene.root).await;
    scene.send(100).await;
    gauge.judge(
        &bounds::ONE_SOURCE,
        &format!("64 held, {refused} refused, {} silent", silent.len()),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_byte_fragments() {
    const FRAGMENTS: usize = 16_384;
    let mut scene = Scene::open().await;
    let strangers = scene.strangers(128).await;
    let gauge = Gauge::start(&scene.relay);
    let before = scene.bytes_in();
    let mut stream = framed(0x02, b"x");
    for _ in 1..FRAGMENTS {
        stream.extend_from_slice(&framed(0x00, b"x"));
    }
    let (strangers, taken) = flood(strangers, stream).await;
    scene.has_read(before, taken).await;
    scene.send(100).await;
    gauge.judge(
        &bounds::FRAGMENTS,
        &format!(
            "{} messages of {} fragments",
            strangers.len(),
            taken / 7 / strangers.len()
        ),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn ping_floods() {
    // Members, who are received from as fast as they send. Nobody reads a pong: their sockets fill, and then nothing more
    // is taken from them.
    let mut scene = Scene::open().await;
    let mut members = scene.strangers(128).await;
    for raw in &mut members {
        raw.authenticate(&scene.device, scene.root).await;
    }
    let gauge = Gauge::start(&scene.relay);
    let pings = framed(0x89, &[7; 125]).repeat(60_000);
    let (members, taken) = flood(members, pings).await;
    scene.send(100).await;
    assert!(taken / members.len() > 1 << 20, "{taken} bytes are no flood");
    gauge.judge(
        &bounds::PINGS,
        &format!("{} pings from {}", taken / 131, members.len()),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_frames() {
    let mut scene = Scene::open().await;
    let strangers = scene.strangers(128).await;
    let gauge = Gauge::start(&scene.relay);
    let garbage = message(&[0x82, 0x18, 0x63, 0xff]).repeat(200_000);
    let (strangers, taken) = flood(strangers, garbage).await;
    scene.send(100).await;
    gauge.judge(
        &bounds::MALFORMED,
        &format!("{} frames from {}, answers unread", taken / 10, strangers.len()),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_that_never_read() {
    let mut scene = Scene::open().await;
    for _ in 0..40 {
        scene.send(250_000).await;
    }
    let mut deaf = Vec::new();
    for _ in 0..24 {
        let mut raw = raw::upgraded(&scene.relay, 10).await.unwrap();
        raw.authenticate(&scene.device, scene.root).await;
        deaf.push(raw);
    }
    let gauge = Gauge::start(&scene.relay);
    let before = scene.bytes_in();
    let sub = message(&encode(&Frame::Sub {
        group: scene.root,
        from_seq: 1,
    }));
    for raw in &mut deaf {
        raw.push(&sub).await;
    }
    scene.has_read(before, deaf.len() * sub.len()).await;
    for _ in 0..200 {
        scene.send(250_000).await;
    }
    gauge.judge(
        &bounds::DEAF_SUBSCRIBERS,
        &format!("{} behind a log of 60 MB", deaf.len()),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn reconciliation_of_maximum_cost() {
    let mut scene = Scene::open().await;
    scene.sent = 100;
    for _ in 0..5_000 {
        scene.sent += 1;
        let envelope = SealedEnvelope::new(scene.root, 1, scene.sent.to_be_bytes().to_vec()).unwrap();
        let bytes = envelope.encode();
        scene
            .member
            .send(&Frame::Send { envelope: &bytes })
            .await
            .unwrap();
        if scene.sent.is_multiple_of(100) {
            for _ in 0..100 {
                scene.member.recv().await.unwrap();
            }
        }
    }
    let mut members = Vec::new();
    for _ in 0..16 {
        let mut raw = raw::upgraded(&scene.relay, 10).await.unwrap();
        raw.authenticate(&scene.device, scene.root).await;
        members.push(raw);
    }
    // As many ids as a message holds, none of them the relay's; and as many ranges as there may be, none of which agrees.
    let ids: Vec<Hash> = (0..4_096u64)
        .map(|n| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&n.to_be_bytes());
            Hash(id)
        })
        .collect();
    let lists: Vec<Range> = (1..=7u64)
        .map(|n| Range {
            upper: if n == 7 { recon::OPEN_END } else { n * 700 },
            mode: Mode::Ids(ids.clone()),
        })
        .collect();
    let fingerprints: Vec<Range> = (1..=1_024u64)
        .map(|n| Range {
            upper: if n == 1_024 { recon::OPEN_END } else { n * 4 },
            mode: Mode::Fingerprint(Hash([9; 32])),
        })
        .collect();
    let mut stream = Vec::new();
    for ranges in [&lists, &fingerprints] {
        let mut payload = Vec::new();
        recon::encode(ranges, &mut payload);
        let frame = message(&encode(&Frame::Recon {
            group: scene.root,
            payload: &payload,
        }));
        stream.extend_from_slice(&frame.repeat(8));
    }
    let gauge = Gauge::start(&scene.relay);
    let (members, taken) = flood(members, stream).await;
    scene.send(100).await;
    gauge.judge(
        &bounds::RECON,
        &format!("{} MB of it from {}", taken / 1_000_000, members.len()),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn join_guesses() {
    let mut scene = Scene::open().await;
    let strangers = scene.strangers(64).await;
    // One that is open: a workspace nobody has founded yet.
    let said = scene.relay.command(&["workspace", "new", "other.example"]);
    let lines: Vec<String> = said.lines().map(Into::into).collect();
    let link = crate::relay::banner(&lines).unwrap().link;
    let token: [u8; 16] = {
        let hex = link.rsplit('/').next().unwrap();
        let digits: Vec<u8> = (0..16)
            .map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap())
            .collect();
        digits.try_into().unwrap()
    };
    let gauge = Gauge::start(&scene.relay);
    let (strangers, answered) = each(strangers, move |mut raw| async move {
        let mut answered = 0;
        for n in 0..20u8 {
            let body = Request::Reserve {
                token: &token,
                code: "AAAA-BBBB-CCCC",
                nonce: &[n; 16],
                device: &Identity::generate().public().0,
            }
            .encode();
            raw.push(&message(&encode(&Frame::Join { body: &body }))).await;
            raw.frame().await;
            answered += 1;
        }
        (raw, answered)
    })
    .await;
    scene.send(100).await;
    gauge.judge(
        &bounds::JOIN_GUESSES,
        &format!("{answered} guesses from {}", strangers.len()),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn huge_declared_lengths() {
    let mut scene = Scene::open().await;
    // Beyond what a frame may declare: let go of at once.
    for length in [1_056_769, u64::from(u32::MAX), u64::MAX >> 1, u64::MAX] {
        let mut raw = raw::upgraded(&scene.relay, 10).await.unwrap();
        raw.push(&head(0x82, length)).await;
        until_ended(&mut raw).await;
    }
    let strangers = scene.strangers(250).await;
    let gauge = Gauge::start(&scene.relay);
    let before = scene.bytes_in();
    // Within it, and all but the last byte comes.
    let mut frame = head(0x82, 1_056_768);
    frame.resize(frame.len() + 1_056_767, 7);
    let (strangers, taken) = flood(strangers, frame).await;
    let _ = (before, taken);
    // Declared inside a frame: a byte string, a list.
    let mut inner = raw::upgraded(&scene.relay, 20).await.unwrap();
    for lie in [
        &[0x82, 0x00, 0x5b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff][..],
        &[0x82, 0x00, 0x9b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[0x9b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        &[0x82, 0x0c, 0x9a, 0xff, 0xff, 0xff, 0xff],
    ] {
        inner.push(&message(lie)).await;
    }
    scene.send(100).await;
    gauge.judge(
        &bounds::DECLARED_LENGTHS,
        &format!("{} messages of 1 MiB less a byte", strangers.len()),
    );
}
