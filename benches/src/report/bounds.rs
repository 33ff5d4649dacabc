//! The figures that must be reached in the reference settings, and which raw baseline does the same work as a row.

use super::document::{Judged, Multiple, RowDocument};
use crate::args::Attack;

/// A figure a release must reach in the reference settings on two cores shared with this generator.
struct Target {
    row: &'static str,
    figure: &'static str,
    bound: Bound,
    what: &'static str,
}

#[derive(Clone, Copy)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    fn met(self, value: f64) -> bool {
        match self {
            Bound::AtMost(bound) => value <= bound,
            Bound::AtLeast(bound) => value >= bound,
        }
    }

    fn text(self) -> String {
        match self {
            Bound::AtMost(bound) => format!("<= {bound}"),
            Bound::AtLeast(bound) => format!(">= {bound}"),
        }
    }
}

const fn target(row: &'static str, figure: &'static str, bound: Bound, what: &'static str) -> Target {
    Target {
        row,
        figure,
        bound,
        what,
    }
}

const TARGETS: [Target; 23] = [
    target(
        "ingest",
        "cpu_ms_per_1000",
        Bound::AtMost(3.5),
        "CPU ms per 1000 durable SENDs",
    ),
    target(
        "ingest",
        "rate_per_s",
        Bound::AtLeast(250_000.0),
        "durable SENDs per second",
    ),
    target("ingest", "p99_ms", Bound::AtMost(30.0), "p99 ms of durable SENDs"),
    target(
        "fanout",
        "rate_per_s",
        Bound::AtLeast(2_500_000.0),
        "PUSHes per second",
    ),
    target(
        "fanout",
        "cpu_ms_per_1000",
        Bound::AtMost(0.35),
        "CPU ms per 1000 PUSHes",
    ),
    target(
        "fanout-paced",
        "cpu_ms_per_1000",
        Bound::AtMost(5.0),
        "CPU ms per 1000 PUSHes, 100 SENDs/s",
    ),
    target(
        "fanout-paced",
        "p99_ms",
        Bound::AtMost(3.0),
        "p99 ms, 100 SENDs/s",
    ),
    target(
        "replay",
        "mb_per_s",
        Bound::AtLeast(800.0),
        "MB per second of replay",
    ),
    target(
        "replay",
        "cpu_ms_per_1000",
        Bound::AtMost(0.8),
        "CPU ms per 1000 envelopes replayed",
    ),
    target(
        "media",
        "cpu_ms_per_1000",
        Bound::AtMost(4.0),
        "CPU ms per 1000 MEDIA frames",
    ),
    target(
        "media",
        "cpu_ms_per_1000",
        Bound::AtMost(3.5),
        "CPU ms per 1000 MEDIA frames, uring",
    ),
    target("media", "p99_ms", Bound::AtMost(2.0), "p99 ms of MEDIA"),
    target("recon", "rounds_max", Bound::AtMost(3.0), "rounds of RECON"),
    target(
        "recon-cold",
        "p50_ms",
        Bound::AtMost(15.0),
        "ms of RECON, group cold",
    ),
    target(
        "compact",
        "p99_times",
        Bound::AtMost(2.0),
        "p99 of SENDs during a compaction, by that before it",
    ),
    target(
        "recon",
        "cpu_ms_each",
        Bound::AtMost(3.0),
        "CPU ms per reconciliation",
    ),
    target(
        "access",
        "cpu_ms_each",
        Bound::AtMost(5.0),
        "CPU ms per publication of 4096 entries",
    ),
    target(
        "access",
        "open_at_answer_max",
        Bound::AtMost(0.0),
        "dropped connections open at the answer",
    ),
    // A race with none or several is an error.
    target(
        "join-race",
        "winners_each",
        Bound::AtMost(1.0),
        "winners of a race for one seat",
    ),
    target(
        "join-send",
        "p99_ratio",
        Bound::AtMost(3.0),
        "p99 of SEND beside 8 hashes / idle",
    ),
    target(
        "drop",
        "cpu_us_each",
        Bound::AtMost(2.0),
        "CPU us per envelope dropped",
    ),
    target(
        "idle",
        "kib_per_connection",
        Bound::AtMost(4.0),
        "KiB per idle connection, plain",
    ),
    target(
        "idle-tls",
        "kib_per_connection",
        Bound::AtMost(20.0),
        "KiB per idle connection, TLS",
    ),
];

/// The most an attack may slow down a client beside it (issue: 3× idle).
const HOSTILE: Bound = Bound::AtMost(3.0);

/// Which row of a baseline or of a peer does the same work as a row of the relay.
const BASELINES: [(&str, &str); 12] = [
    ("ingest", "raw-durable"),
    ("ingest", "raw-echo"),
    ("ingest", "raw-echo-single"),
    ("ingest", "raw-append-1024"),
    ("fanout", "raw-fanout"),
    ("fanout", "raw-fanout-single"),
    ("fanout-paced", "raw-fanout-paced"),
    ("replay", "raw-stream"),
    ("ingest", "redis-streams"),
    ("fanout", "redis-pubsub"),
    ("media", "raw-forward"),
    ("media", "raw-forward-turns"),
];

/// Every figure for which there is a bound.
pub(super) fn judged(rows: &[RowDocument]) -> Vec<Judged> {
    let hostile = Attack::ALL.iter().map(|attack| {
        target(
            attack.row(),
            "times_idle",
            HOSTILE,
            "p99 of a SEND beside an attack, times idle",
        )
    });
    let mut judged = Vec::new();
    for target in TARGETS.into_iter().chain(hostile) {
        for row in rows.iter().filter(|row| target.is_for(row)) {
            let Some(value) = row.median(target.figure) else {
                continue;
            };
            judged.push(Judged {
                row: row.label(),
                figure: target.figure.to_owned(),
                what: target.what.to_owned(),
                value,
                bound: target.bound.text(),
                met: target.bound.met(value),
            });
        }
    }
    judged
}

impl Target {
    /// Bounds of media are for plain WebSocket, and two differ by driver.
    fn is_for(&self, row: &RowDocument) -> bool {
        let is_plain = row.setting("transport").is_none_or(|transport| transport == "ws");
        let is_uring = row.setting("driver").is_some_and(|driver| driver == "uring");
        let is_of_driver = match self.what {
            "CPU ms per 1000 MEDIA frames" => !is_uring,
            "CPU ms per 1000 MEDIA frames, uring" => is_uring,
            _ => true,
        };
        row.name == self.row && is_plain && is_of_driver
    }
}

/// Rate, CPU and p99 of each row in multiples of the baselines that had the same load: all settings of a baseline are
/// the row's.
pub(super) fn multiples(rows: &[RowDocument]) -> Vec<Multiple> {
    let mut multiples = Vec::new();
    for (name, raw) in BASELINES {
        for row in rows.iter().filter(|row| row.name == name) {
            let has_the_load = |raw: &RowDocument| {
                let mut settings = raw.settings.iter();
                settings.all(|(name, value)| row.settings.get(name) == Some(value))
            };
            let Some(base) = rows
                .iter()
                .find(|candidate| candidate.name == raw && has_the_load(candidate))
            else {
                continue;
            };
            let ratio = |figure| {
                let (value, base) = (row.median(figure)?, base.median(figure)?);
                (base > 0.0).then_some(value / base)
            };
            multiples.push(Multiple {
                row: row.label(),
                baseline: raw.to_owned(),
                rate: ratio("rate_per_s"),
                cpu: ratio("cpu_ms_per_1000"),
                p99: ratio("p99_ms").or_else(|| ratio("half_round_trip_p99_ms")),
            });
        }
    }
    multiples
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Row;
    use crate::report::tests::{media, run};

    #[test]
    fn bounds_are_inclusive() {
        assert!(Bound::AtMost(3.0).met(3.0) && !Bound::AtMost(3.0).met(3.1));
        assert!(Bound::AtLeast(3.0).met(3.0) && !Bound::AtLeast(3.0).met(2.9));
    }

    #[test]
    fn targets_and_multiples_of_what_was_measured_only() {
        let row = |name, ops, ms| {
            let mut run = run(ops, ms, 1.0);
            run.latencies.reset();
            RowDocument::new(&Row::new(name, String::new(), vec![run]))
        };
        let rows = [row("ingest", 300_000, 900), row("raw-durable", 600_000, 450)];
        let judged = judged(&rows);
        assert_eq!(judged.len(), 2);
        assert!(judged.iter().all(|judged| judged.met));
        let multiples = multiples(&rows);
        assert_eq!(multiples.len(), 1);
        assert_eq!(
            (multiples[0].rate, multiples[0].cpu, multiples[0].p99),
            (Some(0.5), Some(4.0), None)
        );
    }

    #[test]
    fn media_is_judged_by_its_driver_and_only_plain() {
        let row = |driver, transport| RowDocument::new(&media(driver, transport, 80, &[3.7]));
        let rows = [row("epoll", "ws"), row("uring", "ws"), row("epoll", "wss")];
        let cpu: Vec<Judged> = judged(&rows)
            .into_iter()
            .filter(|judged| judged.figure == "cpu_ms_per_1000")
            .collect();
        let met: Vec<bool> = cpu.iter().map(|judged| judged.met).collect();
        assert_eq!(met, [true, false], "{cpu:?}");
        assert!(cpu[1].row.contains("uring"));
    }

    #[test]
    fn a_baseline_counts_for_its_own_load_only() {
        let raw = |calls: usize| {
            let mut row = Row::new("raw-forward", String::new(), vec![run(1000, 2, 1.0)]);
            row.settings.insert("calls".into(), calls.into());
            RowDocument::new(&row)
        };
        let row = |calls| RowDocument::new(&media("epoll", "ws", calls, &[3.0]));
        let multiples = multiples(&[row(20), row(80), row(7), raw(20), raw(80)]);
        let rows: Vec<&str> = multiples.iter().map(|multiple| multiple.row.as_str()).collect();
        assert_eq!(rows.len(), 2, "{rows:?}");
        assert!(
            rows[0].contains("20 calls") && rows[1].contains("80 calls"),
            "{rows:?}"
        );
        assert_eq!(multiples[0].cpu, Some(1.5));
    }
}
