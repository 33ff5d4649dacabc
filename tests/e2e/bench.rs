//! `drover bench media` as a user runs it: against relays it starts, against one that runs already, over ws and wss, in
//! one process and in two, with the files it writes.

use crate::relay::{PROGRAM, Relay};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Few frames: tests share the machine, and the relay is a debug build.
const LOAD: &str = "--seconds 0.3 --calls 2 --participants 3 --frames 10";

fn command(line: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("bench").args(line.split_whitespace());
    command
}

/// Runs it; fails the test unless it ends with this code.
fn bench(line: &str, code: i32) -> Output {
    let done = command(line).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(code), "{line}: {said}");
    done
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Rows of this name.
fn rows<'a>(document: &'a Value, name: &str) -> Vec<&'a Value> {
    let rows = document["rows"].as_array().unwrap();
    rows.iter().filter(|row| row["name"] == name).collect()
}

fn figure(row: &Value, name: &str) -> f64 {
    row["median"][name]
        .as_f64()
        .unwrap_or_else(|| panic!("{name} of {row:#}"))
}

struct Files {
    dir: TempDir,
}

impl Files {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn shown(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
}

#[test]
fn spawned_relays_over_ws_and_wss_their_files_and_their_comparison() {
    let files = Files::new();
    let (json, html) = (files.shown("a.json"), files.shown("a.html"));
    let done = bench(
        &format!("media --spawn {LOAD} --runs 2 --json {json} --html {html} --markdown"),
        0,
    );
    let document = read(&files.path("a.json"));
    assert_eq!(document["schema"], "drover-bench/1");
    let media = rows(&document, "media");
    let transports: Vec<&Value> = media.iter().map(|row| &row["settings"]["transport"]).collect();
    assert_eq!(transports, ["ws", "wss"]);
    for row in &media {
        assert_eq!(row["runs"].as_array().unwrap().len(), 2);
        assert!(figure(row, "ops") > 0.0 && figure(row, "cpu_ms_per_1000") > 0.0);
        assert!(figure(row, "p50_ms") <= figure(row, "p99_ms") && figure(row, "p99_ms") > 0.0);
        for counted in ["lost", "shed", "copied_bytes", "forwarded_bytes"] {
            assert!(figure(row, counted) >= 0.0);
        }
    }
    assert_eq!(rows(&document, "raw-forward").len(), 1);
    assert_eq!(
        document["multiples"].as_array().unwrap().len(),
        4,
        "two rows, two baselines"
    );
    let page = std::fs::read_to_string(&html).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.matches("<svg").count() >= 3);
    let printed = String::from_utf8_lossy(&done.stdout);
    assert!(printed.contains("| wss | 2 | 3 | 10 | 160 |"), "{printed}");

    bench(&format!("compare {json} {json} --tolerance 0"), 0);
    let mut worse = document.clone();
    let row = worse["rows"].as_array_mut().unwrap();
    for run in row[0]["runs"].as_array_mut().unwrap() {
        run["cpu_ms_per_1000"] = (run["cpu_ms_per_1000"].as_f64().unwrap() * 100.0).into();
    }
    row[0]["median"]["cpu_ms_per_1000"] = (figure(&row[0], "cpu_ms_per_1000") * 100.0).into();
    std::fs::write(files.path("b.json"), worse.to_string()).unwrap();
    let b = files.shown("b.json");
    let compared = bench(&format!("compare {json} {b}"), 1);
    assert_eq!(
        String::from_utf8_lossy(&compared.stdout).matches("WORSE").count(),
        1
    );
    bench(&format!("compare {b} {json}"), 0);
    bench(&format!("compare {json} {html}"), 64);
}

#[test]
fn a_relay_that_runs_already_is_measured_by_its_url_in_one_process_and_in_two() {
    for tls in ["off", "dev"] {
        let relay = Relay::start(&[
            ("WEALD_RELAY_TLS", tls),
            ("WEALD_RELAY_MAX_CONCURRENT_CALLS", "4"),
        ]);
        let files = Files::new();
        let (url, keys, json) = (relay.url(), files.shown("keys"), files.shown("a.json"));
        let (link, code, pid) = (&relay.link, &relay.code, relay.child.id());
        let private = relay.private_address();
        bench(
            &format!(
                "media --url {url} --invite {link} --code {code} --save-keys {keys} --pid {pid} --metrics {private} \
                 {LOAD} --runs 1 --latency round-trip --no-baselines --json {json}"
            ),
            0,
        );
        let document = read(&files.path("a.json"));
        let row = rows(&document, "media")[0];
        assert_eq!(
            row["settings"]["transport"],
            if tls == "off" { "ws" } else { "wss" }
        );
        assert_eq!(row["settings"]["latency"], "round-trip");
        assert_eq!(
            figure(row, "half_round_trip_p99_ms") * 2.0,
            figure(row, "round_trip_p99_ms")
        );
        assert!(
            row["median"].get("p99_ms").is_none(),
            "half a round trip is not a latency"
        );
        assert!(figure(row, "cpu_ms_per_1000") > 0.0 && figure(row, "shed") >= 0.0);
        let written = document["command"].as_str().unwrap();
        assert!(
            !written.contains(code.as_str()) && !written.contains(link.as_str()),
            "{written}"
        );

        // Somebody else's participant in every call answers.
        let far_json = files.shown("far.json");
        let far = command(&format!(
            "media --url {url} --keys {keys} {LOAD} --side far --json {far_json}"
        ))
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
        let mut far = Ended(far);
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(far.0.stderr.take().unwrap()));
        let ready = lines.next().unwrap().unwrap();
        assert!(ready.starts_with("answering in 2 calls"), "{ready}");
        bench(
            &format!(
                "media --url {url} --keys {keys} {LOAD} --runs 2 --latency round-trip --side near --json {json}"
            ),
            0,
        );
        assert!(far.0.wait().unwrap().success(), "{:?}", lines.next());
        let (near, far) = (read(&files.path("a.json")), read(&files.path("far.json")));
        let (near, far) = (rows(&near, "media")[0], rows(&far, "media-far")[0]);
        assert!(figure(near, "round_trip_p50_ms") > 0.0);
        assert!(near["median"].get("cpu_ms_per_1000").is_none());
        assert!(figure(near, "ops") > 0.0 && figure(far, "ops") > 0.0);
        // As every other row, it is that of a side.
        assert_eq!(
            (&near["settings"]["side"], &far["settings"]["side"]),
            (&"near".into(), &"far".into())
        );
    }
}

/// A process that does not outlive its test.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_search_ends_at_what_holds_or_says_that_nothing_does() {
    let relay = Relay::start(&[("WEALD_RELAY_MAX_CONCURRENT_CALLS", "4")]);
    let files = Files::new();
    let (url, keys, json) = (relay.url(), files.shown("keys"), files.shown("a.json"));
    let (link, code) = (&relay.link, &relay.code);
    let found = bench(
        &format!(
            "media --url {url} --invite {link} --code {code} --save-keys {keys} --seconds 0.3 --calls 2 \
             --participants 2 --frames 10 --runs 1 --until-p99 60000 --json {json}"
        ),
        0,
    );
    let said = String::from_utf8_lossy(&found.stderr);
    assert!(said.contains("     2 calls:") && said.contains("held"), "{said}");
    let document = read(&files.path("a.json"));
    let row = rows(&document, "media-saturated")[0];
    assert!(
        (1.0..=4.0).contains(&figure(row, "calls")),
        "the relay carries four: {row:#}"
    );
    let steps = row["saturation"]["steps"].as_array().unwrap();
    assert!(steps.iter().any(|step| step["failed_by"].is_null()), "{steps:#?}");
    assert!(
        steps.iter().any(|step| step["failed_by"].is_string()),
        "{steps:#?}"
    );

    let none = bench(
        &format!("media --url {url} --keys {keys} --seconds 0.3 --calls 2 --until-p99 0.000001"),
        69,
    );
    let said = String::from_utf8_lossy(&none.stderr);
    assert!(said.contains("at every load"), "{said}");
}

#[test]
fn a_driver_that_the_relay_has_not_is_skipped_aloud() {
    let files = Files::new();
    let json = files.shown("a.json");
    let none = bench(
        &format!("media --spawn {LOAD} --drivers nonsense --json {json}"),
        69,
    );
    let said = String::from_utf8_lossy(&none.stderr);
    assert!(said.contains("skipped: driver nonsense"), "{said}");
    assert!(said.contains("nothing was measured"), "{said}");
    let document = read(&files.path("a.json"));
    let why = document["skipped"][0]["why"].as_str().unwrap();
    assert!(why.contains("DROVER_IO"), "{why}");
}

#[test]
fn arguments_that_cannot_be_used_are_told_at_once() {
    for wrong in [
        "media --spawn --participants 6",
        "media --spawn --frames 200",
        "media --url ws://127.0.0.1:1 --keys /nowhere --side near",
        "ingest --spawn --calls 3",
        "compare /nowhere.json",
        "media --spawn --transports quic",
        "media",
    ] {
        bench(wrong, 64);
    }
    bench("compare /nowhere.json /nowhere.json", 69);
}
