//! The admin port: `/metrics`, `/healthz`, a status page, and `/api/array`.
//!
//! Invariants: everything here runs on the control thread and reads counters; a request to the admin port
//! costs the cores nothing, but for the changes of an array that `/api/array` orders.

use super::array::{ArrayControl, api};
use super::{metrics, process};
use crate::shared::Shared;
use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use plimsoll_array::MemberState;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// The admin port while it is served; dropping it ends it.
pub(super) struct Admin {
    pub(super) address: SocketAddr,
    tasks: Vec<JoinHandle<()>>,
}

/// What is shown.
#[derive(Clone)]
struct Shown {
    shared: Arc<Shared>,
    /// Nothing if there is one device.
    array: Option<Arc<ArrayControl>>,
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Starts serving, and watching what is served: the process, and the devices of an array. Where others can
/// reach it, it takes no changes, unless the server is said to be unprotected.
pub(super) async fn listen(
    (address, is_unprotected): (SocketAddr, bool),
    shared: Arc<Shared>,
    array: Option<Arc<ArrayControl>>,
) -> Result<Admin> {
    let words = || format!("{address}: cannot listen for the admin port; choose another with --admin");
    let listener = tokio::net::TcpListener::bind(address).await.with_context(words)?;
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "others can reach the admin port: it shows metrics to everyone");
    }
    let router = Router::new()
        .route("/", get(page))
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(health))
        .with_state(Shown { shared: shared.clone(), array: array.clone() })
        .merge(api::router(array.clone(), is_unprotected || address.ip().is_loopback()));
    let serving = tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the admin port is not served any more");
        }
    });
    let mut tasks = vec![serving, tokio::spawn(process::watch(shared))];
    tasks.extend(array.map(|array| tokio::spawn(array.watch())));
    Ok(Admin { address, tasks })
}

/// `ok`, or what a human has to look at.
async fn health(State(shown): State<Shown>) -> (StatusCode, String) {
    let failed = metrics::labels_above_zero(&shown.shared, "read_only");
    let words = "read-only after a failed write; see the log, and start the server again";
    let mut findings: Vec<String> = failed.iter().map(|label| format!("{label}: {words}\n")).collect();
    let members = shown.array.iter().flat_map(|array| array.view().members);
    findings.extend(members.filter_map(|member| {
        let (device, reason) = (&member.device, &member.reason);
        match member.state {
            MemberState::Out => Some(format!(
                "{device}: out of the array ({reason}); see plimsoll array status, and bring it back (plimsoll \
                 array rebuild) or replace it (plimsoll array replace)\n"
            )),
            MemberState::In if !reason.is_empty() => Some(format!("{device}: {reason}\n")),
            MemberState::In | MemberState::Resyncing => None,
        }
    }));
    if findings.is_empty() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    (StatusCode::SERVICE_UNAVAILABLE, findings.concat())
}

async fn metrics_text(State(shown): State<Shown>) -> impl IntoResponse {
    let view = shown.array.as_ref().map(|array| array.view());
    let text = metrics::render(&shown.shared, view.as_ref());
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

async fn page(State(Shown { shared, .. }): State<Shown>) -> Html<String> {
    let records: u64 = metrics::gauge_sum(&shared, "objects");
    let (live, capacity) =
        (metrics::gauge_sum(&shared, "live_bytes"), metrics::gauge_sum(&shared, "capacity_bytes"));
    Html(format!(
        "<!doctype html><meta charset=utf-8><title>Plimsoll</title>\
         <style>body{{font:16px sans-serif;margin:2em}}td{{padding:.2em 1em}}</style>\
         <h1>Plimsoll {version}</h1><table>\
         <tr><td>cores<td>{cores}<tr><td>partitions<td>{partitions}<tr><td>connections<td>{connections}\
         <tr><td>commands<td>{commands}<tr><td>records on devices<td>{records}\
         <tr><td>live bytes<td>{live} of {capacity}</table>\
         <p><a href=/metrics>metrics</a> <a href=/healthz>health</a> \
         <a href=/api/array>array</a></p>",
        version = env!("CARGO_PKG_VERSION"),
        cores = shared.cores.len(),
        partitions = shared.geometry.partitions,
        connections = shared.connections(),
        commands = shared.sum(|counters| counters.calls()),
    ))
}
