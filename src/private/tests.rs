//! The private listener of a real relay on loopback ports, asked over real sockets.

use crate::config::{Config, HostPort};
use crate::handoff::tests::{self as handoff, ID, PAIR};
use crate::inspect::{NO_SUCH, Question};
use crate::private_client::{Answer, STEP, ask};
use crate::serve::Server;
use crate::{operator_key, workspace};
use drover_client::wire::id::GroupId;
use drover_client::{Founding, Identity, RelayUrl};
use drover_storage::embedded::Embedded;
use serde_json::Value;
use std::ffi::OsString;
use std::path::Path;

const TOKEN: &str = "operator-secret-0123456789abcdef";

/// A relay in `folder`, and what it printed.
async fn start(folder: &Path, settings: &[(&str, &str)]) -> (Server, String) {
    let mut environment: Vec<(OsString, OsString)> = vec![
        ("WEALD_RELAY_LISTEN".into(), "127.0.0.1:0".into()),
        ("WEALD_RELAY_OBSERVABILITY_LISTEN".into(), "127.0.0.1:0".into()),
        ("DROVER_DATA_DIR".into(), folder.join("data").into()),
        ("DROVER_SHARDS".into(), "2".into()),
    ];
    environment.extend(settings.iter().map(|(name, value)| (name.into(), value.into())));
    let config = Config::without_file(&environment).unwrap();
    let mut out = Vec::new();
    let server = Server::start(config, &mut out).await.unwrap();
    (server, String::from_utf8(out).unwrap())
}

async fn request(
    server: &Server,
    method: &'static str,
    path: &str,
    bearer: Option<&str>,
    body: &str,
) -> Answer {
    let listener = HostPort {
        host: server.private.ip().to_string(),
        port: server.private.port(),
    };
    let (path, bearer, body) = (path.to_owned(), bearer.map(str::to_owned), body.to_owned());
    let answer =
        tokio::task::spawn_blocking(move || ask(&listener, method, &path, bearer.as_deref(), &body, STEP));
    answer.await.unwrap().unwrap()
}

/// Asks the public listener.
async fn public(server: &Server, path: &str, bearer: Option<&str>) -> Answer {
    let listener = HostPort {
        host: server.public.ip().to_string(),
        port: server.public.port(),
    };
    let (path, bearer) = (path.to_owned(), bearer.map(str::to_owned));
    let answer =
        tokio::task::spawn_blocking(move || ask(&listener, "GET", &path, bearer.as_deref(), "", STEP));
    answer.await.unwrap().unwrap()
}

/// The last word of the line with this label.
fn label(banner: &str, label: &str) -> Option<String> {
    banner
        .lines()
        .find_map(|line| line.split_once(label).map(|(_, value)| value.trim().to_owned()))
}

async fn get(server: &Server, path: &str, bearer: Option<&str>) -> Answer {
    request(server, "GET", path, bearer, "").await
}

fn json(answer: &Answer) -> Value {
    serde_json::from_str(&answer.body).unwrap_or_else(|_| panic!("{answer:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_token_there_is_a_verdict_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = start(folder.path(), &[]).await;
    assert_eq!(get(&server, "/healthz", None).await.body, "ok\n");
    for bearer in [None, Some(TOKEN), Some("")] {
        let answer = get(&server, "/readyz", bearer).await;
        assert_eq!(
            (answer.status, answer.body.as_str()),
            (200, r#"{"ok":true,"ready":true}"#)
        );
    }
    for path in ["/version", "/admitted", "/", "/relay", "/nothing", "/metrics/x"] {
        assert_eq!(get(&server, path, Some(TOKEN)).await.status, 404, "{path}");
    }
    server.stop().await;
}

/// W13.38: with the bearer, and only exactly so, there is detail.
#[tokio::test(flavor = "multi_thread")]
async fn the_bearer_opens_readiness_and_the_operator_routes() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = start(
        folder.path(),
        &[
            ("WEALD_RELAY_OPERATOR_TOKEN", TOKEN),
            ("WEALD_RELAY_IMAGE_DIGEST", "sha256:00"),
        ],
    )
    .await;
    for wrong in [
        None,
        Some(""),
        Some("wrong"),
        Some(&TOKEN[1..]),
        Some("operator-secret-0123456789abcdef "),
        Some("operator-secret-0123456789abcdefx"),
    ] {
        // Blanks around a header's value are no part of it.
        if wrong.map(str::trim_end) == Some(TOKEN) {
            continue;
        }
        assert_eq!(request(&server, "POST", "/gc/sweep", wrong, "").await.status, 401);
        for path in ["/version", "/admitted"] {
            let answer = get(&server, path, wrong).await;
            assert_eq!(
                (answer.status, answer.body.trim()),
                (401, "operator token required"),
                "{path} {wrong:?}"
            );
        }
    }
    let version = json(&get(&server, "/version", Some(TOKEN)).await);
    assert_eq!(
        (&version["digest"], &version["comparable"]),
        (&"sha256:00".into(), &true.into())
    );
    assert_eq!(
        get(&server, "/admitted", Some(TOKEN)).await.body,
        r#"{"admitted":0}"#
    );
    let ready = json(&get(&server, "/readyz", Some(TOKEN)).await);
    for field in [
        "build",
        "version",
        "database",
        "storage",
        "access_set",
        "min_enc",
        "write_mode",
        "frozen_groups",
        "release",
        "push",
        "calls",
        "call_stats",
        "db_pool",
        "ready",
        "reads_ready",
    ] {
        assert!(ready.get(field).is_some(), "{field}: {ready}");
    }
    assert!(ready.get("write_mode_reason").is_none());
    assert_eq!(ready["db_pool"]["size"], 8);
    assert!(
        ready["call_stats"]
            .as_object()
            .unwrap()
            .values()
            .all(Value::is_u64)
    );
    server.stop().await;
}

/// W09.11: a pass that is asked for runs at once and reports every field; first passes are no listings.
#[tokio::test(flavor = "multi_thread")]
async fn a_pass_can_be_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = start(folder.path(), &[("WEALD_RELAY_OPERATOR_TOKEN", TOKEN)]).await;
    for body in [
        "",
        "{}",
        r#"{"storage_listing":false}"#,
        r#"{"storage_listing":true}"#,
    ] {
        let answer = request(&server, "POST", "/gc/sweep", Some(TOKEN), body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let summary = json(&answer);
        for field in [
            "scopes",
            "blobs_deleted",
            "bytes_released",
            "multipart_aborted",
            "push_handles_dropped",
            "recovery_wraps_dropped",
            "handoffs_dropped",
            "key_packages_expired",
            "invite_seats_released",
            "invites_expired",
            "storage_listings",
        ] {
            assert_eq!(summary[field], 0, "{field}: {summary}");
        }
        assert_eq!(summary["storage_listing_suppressed"], false);
        let overdue = serde_json::json!({ "envelopes": 0, "workspaces": 0, "oldest_days": 0 });
        assert_eq!(summary["retention_overdue"], overdue);
    }
    for body in ["[]", "x", r#"{"storage_listing":1}"#] {
        assert_eq!(
            request(&server, "POST", "/gc/sweep", Some(TOKEN), body)
                .await
                .status,
            400
        );
    }
    let page = get(&server, "/metrics", None).await.body;
    assert!(
        page.contains("weald_relay_collector_deleted_total{kind=\"handle\"} 0"),
        "{page}"
    );
    assert!(
        !page.contains("weald_relay_collector_last_success_timestamp_seconds 0\n"),
        "{page}"
    );
    server.stop().await;
}

/// W12.10: what `/readyz` says of the ringer; a silent one never makes the relay unfit.
#[tokio::test(flavor = "multi_thread")]
async fn readiness_tells_of_the_ringer() {
    let folder = tempfile::tempdir().unwrap();
    let token = ("WEALD_RELAY_OPERATOR_TOKEN", TOKEN);
    let (server, _) = start(folder.path(), &[token]).await;
    assert_eq!(json(&get(&server, "/readyz", Some(TOKEN)).await)["push"], "off");
    server.stop().await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1/wake", free.local_addr().unwrap());
    drop(free);
    let push = [
        token,
        ("WEALD_RELAY_PUSH", "on"),
        ("WEALD_RELAY_PUSH_URL", &url),
        ("WEALD_RELAY_PUSH_COALESCE_MS", "0"),
    ];
    let (server, _) = start(folder.path(), &push).await;
    assert_eq!(
        json(&get(&server, "/readyz", Some(TOKEN)).await)["push"],
        "configured"
    );
    let ringer = server.running.ringer.clone().unwrap();
    let wake = drover_engine::wake::Wake {
        realm: workspace::realm("localhost").unwrap(),
        handle: drover_engine::wake::WakeHandle([7; 16]),
        category: drover_engine::wake::Category::Message,
    };
    ringer.sink()(vec![wake]);
    let begun = std::time::Instant::now();
    while ringer.is_reachable() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(20));
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let answer = get(&server, "/readyz", Some(TOKEN)).await;
    assert_eq!(
        (answer.status, &json(&answer)["push"]),
        (200, &"unreachable".into())
    );
    let page = get(&server, "/metrics", None).await.body;
    assert!(
        page.contains("weald_relay_wakes_total{result=\"failed\"} 1"),
        "{page}"
    );
    server.stop().await;
}

/// W13.40: maintenance and a broken blob folder are told apart.
#[tokio::test(flavor = "multi_thread")]
async fn readiness_tells_reading_from_writing() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [
        ("WEALD_RELAY_OPERATOR_TOKEN", TOKEN),
        ("WEALD_RELAY_WRITE_MODE", "read_only"),
    ];
    let (server, _) = start(folder.path(), &settings).await;
    let answer = get(&server, "/readyz", Some(TOKEN)).await;
    let ready = json(&answer);
    assert_eq!(
        (answer.status, &ready["ready"], &ready["reads_ready"]),
        (503, &false.into(), &true.into())
    );
    assert_eq!(ready["write_mode_reason"], "service_read_only");
    let blobs = folder.path().join("data/blobs");
    std::fs::rename(&blobs, folder.path().join("away")).unwrap();
    let ready = json(&get(&server, "/readyz", Some(TOKEN)).await);
    assert_eq!(
        (&ready["storage"]["ok"], &ready["database"]["ok"]),
        (&false.into(), &true.into())
    );
    assert_eq!(ready["reads_ready"], false);
    let detail = ready["storage"]["detail"].as_str().unwrap();
    assert!(!detail.contains('/'), "no path: {detail}");
    assert_eq!(get(&server, "/healthz", None).await.status, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_carry_closed_labels_only() {
    let folder = tempfile::tempdir().unwrap();
    let (server, banner) = start(folder.path(), &[("WEALD_RELAY_HOSTNAME", "relay.example")]).await;
    let page = get(&server, "/metrics", None).await;
    assert_eq!(page.status, 200);
    for name in [
        "build_info",
        "ready 1",
        "connections{state=\"ready\"} 0",
        "dependency_up{dependency=\"database\"} 1",
        "errors_sent_total",
        "store_size_bytes",
    ] {
        assert!(
            page.body.contains(&format!("weald_relay_{name}")),
            "{name}\n{}",
            page.body
        );
    }
    assert!(page.body.contains("process_resident_memory_bytes"));
    let labels = [
        "version",
        "digest",
        "dependency",
        "state",
        "reason",
        "result",
        "direction",
        "tag",
        "class",
        "code",
        "kind",
    ];
    for line in page.body.lines().filter(|line| !line.starts_with('#')) {
        if let Some((_, rest)) = line.split_once('{') {
            for pair in rest.split_once('}').unwrap().0.split(',') {
                assert!(labels.contains(&pair.split_once('=').unwrap().0), "{line}");
            }
        }
    }
    assert!(!page.body.contains("relay.example") && !banner.is_empty());
    server.stop().await;
}

/// W13.34, W13.49: minted once, at a start that serves; a changed hostname changes links and mints nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_workspace_is_minted_once() {
    let folder = tempfile::tempdir().unwrap();
    let (server, first) = start(folder.path(), &[("WEALD_RELAY_HOSTNAME", "one.example")]).await;
    server.stop().await;
    assert!(
        label(&first, "invite link")
            .unwrap()
            .starts_with("https://one.example/join/")
    );
    assert!(label(&first, "invite code").is_some());
    let (server, again) = start(folder.path(), &[("WEALD_RELAY_HOSTNAME", "two.example")]).await;
    server.stop().await;
    assert_eq!(label(&again, "invite code"), None);
    assert_eq!(label(&again, "genesis key"), label(&first, "genesis key"));
    let renamed = label(&first, "invite link")
        .unwrap()
        .replace("one.example", "two.example");
    assert_eq!(label(&again, "invite link"), Some(renamed));
}

/// W06.22: sealed instead of printed; served on the public listener to the bearer, the same again after a restart, and
/// gone with the redemption.
#[tokio::test(flavor = "multi_thread")]
async fn with_a_handoff_key_the_invite_is_sealed() {
    let folder = tempfile::tempdir().unwrap();
    let settings = [
        ("WEALD_RELAY_BOOTSTRAP_HANDOFF_PUBKEY", PAIR.1),
        ("WEALD_RELAY_OPERATOR_TOKEN", TOKEN),
        ("WEALD_RELAY_HOSTNAME", "relay.example"),
    ];
    let path = format!("/handoff/{ID}");
    let (server, banner) = start(folder.path(), &settings).await;
    let fingerprint = label(&banner, "genesis key").unwrap();
    let lines = format!("weald:   hostname     relay.example\nweald:   genesis key  {fingerprint}\n");
    assert_eq!(banner, lines);
    let first = public(&server, &path, Some(TOKEN)).await;
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(json(&first)["genesis_fingerprint"], fingerprint.as_str());
    for wrong in [None, Some("wrong")] {
        assert_eq!(public(&server, &path, wrong).await.status, 401);
    }
    assert_eq!(public(&server, "/handoff/x", Some(TOKEN)).await.status, 404);
    assert_eq!(get(&server, "/handoff/x", Some(TOKEN)).await.status, 404);

    let key = operator_key::read(&folder.path().join("data")).unwrap();
    let made = request(
        &server,
        "POST",
        "/workspaces",
        Some(&key),
        r#"{"name":"second.example"}"#,
    )
    .await;
    let made = json(&made);
    assert_eq!(made["hostname"], "relay.example");
    assert!(made.as_object().unwrap().len() == 2, "no link, no code: {made}");
    let further = format!("{path}/{}", made["genesis"].as_str().unwrap());
    assert_eq!(
        json(&public(&server, &further, Some(TOKEN)).await)["genesis_fingerprint"],
        made["genesis"]
    );
    server.stop().await;

    let (server, banner) = start(folder.path(), &settings).await;
    assert_eq!(banner, "", "later starts print nothing");
    let again = public(&server, &path, Some(TOKEN)).await;
    assert_eq!(again.body, first.body);
    let opened = |field: &str| {
        let blob = json(&again)[field].as_str().unwrap().to_owned();
        String::from_utf8(handoff::open(&PAIR.0, &blob).unwrap()).unwrap()
    };
    let (link, code) = (opened("blob"), opened("sealed_code"));
    assert!(link.starts_with("https://relay.example/join/"), "{link}");
    let (founder, recovery) = (Identity::generate(), Identity::generate());
    let url: RelayUrl = format!("ws://{}/relay", server.public).parse().unwrap();
    let founding = Founding::new(url, &link.parse().unwrap(), &code, GroupId([7; 32]));
    founding.found(&founder, &recovery.public()).await.unwrap();
    let gone = public(&server, &path, Some(TOKEN)).await;
    assert_eq!((gone.status, gone.body.trim()), (404, "no sealed handoff"));
    assert_eq!(public(&server, &further, Some(TOKEN)).await.status, 200);
    server.stop().await;

    let (server, _) = start(folder.path(), &settings).await;
    assert_eq!(
        public(&server, &path, Some(TOKEN)).await.body.trim(),
        "no sealed handoff"
    );
    server.stop().await;
}

/// W06.22: the route needs both the key and the token, and what was printed is not sealed afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn the_handoff_needs_key_and_token() {
    let folder = tempfile::tempdir().unwrap();
    let key = ("WEALD_RELAY_BOOTSTRAP_HANDOFF_PUBKEY", PAIR.1);
    let token = ("WEALD_RELAY_OPERATOR_TOKEN", TOKEN);
    let path = format!("/handoff/{ID}");
    let (server, banner) = start(folder.path(), &[token]).await;
    assert!(banner.contains("invite code"));
    assert_eq!(public(&server, &path, Some(TOKEN)).await.body, "");
    server.stop().await;
    let (server, banner) = start(folder.path(), &[key]).await;
    assert_eq!(banner, "");
    let answer = public(&server, &path, Some(TOKEN)).await;
    assert_eq!((answer.status, answer.body.as_str()), (404, ""));
    server.stop().await;
    let (server, _) = start(folder.path(), &[key, token]).await;
    let answer = public(&server, &path, Some(TOKEN)).await;
    assert_eq!((answer.status, answer.body.trim()), (404, "no sealed handoff"));
    server.stop().await;
}

/// decisions.md 49, on a running relay.
#[tokio::test(flavor = "multi_thread")]
async fn a_further_workspace_needs_the_data_folders_key() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = start(folder.path(), &[]).await;
    let body = r#"{"name":"second.example"}"#;
    for wrong in [None, Some("wrong"), Some(TOKEN)] {
        assert_eq!(
            request(&server, "POST", "/workspaces", wrong, body).await.status,
            401
        );
    }
    let key = operator_key::read(&folder.path().join("data")).unwrap();
    for bad in ["", "{}", "[]", r#"{"name":""}"#, r#"{"name":5}"#] {
        assert_eq!(
            request(&server, "POST", "/workspaces", Some(&key), bad)
                .await
                .status,
            400,
            "{bad}"
        );
    }
    let made = request(&server, "POST", "/workspaces", Some(&key), body).await;
    assert_eq!(made.status, 201, "{made:?}");
    assert!(
        json(&made)["code"].is_string()
            && json(&made)["link"]
                .as_str()
                .unwrap()
                .starts_with("https://localhost/join/")
    );
    let again = request(&server, "POST", "/workspaces", Some(&key), body).await;
    assert_eq!((again.status, again.body.as_str()), (200, r#"{"existed":true}"#));
    let first = workspace::realm("localhost").unwrap();
    assert!(
        server.running.report(&first).await.unwrap().unredeemed.is_some(),
        "the first one is untouched"
    );
    server.stop().await;
}

/// A workspace is looked at by whoever may mint one: running, stopped and in a copy of the store, with the same answer.
#[tokio::test(flavor = "multi_thread")]
async fn workspaces_are_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let (server, banner) = start(folder.path(), &[("WEALD_RELAY_HOSTNAME", "team.example")]).await;
    let key = operator_key::read(&folder.path().join("data")).unwrap();
    let further = r#"{"name":"a b/c"}"#;
    assert_eq!(
        request(&server, "POST", "/workspaces", Some(&key), further)
            .await
            .status,
        201
    );
    let link = label(&banner, "invite link").unwrap();
    let code = label(&banner, "invite code").unwrap();
    let url: RelayUrl = format!("ws://{}/relay", server.public).parse().unwrap();
    let founding = Founding::new(url, &link.parse().unwrap(), &code, GroupId([7; 32]));
    let recovery = Identity::generate().public();
    let members = [Identity::generate().public()];
    let founding = founding.members(members);
    founding.found(&Identity::generate(), &recovery).await.unwrap();

    let realm = |name: &str| workspace::realm(name).unwrap();
    let questions = [
        Question::List,
        Question::Show(realm("team.example")),
        Question::Show(realm("a b/c")),
        Question::Log(realm("team.example")),
        Question::Log(realm("a b/c")),
    ];
    let mut told = Vec::new();
    for question in &questions {
        let path = question.path();
        for wrong in [None, Some("wrong"), Some(TOKEN)] {
            assert_eq!(get(&server, &path, wrong).await.status, 401);
        }
        let answer = get(&server, &path, Some(&key)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(!answer.body.contains(&code) && !answer.body.contains(link.rsplit('/').next().unwrap()));
        told.push(json(&answer));
    }
    for path in ["/workspaces/none", "/workspaces/none/log", "/workspaces/%0A"] {
        let answer = get(&server, path, Some(&key)).await;
        assert_eq!((answer.status, answer.body.trim()), (404, NO_SUCH), "{path}");
        assert_eq!(get(&server, path, None).await.status, 401);
    }
    let [list, founded, unfounded, log, empty] = &told[..] else {
        panic!("five answers")
    };
    assert_eq!(list, &serde_json::json!([unfounded, founded]));
    assert_eq!(
        unfounded,
        &serde_json::json!({ "name": "a b/c", "founded": false, "entries": 0, "groups": 0, "log_bytes": 0 })
    );
    assert_eq!(
        (&founded["founded"], &founded["groups"]),
        (&true.into(), &1.into())
    );
    assert!(founded["entries"].as_u64().unwrap() >= 2, "{founded}");
    assert_eq!(
        (&log["entries"][0]["kind"], &log["broken_at"]),
        (&"genesis".into(), &Value::Null)
    );
    assert_eq!(empty["entries"], serde_json::json!([]));

    let copy = folder.path().join("copy");
    let body = serde_json::json!({ "folder": copy }).to_string();
    for wrong in [None, Some("wrong"), Some(TOKEN)] {
        assert_eq!(
            request(&server, "POST", "/snapshot", wrong, &body).await.status,
            401
        );
    }
    for bad in ["", "{}", r#"{"folder":5}"#, r#"{"folder":"copy"}"#] {
        assert_eq!(
            request(&server, "POST", "/snapshot", Some(&key), bad)
                .await
                .status,
            400,
            "{bad}"
        );
    }
    let copied = request(&server, "POST", "/snapshot", Some(&key), &body).await;
    assert_eq!(
        (copied.status, &json(&copied)["damaged"]),
        (201, &0.into()),
        "{copied:?}"
    );
    let again = request(&server, "POST", "/snapshot", Some(&key), &body).await;
    assert_eq!(again.status, 409, "never over a store: {again:?}");
    server.stop().await;

    let store = Embedded::open(&folder.path().join("data/store")).unwrap();
    let copy = Embedded::open(&copy).unwrap();
    for (question, told) in questions.iter().zip(&told) {
        assert_eq!(question.ask_stopped(&store).unwrap().as_ref(), Some(told));
        assert_eq!(question.ask_stopped(&copy).unwrap().as_ref(), Some(told));
    }
    assert_eq!(Question::Log(realm("none")).ask_stopped(&store).unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_relay_is_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    let (server, _) = start(folder.path(), &[]).await;
    let relay = server.running.stop();
    assert_eq!(get(&server, "/readyz", None).await.status, 503);
    assert_eq!(get(&server, "/healthz", None).await.status, 200);
    assert_eq!(
        get(&server, "/metrics", None).await.status,
        200,
        "what is left to be counted is shown"
    );
    drop(relay);
    server.stop().await;
}
