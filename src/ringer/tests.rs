//! The requests, against an HTTP server that answers as told.

use super::*;
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use drover_engine::wake::Category;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);
const BEARER: &str = "ringer-bearer-42";

/// What the ringer does with the next request.
#[derive(Clone, Copy)]
enum Do {
    Answer(u16),
    Pause(&'static str),
    Hang,
}

/// A request as it came in.
struct Got {
    path: String,
    headers: HeaderMap,
    body: String,
}

#[derive(Clone)]
struct Double {
    script: Arc<Mutex<Vec<Do>>>,
    got: UnboundedSender<Got>,
}

async fn answer(State(double): State<Double>, request: Request<Body>) -> Response {
    let (head, body) = request.into_parts();
    let body = to_bytes(body, 1 << 16).await.unwrap();
    let next = double.script.lock().unwrap().pop().unwrap_or(Do::Answer(202));
    let _ = double.got.send(Got {
        path: head.uri.path().to_owned(),
        headers: head.headers,
        body: String::from_utf8(body.to_vec()).unwrap(),
    });
    match next {
        Do::Answer(status) => (StatusCode::from_u16(status).unwrap(), "said").into_response(),
        Do::Pause(after) => (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, after)]).into_response(),
        Do::Hang => std::future::pending().await,
    }
}

/// A ringer's double that does `script`, then answers 202, and a dispatcher that posts to it.
struct Bench {
    ringer: Arc<Ringer>,
    got: UnboundedReceiver<Got>,
    forgotten: UnboundedReceiver<(RealmId, WakeHandle)>,
    posting: Posting,
}

async fn bench(script: &[Do], bearer: bool, deadline: Duration) -> Bench {
    let (tell, got) = unbounded_channel();
    let double = Double {
        script: Arc::new(Mutex::new(script.iter().rev().copied().collect())),
        got: tell,
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1/wake", listener.local_addr().unwrap());
    let router = Router::new().fallback(answer).with_state(double);
    tokio::spawn(async move { axum::serve(listener, router).await });
    let (ringer, forgotten, posting) = start(&url, bearer, deadline);
    Bench {
        ringer,
        got,
        forgotten,
        posting,
    }
}

fn start(
    url: &str,
    bearer: bool,
    deadline: Duration,
) -> (Arc<Ringer>, UnboundedReceiver<(RealmId, WakeHandle)>, Posting) {
    let address = Address {
        url: url.parse().unwrap(),
        bearer: bearer.then(|| HeaderValue::from_static("Bearer ringer-bearer-42")),
        deadline,
    };
    let ringer = Ringer::new(Queue::new(64, 0), address).unwrap();
    let (forget, forgotten) = unbounded_channel();
    let posting = Posting::start(ringer.clone(), move |realm, handle| {
        let _ = forget.send((realm, handle));
    });
    (ringer, forgotten, posting.unwrap())
}

fn wake(n: u8, category: Category) -> Wake {
    Wake {
        realm: RealmId("ws:one".into()),
        handle: WakeHandle([n; 16]),
        category,
    }
}

async fn within<T>(what: impl Future<Output = Option<T>>) -> T {
    timeout(PATIENCE, what)
        .await
        .expect("in time")
        .expect("it goes on")
}

/// Waits until what is counted is as told.
async fn counted(ringer: &Ringer, is: impl Fn(&Counted) -> bool) -> Counted {
    let look = async {
        while !is(&ringer.counted()) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Some(ringer.counted())
    };
    within(look).await
}

/// W12.10: body, headers and their absence, byte for byte.
#[tokio::test(flavor = "multi_thread")]
async fn the_request_is_exactly_this() {
    for with_bearer in [true, false] {
        let mut b = bench(&[], with_bearer, DEADLINE).await;
        for (category, name, bytes) in [
            (Category::Message, "message", 66),
            (Category::Call, "call", 63),
            (Category::Handshake, "handshake", 68),
        ] {
            b.ringer.push(vec![wake(0xab, category)]);
            let got = within(b.got.recv()).await;
            assert_eq!(got.path, "/v1/wake");
            let handle = "ab".repeat(16);
            assert_eq!(
                got.body,
                format!(r#"{{"handle":"{handle}","category":"{name}"}}"#)
            );
            assert_eq!(got.body.len(), bytes);
            assert_eq!(got.headers[header::CONTENT_TYPE], "application/json");
            let bearer = got
                .headers
                .get(header::AUTHORIZATION)
                .map(|v| v.to_str().unwrap());
            assert_eq!(bearer, with_bearer.then_some(format!("Bearer {BEARER}").as_str()));
            let mut names: Vec<_> = got.headers.keys().map(|name| name.as_str()).collect();
            names.retain(|name| *name != "authorization");
            names.sort_unstable();
            assert_eq!(names, ["content-length", "content-type", "host"]);
        }
        let counted = counted(&b.ringer, |c| c.sent == 3).await;
        assert_eq!((counted.failed, counted.gone, counted.waiting), (0, 0, 0));
        assert!(b.ringer.is_reachable());
    }
}

/// W12.10: 404 has the registration deleted, 500 is counted, neither is tried again, and both are answers.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_are_counted_and_not_repeated() {
    let mut b = bench(
        &[Do::Answer(404), Do::Answer(500), Do::Answer(302)],
        true,
        DEADLINE,
    )
    .await;
    for n in 1..=4 {
        b.ringer.push(vec![wake(n, Category::Message)]);
        within(b.got.recv()).await;
    }
    let counted = counted(&b.ringer, |c| c.sent == 1).await;
    assert_eq!((counted.failed, counted.gone, counted.pauses), (2, 1, 0));
    let (realm, handle) = within(b.forgotten.recv()).await;
    assert_eq!((&*realm.0, handle), ("ws:one", WakeHandle([1; 16])));
    assert!(b.forgotten.try_recv().is_err() && b.got.try_recv().is_err());
    assert!(b.ringer.is_reachable());
}

/// W12.10: 429 pauses for the interval it names, the wake is not sent again, what came meanwhile is.
#[tokio::test(flavor = "multi_thread")]
async fn too_many_requests_pauses() {
    let mut b = bench(&[Do::Pause("1")], true, DEADLINE).await;
    b.ringer.push(vec![wake(1, Category::Message)]);
    within(b.got.recv()).await;
    let paused = counted(&b.ringer, |c| c.pauses == 1).await;
    let begun = Instant::now();
    assert_eq!((paused.sent, paused.failed), (0, 0));
    b.ringer.push(vec![wake(2, Category::Call)]);
    let got = within(b.got.recv()).await;
    assert!(got.body.contains("0202"), "the paused one is gone");
    assert!(
        begun.elapsed() > Duration::from_millis(900),
        "{:?}",
        begun.elapsed()
    );
    counted(&b.ringer, |c| c.sent == 1).await;
}

/// W12.10: whatever it asks for, a minute is the longest; without an interval it is a second.
#[test]
fn a_pause_is_at_most_a_minute() {
    for (stated, seconds) in [
        (Some("2"), 2),
        (Some("60"), 60),
        (Some("86400"), 60),
        (Some("99999999999999999999999"), 1),
        (Some("Wed, 21 Oct 2015 07:28:00 GMT"), 1),
        (Some("-5"), 1),
        (Some("0"), 0),
        (None, 1),
    ] {
        let mut headers = HeaderMap::new();
        if let Some(stated) = stated {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(stated));
        }
        assert_eq!(pause(&headers), Duration::from_secs(seconds), "{stated:?}");
    }
}

/// W12.10: a ringer that hangs takes up to eight requests, each until its deadline; then it counts as silent until it
/// answers. Nobody who hands wakes over waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_hanging_ringer_holds_up_eight_and_no_more() {
    let mut b = bench(&[Do::Hang; 8], true, Duration::from_millis(400)).await;
    let begun = Instant::now();
    b.ringer
        .push((1..=9).map(|n| wake(n, Category::Message)).collect());
    assert!(begun.elapsed() < Duration::from_millis(300));
    for _ in 0..8 {
        within(b.got.recv()).await;
    }
    assert_eq!(b.ringer.counted().waiting, 1);
    assert!(b.got.try_recv().is_err());
    let ninth = within(b.got.recv()).await;
    assert!(ninth.body.contains("0909") && begun.elapsed() >= Duration::from_millis(400));
    counted(&b.ringer, |c| (c.failed, c.sent) == (8, 1)).await;
}

/// W12.10: no answer shows as unreachable, any answer as reachable again.
#[tokio::test(flavor = "multi_thread")]
async fn silence_is_told_from_refusal() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let (ringer, _, _posting) = start(&format!("http://{address}/v1/wake"), true, DEADLINE);
    assert!(ringer.is_reachable(), "before any attempt");
    ringer.push(vec![wake(1, Category::Message)]);
    counted(&ringer, |c| c.failed == 1).await;
    assert!(!ringer.is_reachable());

    let mut b = bench(&[Do::Hang, Do::Answer(500)], true, Duration::from_millis(100)).await;
    for (n, reachable) in [(1, false), (2, true)] {
        b.ringer.push(vec![wake(n, Category::Message)]);
        within(b.got.recv()).await;
        counted(&b.ringer, |c| c.failed == u64::from(n)).await;
        let settled = async {
            while b.ringer.is_reachable() != reachable {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            Some(())
        };
        within(settled).await;
    }
}

/// Stopping discards what waits.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_at_the_end_is_discarded() {
    let mut b = bench(&[Do::Hang; 8], true, DEADLINE).await;
    b.ringer
        .push((1..=9).map(|n| wake(n, Category::Message)).collect());
    for _ in 0..8 {
        within(b.got.recv()).await;
    }
    let begun = Instant::now();
    drop(b.posting);
    assert!(begun.elapsed() < Duration::from_secs(1), "it waits for nobody");
    assert_eq!(b.ringer.counted().waiting, 1);
}

/// W12.11: no rendering of what passes through here shows a handle.
#[test]
fn no_handle_is_rendered() {
    let (shown, handle) = (
        format!("{:?}", wake(0xab, Category::Call)),
        WakeHandle([0xab; 16]),
    );
    assert!(!shown.contains("ab") && !shown.contains("171"), "{shown}");
    assert_eq!(format!("{handle:?}"), "[redacted]");
    let mut queue = Queue::new(4, 0);
    queue.push(wake(0xab, Category::Call), 0);
    assert!(!format!("{queue:?}").contains("171"));
}
