//! Who may ask: this machine's own pages, or who knows the token.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::{Refusal, Server, peer};

const COOKIE: &str = "batslab-token";

/// What is asked of a request.
pub(super) struct Access {
    /// The names by which this server is known, with its port.
    hosts: Vec<String>,
    /// Whether any name will do: whoever knows the token is welcome from everywhere.
    any_host: bool,
    token: Option<String>,
    address: SocketAddr,
    /// Where no token tells who asks: the users of this machine who may, and no other.
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

    /// Whether who asks is on this machine and may do what this server does, as far as that is not the
    /// token's affair: whoever starts a test runs commands as the user of this server.
    fn is_welcome(&self, peer: Option<SocketAddr>) -> bool {
        self.token.is_some()
            || peer.filter(|peer| peer.ip().is_loopback()).is_some_and(|peer| {
                peer::user(peer, self.address).is_some_and(|user| self.users.contains(&user))
            })
    }

    /// Whether the names in a request are this server's. Another page's request has another origin; a
    /// name that was made to point here has another host.
    fn names_fit(&self, method: &Method, headers: &HeaderMap) -> bool {
        let host =
            headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let known = self.any_host || self.hosts.iter().any(|one| one == host);
        let origin = headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or("?"));
        // Browsers that tell from where a request comes tell it also where there is no origin.
        let from = headers.get("sec-fetch-site").map(|from| from.to_str().unwrap_or("?"));
        let is_ours = from.is_none_or(|from| ["same-origin", "none"].contains(&from));
        known
            && (is_ours || *method == Method::GET)
            && origin.is_none_or(|origin| origin.strip_prefix("http://") == Some(host))
    }

    fn knows_token(&self, request: &Request) -> bool {
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
        [bearer, cookie, asked(request)].into_iter().flatten().any(|known| same(known, token))
    }
}

/// This server's user, root, and who became root by sudo to start it.
fn users() -> Vec<u32> {
    let own = nix::unistd::geteuid();
    let mut users = vec![own.as_raw(), 0];
    if own.is_root() {
        users.extend(std::env::var("SUDO_UID").ok().and_then(|user| user.parse::<u32>().ok()));
    }
    users
}

/// The token in the address.
fn asked(request: &Request) -> Option<&str> {
    request.uri().query()?.split('&').find_map(|pair| pair.strip_prefix("token="))
}

/// Whether two texts are the same, in a time that does not tell where they differ.
fn same(one: &str, other: &str) -> bool {
    let (one, other) = (blake3::hash(one.as_bytes()), blake3::hash(other.as_bytes()));
    // The comparison of hashes takes the same time for all.
    one == other
}

/// Lets a request through, or not.
pub(super) async fn check(
    State(server): State<Arc<Server>>,
    request: Request,
    next: Next,
) -> Response {
    let access = &server.access;
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0);
    if !access.is_welcome(peer) {
        let text = "this server is another user's: start it with --token, and say /?token=TOKEN";
        return Refusal(StatusCode::FORBIDDEN, text.into()).into_response();
    }
    if !access.names_fit(request.method(), request.headers()) {
        return Refusal(StatusCode::FORBIDDEN, "this request comes from another page".into())
            .into_response();
    }
    if !access.knows_token(&request) {
        return Refusal(
            StatusCode::UNAUTHORIZED,
            "this server wants its token: /?token=TOKEN".into(),
        )
        .into_response();
    }
    let cookie = (request.method() == Method::GET)
        .then(|| asked(&request).map(str::to_owned))
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
    fn names_of_others_do_not_fit() {
        let access = Access::new("127.0.0.1:8042".parse().unwrap(), None);
        let headers = |pairs: &[(header::HeaderName, &str)]| {
            pairs
                .iter()
                .map(|(name, value)| (name.clone(), HeaderValue::from_str(value).unwrap()))
                .collect::<HeaderMap>()
        };
        let fits = |pairs: &[(header::HeaderName, &str)]| {
            [Method::GET, Method::POST].map(|method| access.names_fit(&method, &headers(pairs)))
        };
        let (local, own) = ((header::HOST, "localhost:8042"), (header::HOST, "127.0.0.1:8042"));
        assert_eq!(fits(std::slice::from_ref(&local)), [true, true]);
        assert_eq!(fits(&[own, (header::ORIGIN, "http://127.0.0.1:8042")]), [true, true]);
        assert_eq!(fits(&[(header::HOST, "evil.example:8042")]), [false, false]);
        assert_eq!(fits(&[]), [false, false]);
        for origin in ["http://evil.example", "null", "https://localhost:8042"] {
            assert_eq!(
                fits(&[local.clone(), (header::ORIGIN, origin)]),
                [false, false],
                "{origin}"
            );
        }
        let from = header::HeaderName::from_static("sec-fetch-site");
        // A link of another page may lead here; nothing else of it may.
        assert_eq!(fits(&[local.clone(), (from.clone(), "cross-site")]), [true, false]);
        assert_eq!(fits(&[local, (from, "same-origin")]), [true, true]);
    }
}
