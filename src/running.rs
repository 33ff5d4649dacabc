//! The relay while it runs, as the operator's surface sees it: what to count, what to ask a workspace, whether it is
//! fit to serve.

use crate::config::{Config, Key, Storage};
use crate::inspect::{self, Question};
use crate::ringer::Ringer;
use crate::store_check;
use crate::workspace::{self, Banner};
use drover_engine::collector::Collected;
use drover_engine::effects::Stores;
use drover_engine::inspect::RealmReport;
use drover_engine::shard::{MintOutcome, Operator, ShardMessage};
use drover_engine::wake::WakeHandle;
use drover_engine::{Directory, metrics::Metrics as EngineMetrics};
use drover_storage::RealmId;
use drover_storage::embedded::{Embedded, OpenError};
use drover_transport::{IoDriver, Relay, Snapshot};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};
use tokio::sync::oneshot;

/// How long a store may take to answer a probe, and a shard to answer the operator.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a pass of the collector may take for somebody who waits for it.
const PASS_PATIENCE: Duration = Duration::from_secs(600);

/// See the module.
pub(crate) struct Running {
    /// What the operator chose.
    pub(crate) config: Config,
    /// The build's digest (13 §k).
    pub(crate) digest: String,
    /// When it began to serve.
    pub(crate) started: SystemTime,
    /// `None` before it starts and once it drains.
    relay: RwLock<Option<Relay>>,
    stopping: AtomicBool,
    store: Embedded,
    /// A copy of the store is being made.
    copying: Arc<tokio::sync::Mutex<()>>,
    stores: Stores,
    directory: Arc<Directory>,
    /// With push on.
    pub(crate) ringer: Option<Arc<Ringer>>,
}

/// What became of a mint.
#[derive(Debug)]
pub(crate) enum Mint {
    /// It exists now: to be printed once.
    Minted(Banner),
    /// It existed.
    Existed,
}

/// Whether something we depend on works; the text says why not, without path or address.
pub(crate) type Health = Result<(), String>;

/// Everything that is counted, at one moment.
pub(crate) struct Counters {
    /// Of the transport.
    pub(crate) transport: Snapshot,
    /// Of each shard's engine.
    pub(crate) engines: Vec<Arc<EngineMetrics>>,
}

impl Running {
    /// Before the shards start.
    pub(crate) fn new(
        config: Config,
        digest: String,
        store: Embedded,
        stores: Stores,
        directory: Arc<Directory>,
        ringer: Option<Arc<Ringer>>,
    ) -> Self {
        Self {
            config,
            digest,
            started: SystemTime::now(),
            relay: RwLock::new(None),
            stopping: AtomicBool::new(false),
            store,
            copying: Arc::default(),
            stores,
            directory,
            ringer,
        }
    }

    /// The shards serve.
    pub(crate) fn set_relay(&self, relay: Relay) {
        *self.relay.write().unwrap_or_else(PoisonError::into_inner) = Some(relay);
    }

    /// Takes the relay away, to be drained. Readiness is refused from now on.
    pub(crate) fn stop(&self) -> Option<Relay> {
        self.stopping.store(true, Ordering::Release);
        self.relay.write().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn with_relay<R>(&self, f: impl FnOnce(&Relay) -> R) -> Option<R> {
        self.relay
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .as_ref()
            .map(f)
    }

    /// Whether it has been told to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// What has broken in a way that only another start can mend.
    pub(crate) fn failure(&self) -> Option<&'static str> {
        if self.store.has_failed() {
            Some("the store takes nothing more until it is opened again")
        } else if self.with_relay(Relay::has_failed).unwrap_or(false) {
            Some("a shard ended")
        } else {
            None
        }
    }

    /// What runs below the shard loops; `None` while it starts or stops.
    pub(crate) fn io(&self) -> Option<IoDriver> {
        self.with_relay(|relay| relay.io().clone())
    }

    /// What is counted; `None` while it starts or stops.
    pub(crate) fn counters(&self) -> Option<Counters> {
        self.with_relay(|relay| Counters {
            transport: relay.metrics(),
            engines: relay.engine_metrics().to_vec(),
        })
    }

    /// Makes a workspace exist. `first`: it is the relay's own.
    ///
    /// # Errors
    /// When the store or the system's randomness fails, or the relay is stopping.
    pub(crate) async fn mint(&self, realm: &RealmId, first: bool) -> anyhow::Result<Mint> {
        let (id, hostname) = (realm.clone(), self.config.hostname().to_owned());
        let handoff = self.config.handoff_key().cloned();
        let is_sealed = handoff.is_some();
        let minted = tokio::task::spawn_blocking(move || {
            workspace::mint(&id, workspace::now_ms(), first, &hostname, handoff.as_ref())
        });
        let minted = minted.await??;
        let outcome = self
            .ask(realm, |reply| Operator::Mint {
                minted: Box::new(minted),
                reply,
            })
            .await?;
        match outcome {
            MintOutcome::Minted(banner) => Ok(Mint::Minted(Banner::fresh(
                self.config.hostname(),
                &banner,
                is_sealed,
            ))),
            MintOutcome::Existed => Ok(Mint::Existed),
            MintOutcome::Failed => anyhow::bail!("the store did not take it{}", self.room()),
        }
    }

    /// What is free on the store's disk, as the rest of a sentence: a full disk is the likeliest reason for a refusal, and
    /// one on which something is still free does not look full.
    fn room(&self) -> String {
        rustix::fs::statvfs(self.store_dir()).map_or_else(
            |_| String::new(),
            |disk| room(disk.f_bavail.saturating_mul(disk.f_frsize)),
        )
    }

    /// The relay's own workspace, if it has one.
    pub(crate) fn first(&self) -> Option<RealmId> {
        self.directory.first()
    }

    /// Calls that are open.
    pub(crate) fn calls_open(&self) -> usize {
        self.directory.calls().open()
    }

    /// What can be counted of a workspace.
    ///
    /// # Errors
    /// When its state can't be read, or the relay is stopping.
    pub(crate) async fn report(&self, realm: &RealmId) -> anyhow::Result<RealmReport> {
        let report = self.ask(realm, |reply| Operator::Report { reply }).await?;
        report.ok_or_else(|| anyhow::anyhow!("its state can't be read"))
    }

    /// Answers a question about workspaces; `None`: there is none of that name.
    ///
    /// # Errors
    /// As [`Running::report`].
    pub(crate) async fn inspect(&self, question: &Question) -> anyhow::Result<Option<Value>> {
        let realms = self.directory.realms();
        Ok(match question {
            Question::List => {
                let mut all = Vec::new();
                for realm in &realms {
                    all.push(inspect::summary(&self.report(realm).await?));
                }
                Some(Value::Array(all))
            }
            Question::Show(realm) | Question::Log(realm) if !realms.contains(realm) => None,
            Question::Show(realm) => Some(inspect::summary(&self.report(realm).await?)),
            Question::Log(realm) => {
                let log = self.ask(realm, |reply| Operator::Log { reply }).await?;
                let log = log.ok_or_else(|| anyhow::anyhow!("its log can't be read"))?;
                Some(inspect::log(&log))
            }
        })
    }

    async fn ask<T: Send + 'static>(
        &self,
        realm: &RealmId,
        operator: impl FnOnce(Box<dyn FnOnce(T) + Send>) -> Operator,
    ) -> anyhow::Result<T> {
        let (tell, told) = oneshot::channel();
        let reply = Box::new(move |answer| drop(tell.send(answer)));
        let shards = self.config.shards();
        let (shard, message) = ShardMessage::operator(realm.clone(), operator(reply), shards);
        if self.with_relay(|relay| relay.post(shard, message)).is_none() {
            anyhow::bail!("the relay does not serve");
        }
        Ok(tokio::time::timeout(PATIENCE, told).await??)
    }

    /// Copies the store into a folder, while it is in use. One at a time: `None` if another copy is being made.
    ///
    /// # Errors
    /// As [`store_check::snapshot`].
    pub(crate) async fn snapshot(&self, folder: PathBuf) -> anyhow::Result<Option<Result<Value, OpenError>>> {
        let Ok(permit) = self.copying.clone().try_lock_owned() else {
            return Ok(None);
        };
        let store = self.store.clone();
        // It goes on to its end even if whoever asked goes away.
        let copied = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            store_check::snapshot(&store, &folder)
        });
        Ok(Some(copied.await?))
    }

    /// Runs one pass of the collector now.
    ///
    /// # Errors
    /// When the relay is stopping, or the pass does not end.
    pub(crate) async fn collect(&self, listing: bool) -> anyhow::Result<Collected> {
        let (tell, told) = oneshot::channel();
        let reply = Box::new(move |collected| {
            let _ = tell.send(collected);
        });
        let (shard, message) = ShardMessage::collect(listing, reply);
        if self.with_relay(|relay| relay.post(shard, message)).is_none() {
            anyhow::bail!("the relay does not serve");
        }
        Ok(tokio::time::timeout(PASS_PATIENCE, told).await??)
    }

    /// The ringer does not know this handle: its registration goes.
    pub(crate) fn forget_handle(&self, realm: RealmId, handle: WakeHandle) {
        let (shard, message) = ShardMessage::forget_handle(realm, handle, self.config.shards());
        self.with_relay(|relay| relay.post(shard, message));
    }

    /// Entries of the newest access set, summed over all workspaces (13 §c.1).
    ///
    /// # Errors
    /// When one can't be read: a sum with a hole in it is no sum.
    pub(crate) async fn admitted(&self) -> anyhow::Result<usize> {
        let mut sum = 0;
        for realm in self.directory.realms() {
            sum += self.report(&realm).await?.entries.unwrap_or_default();
        }
        Ok(sum)
    }

    /// Groups frozen by a retention conflict, as the first twelve hex digits of their ids (13 §c.2). A workspace that
    /// can't be read is left out: the database's own health says so.
    pub(crate) async fn frozen(&self) -> Vec<String> {
        let mut frozen = Vec::new();
        for realm in self.directory.realms() {
            if let Ok(report) = self.report(&realm).await {
                frozen.extend(report.frozen.iter().map(|group| workspace::hex(&group.0[..6])));
            }
        }
        frozen
    }

    /// Whether records can be written and read.
    pub(crate) async fn database(&self) -> Health {
        if let Some(ailment) = self.store.ailment() {
            return Err(ailment.to_owned());
        }
        let (tell, told) = oneshot::channel();
        let done = Box::new(move |answer: Result<_, _>| {
            let _ = tell.send(answer.is_ok());
        });
        self.stores
            .control
            .get(RealmId("probe".into()), b"probe".to_vec(), done);
        match tokio::time::timeout(PATIENCE, told).await {
            Ok(Ok(true)) => Ok(()),
            _ => Err("a read was not answered".to_owned()),
        }
    }

    /// Whether blobs can be written. A bucket is not asked yet: nothing uses it.
    pub(crate) async fn storage(&self) -> Health {
        let Storage::Folder(folder) = self.config.storage() else {
            return Ok(());
        };
        let probe = tokio::task::spawn_blocking(move || probe_folder(&folder));
        match tokio::time::timeout(PATIENCE, probe).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(error))) => Err(format!("the blob folder can't be written: {}", error.kind())),
            _ => Err("the blob folder does not answer".to_owned()),
        }
    }

    /// Whether durable writes are taken.
    pub(crate) fn writes(&self) -> bool {
        self.config.word(Key::WriteMode) == "full"
    }

    /// The folder the store is in.
    pub(crate) fn store_dir(&self) -> PathBuf {
        self.config.store_dir()
    }
}

/// Writes a hidden file and removes it (13 §c.2).
///
/// # Errors
/// What the system said.
pub(crate) fn probe_folder(folder: &Path) -> std::io::Result<()> {
    let file = folder.join(format!(".drover-probe-{}", std::process::id()));
    std::fs::write(&file, b"probe")?;
    std::fs::remove_file(&file)
}

fn room(free_bytes: u64) -> String {
    let reserve = Embedded::RESERVE_BYTES;
    let verdict = match free_bytes < reserve {
        true => ", which is too little",
        false => "",
    };
    format!(
        ": {} MiB are free on its disk{verdict}; it always leaves {} MiB free",
        free_bytes >> 20,
        reserve >> 20
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_tells_what_is_free_and_what_is_kept() {
        assert_eq!(
            room(200 << 20),
            ": 200 MiB are free on its disk, which is too little; it always leaves 256 MiB free"
        );
        assert!(!room(256 << 20).contains("too little"));
    }
}
