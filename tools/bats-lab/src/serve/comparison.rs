//! Comparisons of past runs: rows with confidence intervals of two, plots of several.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::Context;
use axum::Json;
use axum::extract::{Query, State};
use axum::response::{Html, IntoResponse, Response};
use serde::Deserialize;
use serde_json::Value;

use super::blocking::blocking;
use super::error::{ApiError, ApiResult};
use super::runs::Runs;
use crate::report::batch;
use crate::result::folder;

/// Two runs to compare, and whether the answer is the text that `batslab compare` prints.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pair {
    a: String,
    b: String,
    #[serde(default)]
    text: bool,
}

/// The output of `batslab compare`.
pub(super) async fn rows(
    State(runs): State<Arc<Runs>>,
    Query(pair): Query<Pair>,
) -> ApiResult<Response> {
    let is_text = pair.text;
    let output = blocking(move || -> ApiResult<String> {
        let (a, b) = (runs.folder(&pair.a)?, runs.folder(&pair.b)?);
        let own = std::env::current_exe().context("cannot find batslab itself")?;
        let mut command = Command::new(own);
        command.arg("compare").args([a, b]);
        if !is_text {
            command.arg("--json");
        }
        let output = command.stdin(Stdio::null()).output().context("cannot compare")?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(ApiError::bad_request(words));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    })
    .await??;
    if is_text {
        return Ok(output.into_response());
    }
    let rows: Value = serde_json::from_str(&output).context("compare printed no JSON")?;
    Ok(Json(rows).into_response())
}

/// A page with plots of the runs that the query names: `?run=NAME&run=NAME`.
pub(super) async fn page(
    State(runs): State<Arc<Runs>>,
    Query(query): Query<Vec<(String, String)>>,
) -> ApiResult<Html<String>> {
    let page = blocking(move || -> ApiResult<String> {
        if let Some((key, _)) = query.iter().find(|(key, _)| key != "run") {
            return Err(ApiError::bad_request(format!("unknown key `{key}`: only `run` is known")));
        }
        let names: Vec<String> = query.into_iter().map(|(_, name)| name).collect();
        batch::check_names(&names).map_err(|error| ApiError::bad_request(error.to_string()))?;
        let mut results = Vec::new();
        for name in names {
            let place = runs.folder(&name)?;
            let result = folder::load(&place)
                .map_err(|_| ApiError::bad_request(format!("{name} has no result to compare")))?;
            results.push((name, result));
        }
        batch::page(&results).map_err(|error| ApiError::bad_request(format!("{error:#}")))
    })
    .await??;
    Ok(Html(page))
}
