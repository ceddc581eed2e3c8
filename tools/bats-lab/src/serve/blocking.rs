//! File operations that block, off the threads that serve requests.

use axum::http::StatusCode;

use super::error::{ApiError, ApiResult};

/// Runs blocking file operations on a separate thread.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> ApiResult<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| ApiError(StatusCode::INTERNAL_SERVER_ERROR, "the request panicked".into()))
}
