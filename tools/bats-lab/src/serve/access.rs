//! Access control: clients with the token, from pages of this server.
//!
//! Clients can run commands as the user of this server, and every user of a machine can reach its
//! loopback interface. The kernel does not say reliably who a TCP connection belongs to (a closed
//! socket has no owner any more), so nothing but the token counts.
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects
    )
)]

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::connections::Connection;
use super::error::ApiError;

/// The page: it holds no data, and needs to be loaded before it can present a token.
const PAGE_PATH: &str = "/";
/// Files of runs: a browser follows links to them, so it presents a cookie.
const FILES_PATH: &str = "/runs";
/// Content security policy of the page: its own script only, requests to this server only.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// Content security policy of files of runs. They may hold what a measured program wrote: their
/// scripts run in an origin of their own, which cannot read the token of the page.
const FILES_POLICY: &str = "sandbox allow-scripts allow-downloads; frame-ancestors 'none'";

/// A secret, kept as its hash, so that comparisons take constant time.
struct Secret(blake3::Hash);

impl Secret {
    fn new(text: &str) -> Self {
        Self(blake3::hash(text.as_bytes()))
    }

    fn matches(&self, text: &str) -> bool {
        // blake3 compares hashes in constant time.
        self.0 == blake3::hash(text.as_bytes())
    }
}

/// A new secret of 128 bits in hexadecimal digits.
///
/// # Errors
/// If the system provides no random numbers.
pub(super) fn new_token() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).context("the system provides no random numbers")?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

/// Requirements for requests.
pub(super) struct Access {
    /// Accepted host names with the port of this server.
    hosts: Vec<String>,
    /// Whether any host name is accepted: the names of this machine are unknown.
    any_host: bool,
    token: Secret,
    /// Name and value of the cookie that grants files of runs. Browsers send cookies to all ports
    /// of a host, also to servers of other users, so it grants nothing else.
    cookie: (String, String),
    files: Secret,
}

impl Access {
    /// Access with this token to a server at this address.
    ///
    /// # Errors
    /// If the system provides no random numbers.
    pub(super) fn new(address: SocketAddr, token: &str) -> Result<Self> {
        let port = address.port();
        let hosts = vec![
            address.to_string(),
            format!("localhost:{port}"),
            format!("127.0.0.1:{port}"),
            format!("[::1]:{port}"),
        ];
        let key = new_token()?;
        Ok(Self {
            hosts,
            any_host: !address.ip().is_loopback(),
            token: Secret::new(token),
            files: Secret::new(&key),
            cookie: (format!("batslab-files-{port}"), key),
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

    fn has_token(&self, headers: &HeaderMap) -> bool {
        let bearer = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "));
        bearer.is_some_and(|token| self.token.matches(token))
    }

    /// Whether the request may be handled: it presents the token, asks for the page, or reads files
    /// of runs with the cookie.
    fn is_authorized(&self, request: &Request) -> bool {
        let (path, headers) = (request.uri().path(), request.headers());
        if self.has_token(headers) {
            return true;
        }
        if *request.method() != Method::GET {
            return false;
        }
        path == PAGE_PATH
            || (is_below(path, FILES_PATH)
                && cookie(headers, &self.cookie.0).is_some_and(|value| self.files.matches(value)))
    }

    /// The header that stores the cookie for files.
    fn set_cookie(&self) -> Option<HeaderValue> {
        let (name, value) = &self.cookie;
        let text = format!("{name}={value}; HttpOnly; SameSite=Strict; Path={FILES_PATH}");
        HeaderValue::from_str(&text).ok()
    }
}

/// Whether a path is `folder` or below it.
fn is_below(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The value of a cookie.
fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let cookies = headers.get(header::COOKIE)?.to_str().ok()?;
    cookies.split(';').find_map(|cookie| cookie.trim().strip_prefix(name)?.strip_prefix('='))
}

/// Checks a request before it is handled.
pub(super) async fn check(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    if !access.matches_origin(request.method(), request.headers()) {
        return ApiError(StatusCode::FORBIDDEN, "this request comes from another page".into())
            .into_response();
    }
    if !access.is_authorized(&request) {
        let text = "a token is required: open the address that `batslab serve` printed, or send \
                    `Authorization: Bearer TOKEN`";
        return ApiError(StatusCode::UNAUTHORIZED, text.into()).into_response();
    }
    let is_file = is_below(request.uri().path(), FILES_PATH);
    // Files are read with the token or the cookie; everybody may load the page.
    if (is_file || access.has_token(request.headers()))
        && let Some(connection) = request.extensions().get::<Connection>()
    {
        connection.keep();
    }
    let policy = if is_file { FILES_POLICY } else { PAGE_POLICY };
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Gives a client with the token the cookie for files of runs.
pub(super) async fn session(State(access): State<Arc<Access>>) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    if let Some(cookie) = access.set_cookie() {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_with_foreign_host_or_origin_are_rejected() {
        let access = Access::new("127.0.0.1:8042".parse().unwrap(), "0123456789abcdef").unwrap();
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

    /// The server does not know the names of its host, so that it accepts any there. What browsers say about the page
    /// that sends a request still counts, and so does the token.
    #[test]
    fn any_host_name_is_accepted_only_beyond_loopback() {
        for (address, is_any) in [
            ("127.0.0.1:8042", false),
            ("127.8.0.1:8042", false),
            ("[::1]:8042", false),
            ("0.0.0.0:8042", true),
            ("192.0.2.7:8042", true),
            ("[::]:8042", true),
            ("[2001:db8::7]:8042", true),
        ] {
            let access = Access::new(address.parse().unwrap(), "0123456789abcdef").unwrap();
            let request = |pairs: &[(header::HeaderName, &str)]| {
                let mut request = Request::new(axum::body::Body::empty());
                *request.method_mut() = Method::POST;
                for (name, value) in pairs {
                    let value = HeaderValue::from_str(value).unwrap();
                    request.headers_mut().insert(name.clone(), value);
                }
                request
            };
            let accepted = |pairs: &[(header::HeaderName, &str)]| {
                access.matches_origin(&Method::POST, request(pairs).headers())
            };
            let host = (header::HOST, "lab.example:8042");
            assert_eq!(accepted(std::slice::from_ref(&host)), is_any, "{address}");
            let own = (header::ORIGIN, "http://lab.example:8042");
            assert_eq!(accepted(&[host.clone(), own]), is_any, "{address}");
            assert!(accepted(&[(header::HOST, address)]), "{address}");
            // Other pages are refused everywhere.
            let other = (header::ORIGIN, "http://evil.example:8042");
            assert!(!accepted(&[host.clone(), other]), "{address}");
            let site = (header::HeaderName::from_static("sec-fetch-site"), "cross-site");
            assert!(!accepted(&[host.clone(), site]), "{address}");
            // A page whose name leads to this server has no token.
            assert!(!access.is_authorized(&request(std::slice::from_ref(&host))), "{address}");
            let token = (header::AUTHORIZATION, "Bearer 0123456789abcdef");
            assert!(access.is_authorized(&request(&[host, token])), "{address}");
        }
    }

    #[test]
    fn token_grants_everything_and_the_cookie_only_files_of_runs() {
        let access = Access::new("127.0.0.1:8042".parse().unwrap(), "0123456789abcdef").unwrap();
        let authorized = |method: Method, path: &str, name: header::HeaderName, value: &str| {
            let request = Request::builder().method(method).uri(path).header(name, value);
            access.is_authorized(&request.body(axum::body::Body::empty()).unwrap())
        };
        let (auth, cookie) = (header::AUTHORIZATION, header::COOKIE);
        let token = "Bearer 0123456789abcdef";
        for (method, path) in [
            (Method::GET, "/api/runs"),
            (Method::POST, "/api/runs"),
            (Method::GET, "/runs/x/report.html"),
            (Method::DELETE, "/runs/x"),
        ] {
            assert!(authorized(method.clone(), path, auth.clone(), token), "{path}");
            for wrong in ["Bearer 0123456789abcdee", "Bearer ", "Basic 0123456789abcdef", ""] {
                assert!(!authorized(method.clone(), path, auth.clone(), wrong), "{path} {wrong}");
            }
        }
        let value = format!("a=b; {}={}", access.cookie.0, access.cookie.1);
        assert!(authorized(Method::GET, "/runs/x/report.html", cookie.clone(), &value));
        for (method, path) in [
            (Method::DELETE, "/runs/x"),
            (Method::GET, "/api/runs"),
            (Method::GET, "/runsx"),
            (Method::POST, "/api/runs"),
            (Method::POST, "/api/session"),
        ] {
            assert!(!authorized(method, path, cookie.clone(), &value), "{path}");
        }
        assert!(!authorized(Method::GET, "/runs/x/y", cookie.clone(), "batslab-files-8042=x"));
        assert!(authorized(Method::GET, "/", cookie.clone(), ""));
        assert_ne!(new_token().unwrap(), new_token().unwrap());
        assert!(!authorized(Method::POST, "/", cookie, ""));
    }
}
