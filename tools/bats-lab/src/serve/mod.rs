//! `batslab serve`: a web page and a REST API for past runs, shipped cases and the running test.

mod access;
mod blocking;
mod comparison;
mod connections;
mod error;
mod live;
mod past;
mod runs;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router, middleware};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cli::ServeOptions;
use crate::config::{load, shipped};
use crate::interrupt;
use access::Access;
use blocking::blocking;
use connections::REQUEST_TIME;
use error::{ApiError, ApiResult};
use runs::{Runs, StartRequest};

const PAGE: &str = include_str!("page.html");
/// Maximum size of a request in bytes.
const MAX_REQUEST_BYTES: usize = 1 << 20;
/// Minimum length of a token.
const MIN_TOKEN_LENGTH: usize = 16;

/// A JSON body. Invalid bodies are reported in the same format as other errors.
struct Body<T>(T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> ApiResult<Self> {
        let reads = Json::from_request(request, state);
        let Ok(read) = tokio::time::timeout(REQUEST_TIME, reads).await else {
            let text = format!("the body did not arrive within {} s", REQUEST_TIME.as_secs());
            return Err(ApiError(StatusCode::REQUEST_TIMEOUT, text));
        };
        match read {
            Ok(Json(body)) => Ok(Self(body)),
            Err(JsonRejection::MissingJsonContentType(error)) => Err(ApiError(
                error.status(),
                "the request needs `Content-Type: application/json`".into(),
            )),
            Err(error) => Err(ApiError(error.status(), error.body_text())),
        }
    }
}

/// Serves until it is interrupted.
///
/// # Errors
/// If it cannot listen, or the token is too short.
pub(crate) fn run(options: &ServeOptions) -> Result<()> {
    let given = options.token.clone().or_else(|| std::env::var("BATSLAB_TOKEN").ok());
    if given.as_ref().is_some_and(|token| token.len() < MIN_TOKEN_LENGTH) {
        bail!("a token needs at least {MIN_TOKEN_LENGTH} characters");
    }
    interrupt::watch()?;
    std::fs::create_dir_all(&options.results)
        .with_context(|| format!("cannot create {}", options.results.display()))?;
    let results = options.results.canonicalize().context("cannot find the results directory")?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(serve(options.listen, given, results))
}

async fn serve(listen: SocketAddr, given: Option<String>, results: PathBuf) -> Result<()> {
    let listener = tokio::net::TcpListener::bind(listen)
        .await
        .with_context(|| format!("cannot listen on {listen}"))?;
    let address = listener.local_addr()?;
    let token = given.clone().map_or_else(access::new_token, Ok)?;
    let access = Arc::new(Access::new(address, &token)?);
    let runs = Arc::new(Runs::new(results));
    match given {
        // A token that the user chose stays out of logs; the page asks for it.
        Some(_) => outln!("http://{address}/"),
        // Browsers do not send the fragment of an address.
        None => outln!("http://{address}/#token={token}"),
    }
    let router = Router::new()
        .route("/", get(|| async { Html(PAGE) }))
        .route("/api/session", post(access::session).with_state(Arc::clone(&access)))
        .route("/api/cases", get(cases))
        .route("/api/cases/{name}", get(case))
        .route("/api/check", post(check))
        .route("/api/runs", get(list).post(start))
        .route("/api/runs/{name}", get(result).delete(stop))
        .route("/api/runs/{name}/live", get(follow))
        .route("/api/compare", get(comparison::rows))
        .route("/runs", get(comparison::page))
        .route("/runs/{name}", delete(remove))
        .route("/runs/{name}/{*path}", get(file))
        .fallback(|| async { ApiError::not_found("not found: see \"The page\" in docs/lab.md") })
        .method_not_allowed_fallback(|| async {
            ApiError(StatusCode::METHOD_NOT_ALLOWED, "method not allowed".into())
        })
        .layer(middleware::from_fn_with_state(access, access::check))
        .layer(DefaultBodyLimit::max(MAX_REQUEST_BYTES))
        .with_state(Arc::clone(&runs));
    tokio::select! {
        () = connections::serve(listener, router) => {}
        () = interrupted() => {}
    }
    runs.end_all();
    Ok(())
}

async fn interrupted() {
    while !interrupt::requested() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn cases() -> Json<Value> {
    let list = shipped::cases().map(|name| {
        let suite = load::suite(&format!("case:{name}"), None).ok();
        let tests = suite.iter().flat_map(|suite| &suite.cases);
        json!({
            "name": name,
            "seconds": suite.as_ref().map(|suite| suite.seconds()),
            "tests": tests.map(|case| json!({ "name": case.name, "description": case.description })).collect::<Vec<_>>(),
        })
    });
    Json(list.collect())
}

async fn case(Path(name): Path<String>) -> ApiResult<String> {
    let source = shipped::case(&name).map_err(|error| ApiError::not_found(format!("{error:#}")))?;
    Ok(source.text().to_owned())
}

/// The text of a test file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    yaml: String,
}

async fn check(State(runs): State<Arc<Runs>>, Body(text): Body<Text>) -> ApiResult<Json<Value>> {
    let plan = blocking(move || runs.check(&text.yaml, None))
        .await?
        .map_err(|error| ApiError::bad_request(format!("{error:#}")))?;
    Ok(Json(json!({ "plan": plan })))
}

async fn start(
    State(runs): State<Arc<Runs>>,
    Body(order): Body<StartRequest>,
) -> ApiResult<Response> {
    let name = blocking(move || runs.start(&order)).await??;
    Ok((StatusCode::CREATED, Json(json!({ "name": name }))).into_response())
}

async fn list(State(runs): State<Arc<Runs>>) -> ApiResult<Json<Value>> {
    blocking(move || runs.list()).await.map(Json)
}

async fn result(State(runs): State<Arc<Runs>>, Path(name): Path<String>) -> ApiResult<Response> {
    let path = runs.file(&name, "result.json")?;
    let bytes = tokio::fs::read(path).await.map_err(|_| ApiError::not_found("no result yet"))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], bytes).into_response())
}

async fn stop(State(runs): State<Arc<Runs>>, Path(name): Path<String>) -> ApiResult<Json<Value>> {
    runs.stop(&name)?;
    Ok(Json(json!({ "stopped": name })))
}

async fn remove(State(runs): State<Arc<Runs>>, Path(name): Path<String>) -> ApiResult<Json<Value>> {
    let removed = name.clone();
    blocking(move || runs.remove(&removed)).await??;
    Ok(Json(json!({ "deleted": name })))
}

async fn follow(State(runs): State<Arc<Runs>>, Path(name): Path<String>) -> ApiResult<Response> {
    let path = runs.file(&name, crate::run::progress::EVENTS_FILE)?;
    Ok(live::stream(runs, name, path).into_response())
}

async fn file(
    State(runs): State<Arc<Runs>>,
    Path((name, path)): Path<(String, String)>,
) -> ApiResult<Response> {
    let place = runs.file(&name, &path)?;
    let bytes = tokio::fs::read(&place).await.map_err(|_| ApiError::not_found("no such file"))?;
    let kind = match place.extension().and_then(|end| end.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("json") => "application/json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("csv") => "text/csv; charset=utf-8",
        Some("pcapng") => "application/octet-stream",
        _ => "text/plain; charset=utf-8",
    };
    Ok(([(header::CONTENT_TYPE, kind)], bytes).into_response())
}
