//! The way to the ringer (12 §6, §7): wakes come from the shards into a bounded queue and leave it as HTTPS requests, on
//! a runtime of its own, so that a ringer that hangs or a name that does not resolve keeps nobody else waiting. Nothing is
//! kept or tried again. No handle is logged, counted by or shown.
//!
//! | Module | Story |
//! | --- | --- |
//! | [`queue`] | which wakes wait, which speaks for which, which give way |

mod queue;
#[cfg(test)]
mod tests;

use crate::config::{Config, Key};
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header};
use drover_engine::wake::{Wake, WakeHandle};
use drover_storage::RealmId;
use drover_transport::WakeSink;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use queue::Queue;
use rustls::{ClientConfig, RootCertStore, crypto::aws_lc_rs};
use std::fmt::Write as _;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// From the request to the answer's headers, and again to the end of its body.
const DEADLINE: Duration = Duration::from_secs(2);
/// Requests under way.
const UNDER_WAY_MAX: usize = 8;
/// The longest pause the ringer may ask for.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// What it means if it names none.
const PAUSE_DEFAULT: Duration = Duration::from_secs(1);
/// An answer's body is read up to here; of a longer one the connection is given up.
const BODY_BYTES_MAX: usize = 64 << 10;

/// What became of wakes.
#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    /// Those the ringer did not know included.
    failed: AtomicU64,
    gone: AtomicU64,
    pauses: AtomicU64,
}

/// The same at one moment, for the metrics page (13 §c.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Taken by the ringer.
    pub(crate) sent: u64,
    /// Discarded because too many waited.
    pub(crate) dropped: u64,
    /// Refused or not answered.
    pub(crate) failed: u64,
    /// Of a handle the ringer does not know any more.
    pub(crate) gone: u64,
    /// How often the ringer asked for a pause.
    pub(crate) pauses: u64,
    /// Waiting now.
    pub(crate) waiting: u64,
}

/// What the ringer said.
enum Answer {
    Taken,
    /// It does not know the handle.
    Gone(RealmId, WakeHandle),
    Pause(Duration),
    Refused,
    None,
}

/// Where wakes are posted, and with what.
struct Address {
    url: Uri,
    bearer: Option<HeaderValue>,
    deadline: Duration,
}

/// See the module.
pub(crate) struct Ringer {
    queue: Mutex<Queue>,
    /// The next wake is due sooner than was known.
    sooner: Notify,
    /// What the queue's clock counts from.
    began: Instant,
    address: Address,
    client: Client<HttpsConnector<HttpConnector>, Body>,
    counts: Counts,
    /// The last attempt got no answer.
    is_silent: AtomicBool,
}

impl Ringer {
    /// As configured; `None` with push off.
    ///
    /// # Errors
    /// If the token can't stand in a header, or the TLS settings can't be used.
    pub(crate) fn configured(config: &Config) -> anyhow::Result<Option<Arc<Self>>> {
        let Some(url) = config.text(Key::PushUrl).filter(|_| config.on(Key::Push)) else {
            return Ok(None);
        };
        let bearer = config.text(Key::PushToken).map(|token| {
            let mut bearer = HeaderValue::try_from(format!("Bearer {token}"))?;
            bearer.set_sensitive(true);
            Ok::<_, axum::http::header::InvalidHeaderValue>(bearer)
        });
        let address = Address {
            url: url.parse()?,
            bearer: bearer.transpose()?,
            deadline: DEADLINE,
        };
        let bound = usize::try_from(config.number(Key::PushQueue)).unwrap_or(usize::MAX);
        let queue = Queue::new(bound, config.number(Key::PushCoalesceMs));
        Ok(Some(Self::new(queue, address)?))
    }

    fn new(queue: Queue, address: Address) -> anyhow::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            queue: Mutex::new(queue),
            sooner: Notify::new(),
            began: Instant::now(),
            client: client(&address.url)?,
            address,
            counts: Counts::default(),
            is_silent: AtomicBool::new(false),
        }))
    }

    /// What the shards hand their wakes to.
    pub(crate) fn sink(self: &Arc<Self>) -> WakeSink {
        let ringer = self.clone();
        Arc::new(move |wakes| ringer.push(wakes))
    }

    /// Whether the last attempt got an answer, or there was none yet (12 §8).
    pub(crate) fn is_reachable(&self) -> bool {
        !self.is_silent.load(Ordering::Relaxed)
    }

    /// What has become of wakes so far.
    pub(crate) fn counted(&self) -> Counted {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (waiting, dropped) = {
            let queue = self.queue();
            (queue.len() as u64, queue.shed())
        };
        let gone = get(&self.counts.gone);
        Counted {
            sent: get(&self.counts.sent),
            dropped,
            failed: get(&self.counts.failed).saturating_sub(gone),
            gone,
            pauses: get(&self.counts.pauses),
            waiting,
        }
    }

    /// Held for a few insertions or removals at a time, by a shard at most once a turn.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn push(&self, wakes: Vec<Wake>) {
        let now_ms = self.now_ms();
        let mut queue = self.queue();
        let before_ms = queue.next_due_ms();
        for wake in wakes {
            queue.push(wake, now_ms);
        }
        let is_sooner = queue.next_due_ms() != before_ms;
        drop(queue);
        if is_sooner {
            self.sooner.notify_one();
        }
    }

    /// Sends what is due until it is dropped. `forget` is told of handles the ringer does not know.
    async fn run(self: Arc<Self>, forget: impl Fn(RealmId, WakeHandle)) {
        let mut under_way = JoinSet::new();
        let mut paused_until = self.began;
        loop {
            let free = UNDER_WAY_MAX - under_way.len();
            let next = if Instant::now() < paused_until {
                Some(paused_until)
            } else {
                let mut queue = self.queue();
                for wake in queue.take_due(self.now_ms(), free) {
                    under_way.spawn(self.clone().post(wake));
                }
                // With all of them busy, the end of one is what is waited for.
                let next_ms = queue.next_due_ms().filter(|_| under_way.len() < UNDER_WAY_MAX);
                next_ms.and_then(|at_ms| self.began.checked_add(Duration::from_millis(at_ms)))
            };
            let timer = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.sooner.notified() => {}
                () = timer => {}
                Some(answer) = under_way.join_next() => match answer.unwrap_or(Answer::None) {
                    Answer::Gone(realm, handle) => forget(realm, handle),
                    Answer::Pause(pause) => paused_until = paused_until.max(Instant::now() + pause),
                    Answer::Taken | Answer::Refused | Answer::None => {}
                },
            }
        }
    }

    /// Posts one wake and counts what comes of it.
    async fn post(self: Arc<Self>, wake: Wake) -> Answer {
        let answer = self.ask(wake).await;
        let count = match answer {
            Answer::Taken => &self.counts.sent,
            Answer::Pause(_) => &self.counts.pauses,
            Answer::Gone(..) | Answer::Refused | Answer::None => &self.counts.failed,
        };
        count.fetch_add(1, Ordering::Relaxed);
        if let Answer::Gone(..) = answer {
            self.counts.gone.fetch_add(1, Ordering::Relaxed);
        }
        let is_silent = matches!(answer, Answer::None);
        match (self.is_silent.swap(is_silent, Ordering::Relaxed), is_silent) {
            (false, true) => tracing::warn!("the ringer does not answer"),
            (true, false) => tracing::info!("the ringer answers again"),
            _ => {}
        }
        answer
    }

    async fn ask(&self, wake: Wake) -> Answer {
        let mut request = Request::post(self.address.url.clone());
        request = request.header(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(bearer) = &self.address.bearer {
            request = request.header(header::AUTHORIZATION, bearer);
        }
        let Ok(request) = request.body(Body::from(body(&wake))) else {
            return Answer::None;
        };
        let answer = timeout(self.address.deadline, self.client.request(request)).await;
        let Ok(Ok(response)) = answer else {
            return Answer::None;
        };
        let (head, rest) = response.into_parts();
        // Read to its end, the connection serves the next wake.
        let _ = timeout(self.address.deadline, to_bytes(Body::new(rest), BODY_BYTES_MAX)).await;
        match head.status {
            status if status.is_success() => Answer::Taken,
            StatusCode::NOT_FOUND => Answer::Gone(wake.realm, wake.handle),
            StatusCode::TOO_MANY_REQUESTS => Answer::Pause(pause(&head.headers)),
            _ => Answer::Refused,
        }
    }
}

/// The request's body, byte for byte (12 §7).
fn body(wake: &Wake) -> String {
    let mut body = String::with_capacity(68);
    body.push_str(r#"{"handle":""#);
    for byte in wake.handle.0 {
        let _ = write!(body, "{byte:02x}");
    }
    let _ = write!(body, r#"","category":"{}"}}"#, wake.category.as_str());
    body
}

/// How long an answer 429 asks to wait.
fn pause(headers: &HeaderMap) -> Duration {
    let stated = headers
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok());
    let seconds = stated.and_then(|text| text.trim().parse().ok());
    seconds.map_or(PAUSE_DEFAULT, Duration::from_secs).min(PAUSE_MAX)
}

/// HTTP/1.1 or HTTP/2 over TLS with the system's roots; plain only where the configuration lets a plain address pass.
fn client(url: &Uri) -> anyhow::Result<Client<HttpsConnector<HttpConnector>, Body>> {
    let mut roots = RootCertStore::empty();
    if url.scheme_str() == Some("https") {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            tracing::warn!("this system has no root certificates: no ringer can be trusted");
        }
    }
    let tls = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_all_versions()
        .build();
    Ok(Client::builder(TokioExecutor::new()).build(connector))
}

/// The thread that posts. Dropped, it ends at once: what waits is discarded.
pub(crate) struct Posting(Option<Runtime>);

impl Posting {
    /// Starts to post.
    ///
    /// # Errors
    /// If the system refuses a thread.
    pub(crate) fn start(
        ringer: Arc<Ringer>,
        forget: impl Fn(RealmId, WakeHandle) + Send + 'static,
    ) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            // Each resolves a name, and may hang with it.
            .max_blocking_threads(4)
            .thread_name("drover-ringer")
            .enable_all()
            .build()?;
        runtime.spawn(async move { ringer.run(forget).await });
        Ok(Self(Some(runtime)))
    }
}

impl Drop for Posting {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
