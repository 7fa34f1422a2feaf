//! `/api/array` of the admin port.
//!
//! Role: HTTP to wishes, and what came of them to JSON. Place on the path: none.
//!
//! Invariants: what is wrong is told as `{"error": words}`; a change has to be asked for as JSON, which a
//! browser does for no foreign page without asking this server first. Nobody gives a password here: where
//! others can reach it, it changes nothing.

use super::ArrayControl;
use super::replace::{Done, Named, Refusal, Replacement};
use axum::Router;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// The array; nothing if one device is served.
type Array = Option<Arc<ArrayControl>>;

/// What a rebuild may say besides.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Rebuild {
    /// The member to rebuild; all that are not in if it is not said.
    device: Option<Named>,
    /// Give up what is lost.
    #[serde(default)]
    accept_loss: bool,
}

/// A wish that has nothing to say.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// What answers for an array, if there is one; where it takes no changes, they are refused.
pub(in crate::serve) fn router(array: Array, takes_changes: bool) -> Router {
    let router = Router::new().route("/api/array", get(status));
    let router = if takes_changes {
        router
            .route("/api/array/replace", post(replace))
            .route("/api/array/rebuild", post(rebuild))
            .route("/api/array/scrub", post(scrub))
    } else {
        router.route("/api/array/{change}", post(refuse))
    };
    router.with_state(array)
}

async fn refuse() -> Response {
    let words = "others can reach this address without a password, so nothing is changed from here: serve \
                 --admin on a loopback address, or say --unprotected";
    Refusal::new(StatusCode::FORBIDDEN, words).into_response()
}

fn json(status: StatusCode, value: &impl Serialize) -> Response {
    let text = serde_json::to_string(value).expect("views are plain data");
    (status, [(CONTENT_TYPE, "application/json")], text + "\n").into_response()
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        json(self.status, &serde_json::json!({ "error": self.words }))
    }
}

fn answer(result: Result<Done, Refusal>) -> Response {
    match result {
        Ok(done) => json(StatusCode::OK, &done),
        Err(refusal) => refusal.into_response(),
    }
}

fn of(array: &Array) -> Result<&Arc<ArrayControl>, Refusal> {
    let words = "this server has one device; an array has several (--device, once for each)";
    array.as_ref().ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, words))
}

/// What a body wishes; an empty one wishes what is wished if nothing is said.
fn wish<T: DeserializeOwned>(headers: &HeaderMap, body: &str) -> Result<T, Refusal> {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().map(str::trim) != Some("application/json") {
        let words = "send it as JSON, with the header Content-Type: application/json";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, words));
    }
    let body = if body.trim().is_empty() { "{}" } else { body };
    serde_json::from_str(body).map_err(|error| {
        Refusal::new(StatusCode::BAD_REQUEST, format!("the body is not what is expected here: {error}"))
    })
}

async fn status(State(array): State<Array>) -> Response {
    match of(&array) {
        Ok(array) => json(StatusCode::OK, &array.view()),
        Err(refusal) => refusal.into_response(),
    }
}

/// Does what is wished to its end, also if who asked goes away meanwhile.
async fn to_the_end<F>(wished: F) -> Response
where
    F: Future<Output = Result<Done, Refusal>> + Send + 'static,
{
    let ended = tokio::spawn(wished).await;
    answer(ended.unwrap_or_else(|error| {
        Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("this failed within: {error}")))
    }))
}

async fn replace(State(array): State<Array>, headers: HeaderMap, body: String) -> Response {
    to_the_end(async move {
        let (array, wish): (_, Replacement) = (of(&array)?, wish(&headers, &body)?);
        array.replace(&wish).await
    })
    .await
}

async fn rebuild(State(array): State<Array>, headers: HeaderMap, body: String) -> Response {
    to_the_end(async move {
        let (array, wish): (_, Rebuild) = (of(&array)?, wish(&headers, &body)?);
        array.rebuild(wish.device.as_ref(), wish.accept_loss).await
    })
    .await
}

async fn scrub(State(array): State<Array>, headers: HeaderMap, body: String) -> Response {
    to_the_end(async move {
        let (array, _): (_, Nothing) = (of(&array)?, wish(&headers, &body)?);
        array.scrub().await
    })
    .await
}
