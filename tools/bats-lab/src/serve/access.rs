//! Access control: local pages of this user, or clients with the token.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::{ApiError, Server, peer};

const COOKIE: &str = "batslab-token";

/// Requirements for requests.
pub(super) struct Access {
    /// Accepted host names with the port of this server.
    hosts: Vec<String>,
    /// Whether any host name is accepted, because clients must have the token.
    any_host: bool,
    token: Option<String>,
    address: SocketAddr,
    /// Without a token: the local users who may access the server.
    users: Vec<u32>,
}

impl Access {
    pub(super) fn new(address: SocketAddr, token: Option<String>) -> Self {
        let port = address.port();
        let hosts = vec![
            address.to_string(),
            format!("localhost:{port}"),
            format!("127.0.0.1:{port}"),
            format!("[::1]:{port}"),
        ];
        let any_host = token.is_some() && !address.ip().is_loopback();
        Self { hosts, any_host, token, address, users: users() }
    }

    /// Whether the client may access this server: it has to present a token, or it is an allowed
    /// user on this machine. Clients can run commands as the user of this server.
    fn is_allowed_user(&self, peer: Option<SocketAddr>) -> bool {
        self.token.is_some()
            || peer.filter(|peer| peer.ip().is_loopback()).is_some_and(|peer| {
                peer::user(peer, self.address).is_some_and(|user| self.users.contains(&user))
            })
    }

    /// Whether host and origin of a request are those of this server. This rejects requests of
    /// other pages (their origin differs) and DNS rebinding (the host differs).
    fn matches_origin(&self, method: &Method, headers: &HeaderMap) -> bool {
        let host =
            headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let known = self.any_host || self.hosts.iter().any(|one| one == host);
        let origin = headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or("?"));
        // `Sec-Fetch-Site` also covers requests without `Origin`.
        let from = headers.get("sec-fetch-site").map(|from| from.to_str().unwrap_or("?"));
        let is_same_site = from.is_none_or(|from| ["same-origin", "none"].contains(&from));
        known
            && (is_same_site || *method == Method::GET)
            && origin.is_none_or(|origin| origin.strip_prefix("http://") == Some(host))
    }

    fn has_token(&self, request: &Request) -> bool {
        let Some(token) = &self.token else { return true };
        let headers = request.headers();
        let bearer = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "));
        let cookies =
            headers.get(header::COOKIE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let cookie = cookies
            .split(';')
            .find_map(|cookie| cookie.trim().strip_prefix(COOKIE)?.strip_prefix('='));
        [bearer, cookie, token_of_query(request)]
            .into_iter()
            .flatten()
            .any(|known| equal_in_constant_time(known, token))
    }
}

/// The user of this server, root, and the user who started it by sudo.
fn users() -> Vec<u32> {
    let own = nix::unistd::geteuid();
    let mut users = vec![own.as_raw(), 0];
    if own.is_root() {
        users.extend(std::env::var("SUDO_UID").ok().and_then(|user| user.parse::<u32>().ok()));
    }
    users
}

/// The token in the query string.
fn token_of_query(request: &Request) -> Option<&str> {
    request.uri().query()?.split('&').find_map(|pair| pair.strip_prefix("token="))
}

/// Compares two texts in constant time.
fn equal_in_constant_time(one: &str, other: &str) -> bool {
    let (one, other) = (blake3::hash(one.as_bytes()), blake3::hash(other.as_bytes()));
    // blake3 compares hashes in constant time.
    one == other
}

/// Checks a request before it is handled.
pub(super) async fn check(
    State(server): State<Arc<Server>>,
    request: Request,
    next: Next,
) -> Response {
    let access = &server.access;
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0);
    if !access.is_allowed_user(peer) {
        let text =
            "this server belongs to another user: start it with --token and open /?token=TOKEN";
        return ApiError(StatusCode::FORBIDDEN, text.into()).into_response();
    }
    if !access.matches_origin(request.method(), request.headers()) {
        return ApiError(StatusCode::FORBIDDEN, "this request comes from another page".into())
            .into_response();
    }
    if !access.has_token(&request) {
        return ApiError(
            StatusCode::UNAUTHORIZED,
            "a token is required: open /?token=TOKEN".into(),
        )
        .into_response();
    }
    let cookie = (request.method() == Method::GET)
        .then(|| token_of_query(&request).map(str::to_owned))
        .flatten()
        .and_then(|token| {
            HeaderValue::from_str(&format!("{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/"))
                .ok()
        });
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    if let Some(cookie) = cookie {
        headers.insert(header::SET_COOKIE, cookie);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_with_foreign_host_or_origin_are_rejected() {
        let access = Access::new("127.0.0.1:8042".parse().unwrap(), None);
        let headers = |pairs: &[(header::HeaderName, &str)]| {
            pairs
                .iter()
                .map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap()))
                .collect::<HeaderMap>()
        };
        let accepted = |pairs: &[(header::HeaderName, &str)]| {
            [Method::GET, Method::POST]
                .map(|method| access.matches_origin(&method, &headers(pairs)))
        };
        let (local, own) = ((header::HOST, "localhost:8042"), (header::HOST, "127.0.0.1:8042"));
        assert_eq!(accepted(std::slice::from_ref(&local)), [true, true]);
        assert_eq!(accepted(&[own, (header::ORIGIN, "http://127.0.0.1:8042")]), [true, true]);
        assert_eq!(accepted(&[(header::HOST, "evil.example:8042")]), [false, false]);
        assert_eq!(accepted(&[]), [false, false]);
        for origin in ["http://evil.example", "null", "https://localhost:8042"] {
            assert_eq!(
                accepted(&[local.clone(), (header::ORIGIN, origin)]),
                [false, false],
                "{origin}"
            );
        }
        let from = header::HeaderName::from_static("sec-fetch-site");
        // Another page may link to this server; other requests from it are rejected.
        assert_eq!(accepted(&[local.clone(), (from.clone(), "cross-site")]), [true, false]);
        assert_eq!(accepted(&[local, (from, "same-origin")]), [true, true]);
    }
}
