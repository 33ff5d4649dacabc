//! One writer and its book: what was acknowledged, to be asked for afterwards.

use crate::relay::Relay;
use drover_client::wire::error::Code;
use drover_client::wire::id::GroupId;
use drover_client::{Connection, Error, Hello, Identity, MemoryStore, SealedEnvelope, Store};
use std::collections::BTreeMap;

/// Budgets that this test's writer would meet.
pub(crate) const OPEN_BUDGETS: [(&str, &str); 5] = [
    ("WEALD_RELAY_SEND_FRAMES_PER_MINUTE", "100000000"),
    ("WEALD_RELAY_SEND_BYTES_PER_MINUTE", "100000000000"),
    ("WEALD_RELAY_GROUP_INGRESS_BYTES_PER_MINUTE", "0"),
    ("WEALD_RELAY_WORKSPACE_INGRESS_BYTES_PER_MINUTE", "0"),
    ("WEALD_RELAY_GROUP_BACKLOG_BYTES", "0"),
];

/// What became of a SEND.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Acknowledged,
    /// `retry/backpressure`, and the connection stays.
    Backpressure,
    /// The connection ended: `retry/failover`, or the process did.
    Cut,
}

pub(crate) struct Ledger {
    pub(crate) root: GroupId,
    pub(crate) device: Identity,
    connection: Option<Connection>,
    acknowledged: BTreeMap<u64, SealedEnvelope>,
    made: u64,
}

impl Ledger {
    /// Founds the relay's workspace.
    pub(crate) async fn open(relay: &Relay) -> Self {
        let (workspace, device) = relay.found(&[]).await;
        Self::of(workspace.root(), device)
    }

    /// Of a member of a workspace.
    pub(crate) fn of(root: GroupId, device: Identity) -> Self {
        Self {
            root,
            device,
            connection: None,
            acknowledged: BTreeMap::new(),
            made: 0,
        }
    }

    pub(crate) async fn connect(&self, relay: &Relay) -> Result<Connection, Error> {
        let hello = Hello::groups([self.root]);
        Connection::connect(&relay.endpoint(), &self.device, &hello).await
    }

    /// Sends an envelope of so many bytes that was never sent before.
    pub(crate) async fn send(&mut self, relay: &Relay, bytes: usize) -> Fate {
        self.made += 1;
        let ct = [
            self.made.to_be_bytes().to_vec(),
            self.device.public().0.to_vec(),
            vec![7; bytes],
        ]
        .concat();
        let envelope = SealedEnvelope::new(self.root, 1, ct).unwrap();
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => match self.connect(relay).await {
                Ok(connection) => connection,
                Err(error) => return self.fate(&error, None),
            },
        };
        match connection.send_envelope(&envelope).await {
            Ok(ack) => {
                self.connection = Some(connection);
                let before = self.acknowledged.insert(ack.seq, envelope);
                assert!(before.is_none(), "number {} was given twice", ack.seq);
                Fate::Acknowledged
            }
            Err(error) => self.fate(&error, Some(connection)),
        }
    }

    fn fate(&mut self, error: &Error, connection: Option<Connection>) -> Fate {
        match error.refusal().map(|refusal| refusal.code) {
            Some(Code::Backpressure) => {
                self.connection = connection;
                Fate::Backpressure
            }
            Some(Code::Failover) | None => Fate::Cut,
            Some(other) => panic!("refused for another reason: {other:?}"),
        }
    }

    /// Sends until one is acknowledged.
    pub(crate) async fn send_until_acknowledged(&mut self, relay: &Relay) {
        let end = std::time::Instant::now() + crate::faults::PATIENCE;
        while self.send(relay, 100).await != Fate::Acknowledged {
            assert!(std::time::Instant::now() < end, "writes never worked again");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn acknowledged(&self) -> usize {
        self.acknowledged.len()
    }

    /// The newest that was acknowledged.
    pub(crate) fn newest(&self) -> Option<&SealedEnvelope> {
        self.acknowledged.last_key_value().map(|(_, envelope)| envelope)
    }

    /// All but the newest was deleted; how many these are.
    pub(crate) fn keep_newest(&mut self) -> u64 {
        let newest = self.acknowledged.pop_last();
        let deleted = self.acknowledged.len() as u64;
        self.acknowledged = newest.into_iter().collect();
        deleted
    }

    /// Everything acknowledged is there, under its number and with its bytes: an empty client fetches the log.
    pub(crate) async fn check(&mut self, relay: &Relay) {
        self.connection = None;
        let mut reader = self.connect(relay).await.unwrap();
        let store = MemoryStore::new();
        reader.reconcile(self.root, &store).await.unwrap();
        self.check_held(&store);
        // A duplicate keeps its number.
        if let Some((seq, envelope)) = self.acknowledged.last_key_value() {
            assert_eq!(reader.send_envelope(envelope).await.unwrap().seq, *seq);
        }
    }

    /// All of it is in what a client fetched.
    pub(crate) fn check_held(&self, store: &MemoryStore) {
        for (seq, envelope) in &self.acknowledged {
            let held = store
                .envelope(self.root, &envelope.hash())
                .unwrap_or_else(|| panic!("number {seq} was acknowledged and is gone"));
            assert_eq!((held.seq(), held.ct()), (*seq, envelope.ct()), "another record");
        }
    }
}
