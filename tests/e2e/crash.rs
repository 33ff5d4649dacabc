//! Invariant 1 of architecture.md §9 against the real process: what was acknowledged survives SIGKILL at any moment.

use crate::relay::Relay;
use drover_client::wire::envelope::Envelope;
use drover_client::wire::error::Code;
use drover_client::wire::frame::{Frame, Wake};
use drover_client::wire::id::{GroupId, Hash};
use drover_client::{Connection, Hello, Identity, SealedEnvelope};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// How often the relay is killed.
const KILLS: usize = 50;
/// Writers under way when it is.
const WRITERS: usize = 4;
/// SENDs a writer has under way.
const WINDOW: usize = 32;

#[derive(Default)]
struct Acknowledged {
    envelopes: HashMap<Hash, (u64, SealedEnvelope)>,
    handshakes: HashMap<u64, Vec<u8>>,
}

/// Sends as fast as the window allows until the socket dies; every acknowledgement is written down.
async fn write(
    connection: &mut Connection,
    group: GroupId,
    salt: u64,
    seen: &Mutex<Acknowledged>,
    busy: &AtomicBool,
) -> Result<(), drover_client::Error> {
    let mut sent: HashMap<Hash, SealedEnvelope> = HashMap::new();
    let (mut under_way, mut n) = (0usize, 0u64);
    loop {
        while under_way < WINDOW {
            n += 1;
            if n.is_multiple_of(50) {
                let message = [salt.to_be_bytes(), n.to_be_bytes()].concat();
                connection
                    .send(&Frame::Handshake {
                        group,
                        seq: 0,
                        message: &message,
                    })
                    .await?;
            } else {
                let ct = [
                    salt.to_be_bytes().to_vec(),
                    n.to_be_bytes().to_vec(),
                    vec![7; (n % 300) as usize],
                ]
                .concat();
                let envelope = SealedEnvelope::new(group, 1, ct)?;
                connection
                    .send(&Frame::Send {
                        envelope: &envelope.encode(),
                    })
                    .await?;
                sent.insert(envelope.hash(), envelope);
            }
            under_way += 1;
        }
        let incoming = connection.recv().await?;
        match incoming.frame()? {
            Frame::SendAck { hash, seq } => {
                let envelope = sent.remove(&hash).unwrap();
                let before = seen.lock().unwrap().envelopes.insert(hash, (seq, envelope));
                assert!(before.is_none(), "acknowledged twice");
                busy.store(true, Ordering::Relaxed);
            }
            Frame::Handshake { seq, message, .. } => {
                let before = seen.lock().unwrap().handshakes.insert(seq, message.to_vec());
                assert!(before.is_none(), "a handshake number was given twice");
            }
            other => panic!("{other:?}"),
        }
        under_way -= 1;
    }
}

/// The whole log by repeated SUB from last + 1: a backfill is bounded (02 §8).
async fn read_all(relay: &Relay, device: &Identity, group: GroupId) -> HashMap<Hash, u64> {
    let hello = Hello::groups([group]);
    let mut reader = Connection::connect(&relay.endpoint(), device, &hello)
        .await
        .unwrap();
    let mut stored = HashMap::new();
    let mut from_seq = 1;
    loop {
        reader.send(&Frame::Sub { group, from_seq }).await.unwrap();
        reader.send(&Frame::Wake(Wake::Query)).await.unwrap();
        let begin = from_seq;
        let mut limited = false;
        loop {
            let incoming = reader.recv().await.unwrap();
            match incoming.frame().unwrap() {
                Frame::Push { envelope } => {
                    let envelope = Envelope::decode(envelope).unwrap();
                    stored.insert(envelope.hash, envelope.seq);
                    from_seq = from_seq.max(envelope.seq + 1);
                }
                Frame::Error { code, .. } => {
                    assert_eq!(code, Code::RateLimited);
                    limited = true;
                }
                Frame::Wake(_) => break,
                _ => {}
            }
        }
        if limited {
            // 300 SUBs a minute and connection: another one has its own.
            reader = Connection::connect(&relay.endpoint(), device, &hello)
                .await
                .unwrap();
        } else if from_seq == begin {
            return stored;
        }
    }
}

/// Kill -9 at random moments under load, fifty times: every acknowledged envelope is there under its number, a duplicate
/// keeps it, handshakes stay dense from 0.
#[tokio::test(flavor = "multi_thread")]
async fn fifty_kills_lose_nothing_that_was_acknowledged() {
    let mut relay = Relay::start(&[
        ("WEALD_RELAY_SEND_FRAMES_PER_MINUTE", "100000000"),
        ("WEALD_RELAY_SEND_BYTES_PER_MINUTE", "100000000000"),
        ("WEALD_RELAY_GROUP_INGRESS_BYTES_PER_MINUTE", "0"),
        ("WEALD_RELAY_WORKSPACE_INGRESS_BYTES_PER_MINUTE", "0"),
        ("WEALD_RELAY_GROUP_BACKLOG_BYTES", "0"),
    ]);
    let devices: Vec<Identity> = (0..WRITERS).map(|_| Identity::generate()).collect();
    let keys: Vec<_> = devices.iter().map(Identity::public).collect();
    let (workspace, founder) = relay.found(&keys).await;
    let root = workspace.root();
    let seen = Arc::new(Mutex::new(Acknowledged::default()));
    for kill in 0..KILLS {
        let busy = Arc::new(AtomicBool::new(false));
        let mut writers = tokio::task::JoinSet::new();
        for (i, device) in devices.iter().enumerate() {
            let hello = Hello::groups([root]);
            let mut connection = Connection::connect(&relay.endpoint(), device, &hello)
                .await
                .unwrap();
            let (seen, busy) = (seen.clone(), busy.clone());
            let salt = (kill * WRITERS + i) as u64;
            writers.spawn(async move {
                // It ends with the relay.
                let _ = write(&mut connection, root, salt, &seen, &busy).await;
            });
        }
        while !busy.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
        // Somewhere in the next fifty milliseconds of load.
        let random = Identity::generate().public().0[0];
        tokio::time::sleep(std::time::Duration::from_micros(u64::from(random) * 200)).await;
        relay.kill_and_restart();
        while let Some(ended) = writers.join_next().await {
            ended.unwrap();
        }
    }

    let seen = Arc::try_unwrap(seen)
        .map_err(|_| ())
        .unwrap()
        .into_inner()
        .unwrap();
    let hello = Hello::groups([root]);
    let mut reader = Connection::connect(&relay.endpoint(), &founder, &hello)
        .await
        .unwrap();
    let stored = read_all(&relay, &founder, root).await;
    for (hash, (seq, _)) in &seen.envelopes {
        assert_eq!(
            stored.get(hash),
            Some(seq),
            "an acknowledged envelope is gone or renumbered"
        );
    }
    for (hash, (seq, envelope)) in seen.envelopes.iter().take(50) {
        let again = reader.send_envelope(envelope).await.unwrap();
        assert_eq!(
            (again.hash, again.seq),
            (*hash, *seq),
            "a duplicate keeps its number"
        );
    }
    drop(reader);

    let mut reader = Connection::connect(&relay.endpoint(), &founder, &hello)
        .await
        .unwrap();
    reader
        .send(&Frame::Sub {
            group: root,
            from_seq: u64::MAX,
        })
        .await
        .unwrap();
    reader.send(&Frame::Wake(Wake::Query)).await.unwrap();
    let mut next = 0;
    loop {
        let incoming = reader.recv().await.unwrap();
        match incoming.frame().unwrap() {
            Frame::Handshake { seq, message, .. } => {
                assert_eq!(seq, next, "handshakes are dense");
                if let Some(acknowledged) = seen.handshakes.get(&seq) {
                    assert_eq!(acknowledged, message);
                }
                next += 1;
            }
            Frame::Wake(_) => break,
            _ => {}
        }
    }
    assert!(
        seen.handshakes.keys().all(|seq| *seq < next),
        "an acknowledged handshake is gone"
    );
    assert!(
        seen.envelopes.len() > KILLS * 10,
        "the load was no load: {}",
        seen.envelopes.len()
    );
}
