//! The private listener's connections: at most so many, and none that stays without asking anything, or in the middle of
//! asking. `axum::serve` bounds neither, and whoever reaches the port could use up the process's files, which the public
//! listener needs.

use axum::Router;
use axum::body::{Body, HttpBody as _, to_bytes};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use http_body_util::LengthLimitError;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use std::error::Error as _;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot, watch};

/// Connections at once; who comes then waits to be accepted.
const CONNECTIONS_MAX: u32 = 64;
/// How long a connection may take to send the head of its next request, and its body after that.
pub(crate) const HEADERS: Duration = Duration::from_secs(10);
/// The longest request body: names only.
const BODY_BYTES_MAX: usize = 16 << 10;
/// How long it waits after the system refused to accept: what it lacks then, files mostly, others have to give back.
const REFUSED: Duration = Duration::from_secs(1);

/// Serves until the other end of `ended` is dropped, then lets requests under way end.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    headers: Duration,
    mut ended: oneshot::Receiver<()>,
) {
    // Not both versions of HTTP: telling them apart waits for the first bytes without a deadline.
    let mut builder = Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(headers);
    let router = router.layer(from_fn(move |request, next| whole(request, next, headers)));
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX as usize));
    let (ending, end) = watch::channel(());
    loop {
        let accept = async {
            let place = places.clone().acquire_owned().await;
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            accepted = accept => accepted,
            _ = &mut ended => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(error = %error.kind(), "the private listener could not accept a connection");
                tokio::time::sleep(REFUSED).await;
                continue;
            }
        };
        let (builder, mut end) = (builder.clone(), end.clone());
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let _place = place;
            let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
            tokio::select! {
                _ = &mut connection => return,
                _ = end.changed() => {}
            }
            connection.as_mut().graceful_shutdown();
            // What went wrong with a connection is its client's to know.
            let _ = connection.await;
        });
    }
    drop((listener, ending));
    let _ = places.acquire_many(CONNECTIONS_MAX).await;
}

/// Hands a request on once its body is there. hyper has a deadline for the head alone.
async fn whole(request: Request, next: Next, patience: Duration) -> Response {
    let (head, body) = request.into_parts();
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return (StatusCode::PAYLOAD_TOO_LARGE, [(header::CONNECTION, "close")]).into_response();
    }
    let refused = match tokio::time::timeout(patience, to_bytes(body, BODY_BYTES_MAX)).await {
        Ok(Ok(body)) => return next.run(Request::from_parts(head, Body::from(body))).await,
        Ok(Err(error))
            if error
                .source()
                .is_some_and(|source| source.is::<LengthLimitError>()) =>
        {
            StatusCode::PAYLOAD_TOO_LARGE
        }
        // Chunks that are none; or it ended early, and nobody reads this.
        Ok(Err(_)) => StatusCode::BAD_REQUEST,
        Err(_) => StatusCode::REQUEST_TIMEOUT,
    };
    // What is left of the body would be taken for the next request.
    (refused, [(header::CONNECTION, "close")]).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use std::net::SocketAddr;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpStream;
    use tokio::task::JoinHandle;

    const LONG: Duration = Duration::from_secs(600);

    async fn start(headers: Duration) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(async || "ok"));
        let (end, ended) = oneshot::channel();
        (
            address,
            end,
            tokio::spawn(serve(listener, router, headers, ended)),
        )
    }

    /// All that comes until the other side closes.
    async fn rest(stream: &mut TcpStream) -> String {
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[tokio::test]
    async fn who_never_finishes_a_head_is_let_go_of() {
        let (address, _end, _task) = start(Duration::from_millis(50)).await;
        for begun in ["", "GET / HTTP/1.1\r\nHost: x\r\n"] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(begun.as_bytes()).await.unwrap();
            let ended = tokio::time::timeout(Duration::from_secs(20), rest(&mut stream)).await;
            assert!(!ended.expect("it is closed").contains(" 200 "), "{begun:?}");
        }
    }

    #[tokio::test]
    async fn who_never_finishes_a_body_is_let_go_of() {
        let (address, _end, _task) = start(Duration::from_millis(50)).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let begun = b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf";
        stream.write_all(begun).await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(20), rest(&mut stream)).await;
        assert!(ended.expect("it is closed").starts_with("HTTP/1.1 408 "));

        let (address, _end, _task) = start(LONG).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        let long = format!(
            "GET / HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
            BODY_BYTES_MAX + 1
        );
        stream.write_all(long.as_bytes()).await.unwrap();
        assert!(rest(&mut stream).await.starts_with("HTTP/1.1 413 "));
    }

    #[tokio::test]
    async fn a_body_in_chunks_is_too_long_or_broken() {
        let (address, _end, _task) = start(LONG).await;
        let chunk = format!(
            "{:x}\r\n{}\r\n0\r\n\r\n",
            BODY_BYTES_MAX,
            "x".repeat(BODY_BYTES_MAX)
        );
        let longer = format!(
            "{:x}\r\n{}\r\n",
            BODY_BYTES_MAX + 1,
            "x".repeat(BODY_BYTES_MAX + 1)
        );
        for (body, status) in [
            (chunk.as_str(), "200"),
            (&longer, "413"),
            ("zz\r\nhello\r\n0\r\n\r\n", "400"),
            ("ffffffffffffffffff\r\nhello\r\n0\r\n\r\n", "400"),
            ("5\r\nhelloX\r\n0\r\n\r\n", "400"),
            ("", "400"),
        ] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            let head = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
            let _ = stream.write_all(format!("{head}{body}").as_bytes()).await;
            stream.shutdown().await.unwrap();
            let answer = rest(&mut stream).await;
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{body:.20}: {answer}"
            );
        }
    }

    #[tokio::test]
    async fn one_more_than_it_holds_waits_for_a_place() {
        let (address, _end, _task) = start(LONG).await;
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut late = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        late.write_all(request).await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(200), late.readable()).await;
        assert!(early.is_err(), "nobody has room for it");
        silent.pop();
        assert!(rest(&mut late).await.starts_with("HTTP/1.1 200 "));
    }

    #[tokio::test]
    async fn it_ends_though_a_connection_is_idle() {
        let (address, end, task) = start(LONG).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        stream.readable().await.unwrap();
        drop(end);
        let ended = tokio::time::timeout(Duration::from_secs(20), task).await;
        ended.expect("it ended").unwrap();
    }
}
