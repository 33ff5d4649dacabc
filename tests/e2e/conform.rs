//! `drover conform` against the program itself, whole and in both forms; and against a relay that is broken in ten
//! ways, each of which it has to notice.

use crate::relay::{Banner, PROGRAM, Relay, banner};
use crate::sabotage::{Proxy, Sabotage};
use drover_client::invites::{InviteDraft, create_invite};
use drover_client::joining::SealedBundle;
use drover_client::{Connection, Hello, InviteLink};
use drover_vectors::{Form, Invite, Options, PATIENCE, Report, Target, Verdict, conform};
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

/// Capabilities Drover does not have yet: their scripts wait for it.
const NOT_BUILT: [&str; 1] = ["blobs"];

/// A rule that is not kept is told with its reason and is exit code 1, unless only this project decides it.
#[test]
fn what_counts_decides_the_exit_code() {
    let relay = Relay::start(&[]);
    for (level, code) in [("", 1), (r#""level": "drover","#, 0)] {
        let folder = tempfile::tempdir().unwrap();
        let script = r#"{"rule": "x.never", LEVEL "text": "a query stores a wrap", "spec": "nowhere",
            "steps": [["a", "opens"], ["a", "sends", {"ACCESS_QUERY": {}}], ["a", "gets", {"WRAP_STORED": {}}]]}"#;
        let file = format!(r#"{{"scripts": [{}]}}"#, script.replace("LEVEL", level));
        std::fs::write(folder.path().join("mine.json"), file).unwrap();
        let said = relay.command(&["workspace", "new", &format!("w{code}.example")]);
        let said: Vec<String> = said.lines().map(str::to_owned).collect();
        let Banner { link, code: word } = banner(&said).unwrap();
        let mut command = Command::new(PROGRAM);
        command
            .arg("conform")
            .arg(relay.url().to_string())
            .arg("--scripts")
            .arg(folder.path());
        let done = command.args(["--invite", &link, &word]).output().unwrap();
        let table = String::from_utf8_lossy(&done.stdout);
        assert_eq!(
            done.status.code(),
            Some(code),
            "{table}{}",
            String::from_utf8_lossy(&done.stderr)
        );
        assert!(
            table.contains("FAILED") && table.contains("ACCESS_STATE"),
            "{table}"
        );
    }
}

/// An invite is good for one run, so what could lose that run is found out before it is redeemed: a report that can't be
/// written, scripts without a rule.
#[test]
fn an_invite_is_not_spent_on_a_run_without_a_report() {
    let relay = Relay::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing").join("report");
    let conform = |option: &str, value: &Path| {
        let mut command = Command::new(PROGRAM);
        command.arg("conform").arg(relay.url().to_string());
        command.args(["--invite", &relay.link, &relay.code]);
        command.args(["--only", "connect.selects-version"]);
        command.arg(option).arg(value).output().unwrap()
    };
    for (option, value, code) in [
        ("--json", missing.as_path(), 74),
        ("--junit", &missing, 74),
        ("--scripts", folder.path(), 78),
    ] {
        assert_eq!(conform(option, value).status.code(), Some(code), "{option}");
    }
    let json = folder.path().join("conform.json");
    let done = conform("--json", &json);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_ne!(std::fs::metadata(&json).unwrap().len(), 0);
}

/// What it said on stderr, which has to be one line.
fn sentence(done: &Output) -> String {
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    said
}

/// Whatever is wrong with an invite, one sentence says what to do. A relay answers one that is used, expired, another
/// relay's or mistyped in the same way (06 §5).
#[test]
fn an_invite_that_is_not_taken_is_told_in_one_sentence() {
    let relay = Relay::start(&[]);
    let conform = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command
            .arg("conform")
            .arg(relay.url().to_string())
            .args(arguments);
        command
            .args(["--only", "connect.selects-version"])
            .output()
            .unwrap()
    };
    let wrong = match relay.code.starts_with('2') {
        true => relay.code.replacen('2', "3", 1),
        false => format!("2{}", &relay.code[1..]),
    };
    for (code, mention) in [("28T5", "28T5-CY4T-QKFF"), (&wrong, "used before or has expired")] {
        let done = conform(&["--invite", &relay.link, code]);
        let said = sentence(&done);
        assert_eq!(done.status.code(), Some(64), "{said}");
        assert!(said.contains(mention) && !said.contains(&relay.link), "{said}");
    }
    let done = conform(&["--invite", &relay.link, &relay.code]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let done = conform(&["--invite", &relay.link, &relay.code]);
    let said = sentence(&done);
    assert_eq!(done.status.code(), Some(64), "{said}");
    assert!(said.contains("use a new bootstrap invite"), "{said}");

    let fresh = relay.command(&["workspace", "new", "fresh.example"]);
    let fresh: Vec<String> = fresh.lines().map(str::to_owned).collect();
    let Banner { link, code } = banner(&fresh).unwrap();
    let done = conform(&["--invite", &link, &code, "--invite", &relay.link, &relay.code]);
    let said = sentence(&done);
    assert_eq!(done.status.code(), Some(64), "{said}");
    assert!(
        said.contains("the second invite, after the first was spent"),
        "{said}"
    );
}

/// An invite into a workspace that exists founds none.
#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_invite_is_told_apart() {
    let relay = Relay::start(&[]);
    let (workspace, founder) = relay.found(&[]).await;
    let root = workspace.root();
    let mut connection = Connection::connect(&relay.endpoint(), &founder, &Hello::groups([root]))
        .await
        .unwrap();
    let draft = InviteDraft {
        root,
        seats: 1,
        life_ms: 3_600_000,
        capabilities: vec!["chat.read".into()],
        update_pub: [7; 32],
        bundles: vec![SealedBundle {
            group: root,
            epoch: 1,
            ct: vec![7; 96].into(),
        }],
    };
    let issued = create_invite(&mut connection, &founder, &draft).await.unwrap();
    let options = Options {
        target: Target {
            endpoint: relay.endpoint(),
            patience: PATIENCE,
        },
        invites: vec![Invite {
            token: issued.token.0,
            code: issued.code,
        }],
        only: Vec::new(),
        scripts: None,
        forms: vec![Form::Array],
        slow: false,
    };
    let said = conform(&options).await.unwrap_err().to_string();
    assert!(said.contains("the invite founds no workspace"), "{said}");
}

/// Both ways between two sockets, until one ends.
fn forward(client: &TcpStream, relay: &TcpStream) {
    for (from, to) in [(client, relay), (relay, client)] {
        let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}

/// A relay that dies midway has broken nothing more: the run stops there, says so, and marks what is left.
#[test]
fn a_relay_that_dies_midway_ends_the_run() {
    let mut relay = Relay::start(&[]);
    let folder = tempfile::tempdir().unwrap();
    let (json, junit) = (
        folder.path().join("conform.json"),
        folder.path().join("conform.xml"),
    );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = Command::new(PROGRAM);
    command
        .arg("conform")
        .arg(format!("ws://{}", listener.local_addr().unwrap()));
    command.args(["--invite", &relay.link, &relay.code]);
    command.arg("--json").arg(&json).arg("--junit").arg(&junit);
    let conform = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    thread::spawn(move || {
        // Connections it makes before: more than it takes to found, fewer than all rules take.
        for _ in 0..80 {
            let (client, _) = listener.accept().unwrap();
            forward(&client, &TcpStream::connect(relay.address()).unwrap());
        }
        relay.kill();
    });
    let done = conform.wait_with_output().unwrap();
    let said = sentence(&done);
    let table = String::from_utf8_lossy(&done.stdout);
    assert_eq!(done.status.code(), Some(75), "{said}{table}");
    assert!(
        said.starts_with("drover: the relay went away") && said.contains("refused"),
        "{said}"
    );
    assert!(!table.contains("FAILED") && table.contains("not run"), "{table}");
    let report: Json = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert!(report["gone"].is_string() && report["failed"] == 0, "{said}");
    let (kept, not_run) = (lines(&report, "kept").len(), lines(&report, "not_run").len());
    let cut_off = lines(&report, "cut_off").len();
    assert!(
        kept > 0 && cut_off > 0 && not_run > 500,
        "{kept} {cut_off} {not_run}"
    );
    assert_eq!(report["not_run"], not_run + cut_off);
    let xml = std::fs::read_to_string(&junit).unwrap();
    assert_eq!(xml.matches("<error ").count(), cut_off);
}

/// A relay that crashes where it has to end one connection has not kept that rule, though the connection did end: the
/// rule fails, and the run ends there.
#[tokio::test(flavor = "multi_thread")]
async fn a_crash_is_no_end_of_one_connection() {
    const RULES: [&str; 5] = [
        "auth.one-proof",
        "bye.ready",
        "websocket.text",
        "send.acknowledged",
        "push.in-order",
    ];
    let relay = Relay::start(&[]);
    let proxy = Proxy::start(relay.url(), Sabotage::CrashesAtAnEnd).await;
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("conform.json");
    let mut command = Command::new(PROGRAM);
    command.arg("conform").arg(proxy.url().to_string());
    command
        .args([
            "--invite",
            &relay.link,
            &relay.code,
            "--form",
            "array",
            "--patience",
            "2",
            "--json",
        ])
        .arg(&json);
    command.args(RULES.iter().flat_map(|rule| ["--only", rule]));
    let done = tokio::task::spawn_blocking(move || command.output().unwrap());
    let done = done.await.unwrap();
    let (said, table) = (sentence(&done), String::from_utf8_lossy(&done.stdout));
    assert_eq!(done.status.code(), Some(75), "{said}{table}");
    assert!(
        said.starts_with("drover: the relay went away")
            && said.contains("had to end")
            && said.contains("1 rules"),
        "{said}"
    );
    let report: Json = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let rules = |verdict| -> Vec<String> { lines(&report, verdict).into_iter().map(|line| line.0).collect() };
    assert_eq!(rules("kept"), ["push.in-order", "send.acknowledged"], "{table}");
    // In the order of the files; the first of them is the last that was run.
    assert_eq!(rules("failed"), ["auth.one-proof"], "{table}");
    assert_eq!(rules("not_run"), ["bye.ready", "websocket.text"], "{table}");
    assert!(
        report["gone"].as_str().unwrap().contains("auth.one-proof"),
        "{said}"
    );
}

/// What whoever checks a foreign relay types, on a relay with two workspaces; the JSON it wrote.
fn run(relay: &Relay, arguments: &[&str]) -> Json {
    let folder = tempfile::tempdir().unwrap();
    let (log, json, junit) = (
        folder.path().join("relay.log"),
        folder.path().join("conform.json"),
        folder.path().join("conform.xml"),
    );
    let second = relay.command(&["workspace", "new", "second.example"]);
    let first = format!(
        "weald:   invite link  {}\nweald:   invite code  {}\n",
        relay.link, relay.code
    );
    std::fs::write(&log, first + &second).unwrap();
    let certificate = relay.data.path().join("dev-cert.pem");
    let mut command = Command::new(PROGRAM);
    command
        .arg("conform")
        .arg(relay.url().to_string())
        .args(arguments);
    command.args(["--strict", "--bootstrap-from-log"]).arg(&log);
    command.arg("--json").arg(&json).arg("--junit").arg(&junit);
    if certificate.exists() {
        command.arg("--ca").arg(&certificate);
    }
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    println!("{}: {}", relay.url(), said.lines().last().unwrap_or_default());
    assert!(
        done.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&done.stderr)
    );
    let report: Json = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_suites(&junit, &report);
    report
}

fn assert_suites(path: &Path, report: &Json) {
    let xml = std::fs::read_to_string(path).unwrap();
    let cases = report["rules"].as_array().unwrap().len();
    assert_eq!(xml.matches("<testcase ").count(), cases);
    assert_eq!(xml.matches("<failure ").count(), 0);
}

/// Rule and form of the lines with this verdict.
fn lines(report: &Json, verdict: &str) -> BTreeSet<(String, String)> {
    let rules = report["rules"].as_array().unwrap().iter();
    let text = |line: &Json, key: &str| line[key].as_str().unwrap().to_owned();
    rules
        .filter(|line| line["verdict"] == verdict)
        .map(|line| (text(line, "rule"), text(line, "form")))
        .collect()
}

/// Every script in both forms: what one relay's settings leave out, the other's show. Only what waits out real time and
/// what is not built yet is left.
#[test]
fn drover_keeps_every_rule_in_both_forms() {
    let usual = Relay::start(&[
        ("WEALD_RELAY_PUSH", "on"),
        ("WEALD_RELAY_PUSH_URL", "http://127.0.0.1:9/v1/wake"),
    ]);
    let report = run(&usual, &[]);
    assert!(
        report["seconds"].as_f64().unwrap() < 180.0,
        "it has to finish in three minutes"
    );
    let other = Relay::start(&[
        ("WEALD_RELAY_TLS", "dev"),
        ("WEALD_RELAY_MIN_ENC", "mls"),
        ("WEALD_RELAY_LIVE", "off"),
    ]);
    let rest = run(&other, &["--only", "wake", "--only", "send", "--only", "live"]);
    let kept: BTreeSet<_> = lines(&report, "kept")
        .union(&lines(&rest, "kept"))
        .cloned()
        .collect();
    let scripts = drover_vectors::script::all(None).unwrap();
    let left: Vec<_> = scripts
        .iter()
        .filter(|script| !script.probe && !script.slow)
        .filter(|script| !script.needs.iter().any(|need| NOT_BUILT.contains(&need.as_str())))
        .flat_map(|script| {
            script
                .forms
                .iter()
                .map(|form| (script.rule.clone(), form.name().to_owned()))
        })
        .filter(|line| !kept.contains(line))
        .collect();
    assert!(left.is_empty(), "checked nowhere: {left:?}");
    assert!(kept.len() > 700, "{}", kept.len());
}

fn invite(banner: &Banner) -> Invite {
    let link: InviteLink = banner.link.parse().unwrap();
    Invite {
        token: link.token.0,
        code: banner.code.clone(),
    }
}

/// A fresh workspace of `relay`, seen through a proxy that does this.
async fn through(relay: &Relay, name: &str, sabotage: Sabotage, only: &[&str]) -> Report {
    let said = relay.command(&["workspace", "new", name]);
    let said: Vec<String> = said.lines().map(str::to_owned).collect();
    let proxy = Proxy::start(relay.url(), sabotage).await;
    let options = Options {
        target: Target {
            endpoint: proxy.url().into(),
            patience: Duration::from_secs(2),
        },
        invites: vec![invite(&banner(&said).unwrap())],
        only: only.iter().map(|rule| (*rule).to_owned()).collect(),
        scripts: None,
        forms: vec![Form::Array],
        slow: false,
    };
    conform(&options).await.unwrap()
}

/// Each way of being broken, with a rule that has to notice it.
const WAYS: [(Sabotage, &str); 10] = [
    (Sabotage::FlipsABitOfPushes, "push.to-others-only"),
    (Sabotage::DropsPushes, "push.to-others-only"),
    (Sabotage::SwapsPushes, "push.in-order"),
    (Sabotage::DropsAcks, "send.acknowledged"),
    (Sabotage::ChangesCodes, "send.hash-mismatch"),
    (Sabotage::DoublesPushes, "push.to-others-only"),
    (Sabotage::ChangesSeqs, "send.duplicate"),
    (Sabotage::ClosesInsteadOfRefusing, "send.hash-mismatch"),
    (Sabotage::KeepsOpen, "auth.one-proof"),
    (Sabotage::DelaysBeats, "live.order-with-push"),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_broken_in_any_of_ten_ways_is_noticed() {
    let relay = Relay::start(&[]);
    let rules: Vec<&str> = WAYS.iter().map(|(_, rule)| *rule).collect();
    let sound = through(&relay, "sound.example", Sabotage::None, &rules).await;
    assert_eq!(sound.failures(true).count(), 0, "{}", sound.table());
    for (number, (sabotage, rule)) in WAYS.into_iter().enumerate() {
        let report = through(&relay, &format!("w{number}.example"), sabotage, &[rule]).await;
        let line = report.lines.iter().find(|line| line.rule == rule).unwrap();
        assert!(
            matches!(line.verdict, Verdict::Failed(_)),
            "{sabotage:?} was not noticed by {rule}"
        );
        assert!(report.failures(false).count() > 0, "{sabotage:?}");
    }
}
