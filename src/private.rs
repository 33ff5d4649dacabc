//! The private listener (13 §c): liveness, readiness, metrics, and what an operator may ask. Plain HTTP, never routed to
//! the outside; operator routes exist only here.
//!
//! | Module | Story |
//! | --- | --- |
//! | [`listener`] | its connections |
//! | [`ready`] | `/readyz` |
//! | [`mod@metrics`] | `/metrics` |
//! | [`mod@sweep`] | `/gc/sweep` |
//! | [`process`] | what the system says about this process, for `/metrics` |

pub(crate) mod listener;
mod metrics;
mod process;
mod ready;
mod sweep;
#[cfg(test)]
mod tests;

use crate::config::Key;
use crate::inspect::{NO_SUCH, Question};
use crate::running::{Mint, Running};
use crate::workspace;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

/// What pollers of the deployed relay know the program as (13 §c.1, c.2).
const PROGRAM: &str = "wealdrelay";

/// What every handler sees.
struct Surface {
    running: Arc<Running>,
    /// Of the operator token, if there is one.
    token: Option<blake3::Hash>,
    /// Of `operator.key`.
    key: blake3::Hash,
}

impl Surface {
    /// Whether the request carries the operator token.
    fn is_operator(&self, headers: &HeaderMap) -> bool {
        let bearer = sent_bearer(headers);
        self.token.is_some_and(|token| bearer == Some(token))
    }

    /// The same, or the key from the data folder.
    fn may_manage(&self, headers: &HeaderMap) -> bool {
        self.is_operator(headers) || sent_bearer(headers) == Some(self.key)
    }
}

fn sent_bearer(headers: &HeaderMap) -> Option<blake3::Hash> {
    bearer(headers.get(header::AUTHORIZATION)?.as_bytes())
}

/// The hash of the token in `Authorization: Bearer TOKEN`, exactly so; hashes are compared in constant time.
pub(crate) fn bearer(authorization: &[u8]) -> Option<blake3::Hash> {
    Some(blake3::hash(authorization.strip_prefix(b"Bearer ")?))
}

/// All routes. `key` is the content of `operator.key`.
pub(crate) fn router(running: Arc<Running>, key: &str) -> Router {
    let token = running
        .config
        .text(Key::OperatorToken)
        .map(|token| blake3::hash(token.as_bytes()));
    let surface = Arc::new(Surface {
        running,
        token,
        key: blake3::hash(key.as_bytes()),
    });
    let mut router = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/snapshot", post(snapshot))
        .route("/workspaces", get(workspaces).post(new_workspace))
        .route("/workspaces/{name}", get(workspace))
        .route("/workspaces/{name}/log", get(workspace_log));
    if token.is_some() {
        let operator = Router::new()
            .route("/version", get(version))
            .route("/admitted", get(admitted))
            .route("/gc/sweep", post(sweep::sweep))
            .route_layer(middleware::from_fn_with_state(surface.clone(), operator_only));
        router = router.merge(operator);
    }
    router.with_state(surface)
}

const UNAUTHORIZED: (StatusCode, &str) = (StatusCode::UNAUTHORIZED, "operator token required\n");

async fn operator_only(State(surface): State<Arc<Surface>>, request: Request, next: Next) -> Response {
    match surface.is_operator(request.headers()) {
        true => next.run(request).await,
        false => UNAUTHORIZED.into_response(),
    }
}

async fn readyz(State(surface): State<Arc<Surface>>, headers: HeaderMap) -> Response {
    let ready = ready::Readiness::probe(&surface.running).await;
    let status = if ready.verdict {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    let document = match surface.is_operator(&headers) {
        true => ready.document(&surface.running).await,
        false => json!({ "ok": ready.verdict, "ready": ready.verdict }),
    };
    (status, Json(document)).into_response()
}

async fn metrics(State(surface): State<Arc<Surface>>) -> Response {
    let ready = ready::Readiness::probe(&surface.running).await;
    let running = surface.running.clone();
    // Reads files.
    match tokio::task::spawn_blocking(move || metrics::page(&running, &ready)).await {
        Ok(page) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], page).into_response(),
        Err(_) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    }
}

async fn version(State(surface): State<Arc<Surface>>) -> Json<Value> {
    let running = &surface.running;
    Json(json!({
        "name": PROGRAM,
        "version": env!("CARGO_PKG_VERSION"),
        "digest": running.digest,
        "comparable": running.config.image_digest().is_some(),
    }))
}

async fn admitted(State(surface): State<Arc<Surface>>) -> Response {
    match surface.running.admitted().await {
        Ok(admitted) => Json(json!({ "admitted": admitted })).into_response(),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "no database\n").into_response(),
    }
}

async fn workspaces(State(surface): State<Arc<Surface>>, headers: HeaderMap) -> Response {
    inspected(&surface, &headers, Ok(Question::List)).await
}

async fn workspace(
    State(surface): State<Arc<Surface>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    inspected(&surface, &headers, workspace::realm(&name).map(Question::Show)).await
}

async fn workspace_log(
    State(surface): State<Arc<Surface>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    inspected(&surface, &headers, workspace::realm(&name).map(Question::Log)).await
}

/// Answers for whoever may mint; a name that no workspace can have is one that none has.
async fn inspected(
    surface: &Surface,
    headers: &HeaderMap,
    question: Result<Question, &'static str>,
) -> Response {
    if !surface.may_manage(headers) {
        return UNAUTHORIZED.into_response();
    }
    let answer = match &question {
        Ok(question) => surface.running.inspect(question).await,
        Err(_) => Ok(None),
    };
    match answer {
        Ok(Some(answer)) => Json(answer).into_response(),
        Ok(None) => (StatusCode::NOT_FOUND, format!("{NO_SUCH}\n")).into_response(),
        Err(error) => {
            tracing::warn!(%error, "a workspace could not be looked at");
            (StatusCode::SERVICE_UNAVAILABLE, "no database\n").into_response()
        }
    }
}

/// What an operator sends: an object, if it can be read.
type Body = Result<Json<Value>, axum::extract::rejection::JsonRejection>;

/// A text in it.
fn text<'a>(body: &'a Body, name: &str) -> Option<&'a str> {
    body.as_ref().ok()?.get(name)?.as_str()
}

/// `{"folder": …}`: copies the store into a folder on this machine, which must be missing or empty.
async fn snapshot(State(surface): State<Arc<Surface>>, headers: HeaderMap, body: Body) -> Response {
    if !surface.may_manage(&headers) {
        return UNAUTHORIZED.into_response();
    }
    let folder = text(&body, "folder").map(PathBuf::from);
    let Some(folder) = folder.filter(|folder| folder.is_absolute()) else {
        return (
            StatusCode::BAD_REQUEST,
            "an absolute path is needed: {\"folder\": …}\n",
        )
            .into_response();
    };
    match surface.running.snapshot(folder).await {
        Ok(Some(Ok(copied))) => (StatusCode::CREATED, Json(copied)).into_response(),
        Ok(Some(Err(error))) => (StatusCode::CONFLICT, format!("{error}\n")).into_response(),
        Ok(None) => (StatusCode::CONFLICT, "a copy is being made\n").into_response(),
        Err(error) => {
            tracing::error!(%error, "copying the store ended early");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// `{"name": …}`: mints, for whoever can read the data folder or has the operator token.
async fn new_workspace(State(surface): State<Arc<Surface>>, headers: HeaderMap, body: Body) -> Response {
    if !surface.may_manage(&headers) {
        return UNAUTHORIZED.into_response();
    }
    let realm = match text(&body, "name")
        .ok_or("a name is needed: {\"name\": …}")
        .and_then(workspace::realm)
    {
        Ok(realm) => realm,
        Err(what) => return (StatusCode::BAD_REQUEST, format!("{what}\n")).into_response(),
    };
    match surface.running.mint(&realm, false).await {
        Ok(Mint::Minted(banner)) => (StatusCode::CREATED, Json(banner.to_json())).into_response(),
        Ok(Mint::Existed) => (StatusCode::OK, Json(json!({ "existed": true }))).into_response(),
        Err(error) => {
            tracing::warn!(%error, "a workspace could not be minted");
            (StatusCode::SERVICE_UNAVAILABLE, "no database\n").into_response()
        }
    }
}
