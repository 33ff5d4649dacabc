//! `/metrics` (13 §c.3) in Prometheus text. Written by hand: every number is an atomic that a shard owns and this page
//! sums, so a metrics library would only add a second registry. Labels come from closed sets; none names a group, a
//! workspace, a device or an address.

use super::process;
use super::ready::Readiness;
use crate::running::{Counters, Running};
use drover_engine::metrics::{Counter, Metrics as EngineMetrics};
use drover_transport::{CLOSE_REASON_LABELS, Snapshot};
use drover_wire::error::Code;
use std::fmt::Write as _;
use std::time::UNIX_EPOCH;

/// The text format's media type.
pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Names of frames by tag (01 §3); place 0 counts what could not be decoded.
const TAGS: [&str; 26] = [
    "undecodable",
    "CONNECT",
    "CONNECT_ACK",
    "AUTH_CHALLENGE",
    "AUTH",
    "AUTH_ACK",
    "ACCESS",
    "SUB",
    "SUB_ACK",
    "RECON",
    "PUSH",
    "SEND",
    "SEND_ACK",
    "BLOB",
    "BYE",
    "ERROR",
    "WRAP",
    "HANDSHAKE",
    "JOIN",
    "DROP",
    "INVITE",
    "LIVE",
    "KEYS",
    "CALL",
    "MEDIA",
    "WAKE",
];

/// A page being written.
#[derive(Default)]
pub(super) struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<_> = labels
            .iter()
            .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
            .collect();
        let labels = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{}}}", labels.join(","))
        };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    /// A gauge without labels.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    /// A counter without labels.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "counter", help);
        self.sample(name, &[], value);
    }

    /// A family with one label.
    fn by<'a>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        self.family(name, kind, help);
        for (of, value) in values {
            self.sample(name, &[(label, of)], value as f64);
        }
    }
}

fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// The whole page.
pub(super) fn page(running: &Running, ready: &Readiness) -> String {
    let mut page = Page::default();
    page.family("weald_relay_build_info", "gauge", "Version and build digest.");
    let build = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("digest", running.digest.as_str()),
    ];
    page.sample("weald_relay_build_info", &build, 1.0);
    let started = running
        .started
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64());
    page.gauge(
        "weald_relay_start_time_seconds",
        "When it began to serve, seconds since 1970.",
        started,
    );
    page.gauge(
        "weald_relay_ready",
        "Whether it is fit to serve reads and writes.",
        f64::from(ready.verdict),
    );
    let up = [
        ("database", ready.database.is_ok().into()),
        ("storage", ready.storage.is_ok().into()),
    ];
    page.by(
        "weald_relay_dependency_up",
        "gauge",
        "Whether what it depends on works.",
        "dependency",
        up,
    );
    page.gauge(
        "weald_relay_write_mode_full",
        "Whether durable writes are taken.",
        f64::from(running.writes()),
    );
    if let Some(counters) = running.counters() {
        connections(&mut page, &counters);
        frames(&mut page, &counters);
        engine(&mut page, &counters.engines);
        calls(&mut page, running, &counters);
        collector(&mut page, &counters.engines);
    }
    wakes(&mut page, running);
    process::add_store(&mut page, &running.store_dir());
    process::add(&mut page);
    page.0
}

/// Connections ended for one of the transport's reasons.
pub(super) fn closed(transport: &Snapshot, reason: &str) -> u64 {
    let place = CLOSE_REASON_LABELS.iter().position(|label| *label == reason);
    place.map_or(0, |place| transport.closed[place])
}

fn connections(page: &mut Page, counters: &Counters) {
    let t = &counters.transport;
    let ready = sum(&counters.engines, |e| &e.ready);
    let states = [
        ("unauthenticated", t.connections.saturating_sub(ready)),
        ("ready", ready),
    ];
    page.by(
        "weald_relay_connections",
        "gauge",
        "Open client connections.",
        "state",
        states,
    );
    let refused = [
        ("cap", t.refused_ceiling),
        ("source_share", t.refused_share),
        ("malformed", t.refused_malformed),
        ("stopping", t.refused_stopping),
    ];
    let help = "Upgrades refused; malformed includes an untrusted forwarded chain.";
    page.by(
        "weald_relay_connections_refused_total",
        "counter",
        help,
        "reason",
        refused,
    );
    let ended = CLOSE_REASON_LABELS.iter().map(|reason| {
        let broken = if *reason == "protocol" {
            t.transport_failures + t.oversize
        } else {
            0
        };
        (*reason, closed(t, reason) + broken)
    });
    let ended = ended.chain([("io", t.peer_lost)]);
    page.by(
        "weald_relay_connections_closed_total",
        "counter",
        "Connections ended.",
        "reason",
        ended,
    );
    let accepts = [
        ("accepted", t.accepted),
        ("failed", t.accept_errors),
        ("no_descriptor", t.accept_descriptor_limit),
        ("half_open", t.accept_half_open),
    ];
    page.by(
        "weald_relay_accepts_total",
        "counter",
        "TCP connections offered, by result.",
        "result",
        accepts,
    );
    let deferred = [
        ("fresh", t.deferred_fresh),
        ("slow", t.deferred_slow),
        ("long", t.deferred_long),
        ("idle", t.deferred_idle),
    ];
    page.by(
        "weald_relay_deferred_shares_total",
        "counter",
        "Shares of a turn that had to wait in line: many connections are being opened, those before took long or brought nothing but pings, scraps and refusals, or the message is long.",
        "reason",
        deferred,
    );
    page.gauge(
        "weald_relay_sockets",
        "Open sockets of any kind.",
        t.sockets as f64,
    );
    let tls = [("done", t.tls_handshakes), ("failed", t.tls_failures)];
    page.by(
        "weald_relay_tls_handshakes_total",
        "counter",
        "TLS handshakes, and TLS connections that broke.",
        "result",
        tls,
    );
    let help = "Changed certificates that could not be used; the old one was kept.";
    page.counter(
        "weald_relay_tls_reload_failures_total",
        help,
        t.tls_reload_failures as f64,
    );
    page.counter(
        "weald_relay_connections_migrated_total",
        "Connections moved to another shard.",
        t.migrated as f64,
    );
}

fn frames(page: &mut Page, counters: &Counters) {
    let t = &counters.transport;
    let name = "weald_relay_frames_total";
    page.family(
        name,
        "counter",
        "Frames, by name; those going out are counted together.",
    );
    for (tag, label) in TAGS.iter().enumerate() {
        let count = sum(&counters.engines, |e| &e.frames_in[tag]);
        page.sample(name, &[("direction", "in"), ("tag", label)], count as f64);
    }
    page.sample(
        name,
        &[("direction", "out"), ("tag", "any")],
        t.messages_out as f64,
    );
    let bytes = [("in", t.bytes_in), ("out", t.bytes_out)];
    let help = "Bytes read from and written to client sockets, framing and TLS included.";
    page.by(
        "weald_relay_frame_bytes_total",
        "counter",
        help,
        "direction",
        bytes,
    );
    let name = "weald_relay_errors_sent_total";
    page.family(name, "counter", "ERROR frames sent.");
    for (place, code) in Code::ALL.iter().enumerate() {
        let count = sum(&counters.engines, |e| &e.errors_sent[place]);
        page.sample(
            name,
            &[("class", code.class().as_str()), ("code", code.as_str())],
            count as f64,
        );
    }
    page.counter(
        "weald_relay_shard_turns_total",
        "Turns of the shard loops.",
        t.turns as f64,
    );
    page.gauge(
        "drover_receive_slots",
        "Slots that io_uring receives into.",
        t.receive_slots as f64,
    );
    page.counter(
        "drover_receive_slots_renewed_total",
        "Times a slot got new memory because a message in the old was still held.",
        t.receive_slots_renewed as f64,
    );
    page.counter(
        "drover_receive_starved_total",
        "Receives that found no slot and were begun again.",
        t.receive_starved as f64,
    );
}

fn engine(page: &mut Page, engines: &[std::sync::Arc<EngineMetrics>]) {
    type Field = fn(&EngineMetrics) -> &Counter;
    let counters: [(&str, &str, Field); 9] = [
        ("envelopes_accepted_total", "Envelopes made durable.", |e| {
            &e.envelopes_accepted
        }),
        (
            "envelopes_duplicate_total",
            "Envelopes answered with an earlier number.",
            |e| &e.envelopes_duplicate,
        ),
        (
            "fanout_frames_total",
            "PUSH and HANDSHAKE frames queued for subscribers.",
            |e| &e.fanout_frames,
        ),
        (
            "subscriber_downgrades_total",
            "Subscribers told to reconcile.",
            |e| &e.subscriber_downgrades,
        ),
        (
            "live_shed_total",
            "LIVE and CALL frames a full queue shed.",
            |e| &e.live_shed,
        ),
        ("recon_rounds_total", "Reconciliation rounds answered.", |e| {
            &e.recon_rounds
        }),
        ("commits_total", "Batches made durable.", |e| &e.commits),
        ("commits_failed_total", "Batches that failed.", |e| {
            &e.commits_failed
        }),
        (
            "oversized_outbound_frames_total",
            "Outbound frames above the ceiling: a defect of ours.",
            |e| &e.oversized_outbound_frames,
        ),
    ];
    for (name, help, field) in counters {
        page.counter(&format!("weald_relay_{name}"), help, sum(engines, field) as f64);
    }
    let used = [("used", sum(engines, |e| &e.log_bytes))];
    page.by(
        "weald_relay_log_bytes",
        "gauge",
        "Log bytes of the workspaces in memory.",
        "kind",
        used,
    );
}

/// CALL and MEDIA (10), and what becomes of bytes between two sockets.
fn calls(page: &mut Page, running: &Running, counters: &Counters) {
    let engines = &counters.engines;
    page.gauge(
        "weald_relay_calls_open",
        "Open calls.",
        running.calls_open() as f64,
    );
    let refused = sum(engines, |e| &e.calls_share_refused);
    let help = "Calls refused because the connection holds its share of them.";
    page.counter("weald_relay_calls_share_refused_total", help, refused as f64);
    let frames = [
        ("forwarded", sum(engines, |e| &e.media_forwarded)),
        ("shed", counters.transport.media_shed),
        ("denied", sum(engines, |e| &e.media_denied)),
    ];
    let help =
        "MEDIA frames: queued for a recipient, of those shed, and refused to senders outside the call.";
    page.by(
        "weald_relay_media_frames_total",
        "counter",
        help,
        "result",
        frames,
    );
    let forwarded = sum(engines, |e| &e.media_forwarded_bytes);
    let help = "Bytes of MEDIA queued for recipients.";
    page.counter("weald_relay_media_forwarded_bytes_total", help, forwarded as f64);
    let copied = counters.transport.copied_bytes + sum(engines, |e| &e.media_copied_bytes);
    let help = "Bytes of queued messages of any kind copied on their way to a socket.";
    page.counter("weald_relay_copied_bytes_total", help, copied as f64);
}

fn collector(page: &mut Page, engines: &[std::sync::Arc<EngineMetrics>]) {
    page.gauge(
        "weald_relay_collector_last_success_timestamp_seconds",
        "When the last pass of the collector ended in which nothing failed; 0: none yet.",
        sum(engines, |e| &e.collector_passed_ms) as f64 / 1000.0,
    );
    let deleted = [
        ("handle", sum(engines, |e| &e.collected_handles)),
        ("prior_wrap", sum(engines, |e| &e.collected_prior_wraps)),
        ("handoff", sum(engines, |e| &e.collected_handoffs)),
        ("key_package", sum(engines, |e| &e.collected_key_packages)),
        ("reservation", sum(engines, |e| &e.collected_reservations)),
        ("invite", sum(engines, |e| &e.collected_invites)),
    ];
    let help = "What the collector has deleted, or ended, because its time was over.";
    page.by(
        "weald_relay_collector_deleted_total",
        "counter",
        help,
        "kind",
        deleted,
    );
}

/// All zero with push off.
fn wakes(page: &mut Page, running: &Running) {
    let counted = running.ringer.as_ref().map(|ringer| ringer.counted());
    let counted = counted.unwrap_or_default();
    let results = [
        ("sent", counted.sent),
        ("dropped", counted.dropped),
        ("failed", counted.failed),
        ("gone", counted.gone),
    ];
    let help = "Wakes, by what became of them.";
    page.by("weald_relay_wakes_total", "counter", help, "result", results);
    let help = "Pauses the ringer asked for; the wake it answered so is not sent again.";
    page.counter("weald_relay_wake_pauses_total", help, counted.pauses as f64);
    page.gauge(
        "weald_relay_wake_queue",
        "Wakes that wait.",
        counted.waiting as f64,
    );
}

fn sum(engines: &[std::sync::Arc<EngineMetrics>], field: impl Fn(&EngineMetrics) -> &Counter) -> u64 {
    engines.iter().map(|engine| field(engine).get()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_format_is_kept() {
        let mut page = Page::default();
        page.by(
            "x_total",
            "counter",
            "Things.",
            "kind",
            [("a", 1), ("b\"\\\n", 2)],
        );
        page.gauge("y", "A half.", 0.5);
        let want = "# HELP x_total Things.\n# TYPE x_total counter\nx_total{kind=\"a\"} 1\n\
                    x_total{kind=\"b\\\"\\\\\\n\"} 2\n# HELP y A half.\n# TYPE y gauge\ny 0.5\n";
        assert_eq!(page.0, want);
    }
}
