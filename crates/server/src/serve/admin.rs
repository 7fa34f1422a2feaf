//! The admin port: `/metrics`, `/healthz` and a status page.
//!
//! Invariants: everything here runs on the control thread and reads counters; a request to the
//! admin port costs the cores nothing.

use super::{metrics, process};
use crate::shared::Shared;
use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// The admin port while it is served; dropping it ends it.
pub(super) struct Admin {
    pub(super) address: SocketAddr,
    tasks: [JoinHandle<()>; 2],
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Starts serving.
pub(super) async fn listen(address: SocketAddr, shared: Arc<Shared>) -> Result<Admin> {
    let words = || format!("{address}: cannot listen for the admin port; choose another with --admin");
    let listener = tokio::net::TcpListener::bind(address).await.with_context(words)?;
    let address = listener.local_addr()?;
    let router = Router::new()
        .route("/", get(page))
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(health))
        .with_state(shared.clone());
    let serving = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the admin port is not served any more");
        }
    });
    Ok(Admin { address, tasks: [serving, tokio::spawn(process::watch(shared))] })
}

/// `ok`, or what a human has to look at.
async fn health(State(shared): State<Arc<Shared>>) -> (StatusCode, String) {
    let failed = metrics::labels_above_zero(&shared, "read_only");
    if failed.is_empty() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    let words = "read-only after a failed write; see the log, and start the server again";
    (StatusCode::SERVICE_UNAVAILABLE, failed.iter().map(|label| format!("{label}: {words}\n")).collect())
}

async fn metrics_text(State(shared): State<Arc<Shared>>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics::render(&shared))
}

async fn page(State(shared): State<Arc<Shared>>) -> Html<String> {
    let objects: u64 = metrics::gauge_sum(&shared, "objects");
    let (live, capacity) =
        (metrics::gauge_sum(&shared, "live_bytes"), metrics::gauge_sum(&shared, "capacity_bytes"));
    Html(format!(
        "<!doctype html><meta charset=utf-8><title>Plimsoll</title>\
         <style>body{{font:16px sans-serif;margin:2em}}td{{padding:.2em 1em}}</style>\
         <h1>Plimsoll {version}</h1><table>\
         <tr><td>cores<td>{cores}<tr><td>partitions<td>{partitions}<tr><td>connections<td>{connections}\
         <tr><td>commands<td>{commands}<tr><td>objects<td>{objects}\
         <tr><td>live bytes<td>{live} of {capacity}</table>\
         <p><a href=/metrics>metrics</a> <a href=/healthz>health</a></p>",
        version = env!("CARGO_PKG_VERSION"),
        cores = shared.cores.len(),
        partitions = shared.geometry.partitions,
        connections = shared.connections(),
        commands = shared.sum(|counters| counters.calls()),
    ))
}
