//! `POST /gc/sweep`: one pass of the collector, now (13 §c.1, c.5).

use super::Surface;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use drover_engine::collector::Collected;
use serde_json::{Value, json};
use std::sync::Arc;

const BAD_BODY: (StatusCode, &str) = (
    StatusCode::BAD_REQUEST,
    "the body may be {\"storage_listing\": true or false}\n",
);

/// Runs a pass, with a listing unless the body says otherwise.
pub(super) async fn sweep(State(surface): State<Arc<Surface>>, body: Bytes) -> Response {
    let Some(listing) = wants_listing(&body) else {
        return BAD_BODY.into_response();
    };
    match surface.running.collect(listing).await {
        Ok(collected) => Json(summary(&collected)).into_response(),
        Err(error) => {
            tracing::warn!(%error, "a pass of the collector that was asked for did not end");
            (StatusCode::SERVICE_UNAVAILABLE, "no database\n").into_response()
        }
    }
}

/// `{"storage_listing": …}`, or nothing for yes; `None` for anything else.
fn wants_listing(body: &[u8]) -> Option<bool> {
    if body.is_empty() {
        return Some(true);
    }
    let body: Value = serde_json::from_slice(body).ok()?;
    body.as_object()?
        .get("storage_listing")
        .map_or(Some(true), Value::as_bool)
}

/// The pass summary under its published names.
fn summary(collected: &Collected) -> Value {
    let overdue = &collected.retention_overdue;
    json!({
        "scopes": collected.scopes,
        "blobs_deleted": collected.blobs_deleted,
        "bytes_released": collected.bytes_released,
        "multipart_aborted": collected.multipart_aborted,
        "push_handles_dropped": collected.push_handles_dropped,
        "recovery_wraps_dropped": collected.recovery_wraps_dropped,
        "handoffs_dropped": collected.handoffs_dropped,
        "key_packages_expired": collected.key_packages_expired,
        "invite_seats_released": collected.invite_seats_released,
        "invites_expired": collected.invites_expired,
        "storage_listings": collected.storage_listings,
        "storage_listing_suppressed": collected.storage_listing_suppressed,
        "retention_overdue": {
            "envelopes": overdue.envelopes,
            "workspaces": overdue.workspaces,
            "oldest_days": overdue.oldest_days,
        },
        "steps_failed": collected.steps_failed,
    })
}
