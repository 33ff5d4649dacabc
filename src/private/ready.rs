//! `/readyz` (13 §c.2): probed afresh on each request.

use crate::config::Key;
use crate::running::{Health, Running};
use drover_engine::metrics::{Counter, Metrics as EngineMetrics};
use serde_json::{Value, json};

/// What was found.
pub(super) struct Readiness {
    /// Whether records can be written and read.
    pub(super) database: Health,
    /// Whether blobs can be written.
    pub(super) storage: Health,
    /// Fit to serve reads and writes.
    pub(super) verdict: bool,
    /// Fit to serve reads: true under maintenance too.
    reads: bool,
}

impl Readiness {
    /// Asks everything the relay depends on.
    pub(super) async fn probe(running: &Running) -> Self {
        let (database, storage) = tokio::join!(running.database(), running.storage());
        let reads = database.is_ok() && storage.is_ok() && !running.is_stopping();
        let verdict = reads && running.writes();
        Self {
            database,
            storage,
            verdict,
            reads,
        }
    }

    /// The document an operator sees. Fields may be added; pollers ignore what they don't know.
    pub(super) async fn document(&self, running: &Running) -> Value {
        let frozen = running.frozen().await;
        let config = &running.config;
        let mut document = json!({
            "build": format!("{} {}", super::PROGRAM, env!("CARGO_PKG_VERSION")),
            "version": env!("CARGO_PKG_VERSION"),
            "database": health(&self.database),
            "storage": health(&self.storage),
            "access_set": config.word(Key::AccessSet),
            "min_enc": config.word(Key::MinEnc),
            "write_mode": config.word(Key::WriteMode),
            "frozen_groups": frozen,
            "release": { "state": if config.on(Key::ReleaseCheck) { "unknown" } else { "disabled" } },
            "push": push(running),
            "calls": config.word(Key::Calls),
            "call_stats": call_stats(running),
            "db_pool": { "size": config.number(Key::DbPoolSize), "connections": 0, "in_use": 0 },
            "io_driver": IO_DRIVER,
            "stopping": running.is_stopping(),
            "reads_ready": self.reads,
            "ready": self.verdict,
        });
        if !running.writes() {
            document["write_mode_reason"] = "service_read_only".into();
        }
        document
    }
}

/// Whether wakes leave. A ringer that does not answer never makes the relay unfit (12 §8).
fn push(running: &Running) -> &'static str {
    match &running.ringer {
        None => "off",
        Some(ringer) if ringer.is_reachable() => "configured",
        Some(_) => "unreachable",
    }
}

/// The driver under the shard loops; there is one so far.
const IO_DRIVER: &str = "epoll";

fn health(health: &Health) -> Value {
    match health {
        Ok(()) => json!({ "ok": true }),
        Err(detail) => json!({ "ok": false, "detail": detail }),
    }
}

/// Counters since start, except `open` and `connections`.
fn call_stats(running: &Running) -> Value {
    let counters = running.counters();
    let transport = counters.as_ref().map(|c| c.transport.clone()).unwrap_or_default();
    let sum = |field: fn(&EngineMetrics) -> &Counter| -> u64 {
        let engines = counters.iter().flat_map(|c| &c.engines);
        engines.map(|engine| field(engine).get()).sum()
    };
    let closed = |reason| super::metrics::closed(&transport, reason);
    json!({
        "open": running.calls_open(),
        "media_shed": transport.media_shed,
        "media_denied": sum(|e| &e.media_denied),
        "calls_share_refused": sum(|e| &e.calls_share_refused),
        "connections": transport.connections,
        "connections_refused": transport.refused_ceiling + transport.refused_share,
        "connections_closed_handshake_deadline": closed("handshake_deadline"),
        "oversized_outbound_frames": sum(|e| &e.oversized_outbound_frames),
        "connections_closed_idle_deadline": closed("idle_deadline"),
    })
}
