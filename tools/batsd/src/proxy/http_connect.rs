//! HTTP CONNECT (RFC 9110 section 9.3.6) in HTTP/1.1, the server's side.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Parsed;
use super::request::Reply;
use super::target::Target;

/// Longest head of a request; browsers send less than 1 KiB to a proxy.
pub const MAX_HEAD: usize = 8 << 10;
/// Most headers of a request; browsers send about five to a proxy.
const MAX_HEADERS: usize = 64;

/// A request to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// The destination.
    pub target: Target,
    /// User and password of the header Proxy-Authorization.
    pub credentials: Option<(Vec<u8>, Vec<u8>)>,
}

/// Status line of what cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It is no request of HTTP/1.
    BadRequest,
    /// The method is not CONNECT.
    Method,
    /// The head is longer than [`MAX_HEAD`].
    TooLong,
    /// User and password are missing or wrong.
    Unauthenticated,
    /// The exit's answer.
    Reply(Reply),
}

/// Reads the head of a request.
///
/// # Errors
/// It is none that this proxy serves.
pub fn parse(bytes: &[u8]) -> Result<Parsed<Connect>, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let end = match request.parse(bytes.get(..MAX_HEAD).unwrap_or(bytes)) {
        Ok(httparse::Status::Complete(end)) => end,
        Ok(httparse::Status::Partial) if bytes.len() >= MAX_HEAD => return Err(Refusal::TooLong),
        Ok(httparse::Status::Partial) => return Ok(Parsed::Incomplete),
        Err(_) => return Err(Refusal::BadRequest),
    };
    if request.method != Some("CONNECT") {
        return Err(Refusal::Method);
    }
    let target = request.path.unwrap_or_default().parse().map_err(|_| Refusal::BadRequest)?;
    let header = request
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("proxy-authorization"))
        .and_then(|header| std::str::from_utf8(header.value).ok());
    Ok(Parsed::Complete(Connect { target, credentials: header.and_then(basic) }, end))
}

/// User and password of the scheme Basic (RFC 7617).
fn basic(value: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    let (scheme, text) = value.split_once(' ')?;
    let bytes =
        STANDARD.decode(text.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let mut parts = bytes.splitn(2, |&byte| byte == b':');
    Some((parts.next()?.to_vec(), parts.next()?.to_vec()))
}

/// The answer to a request that is served.
pub const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// The answer to a request that is not served, with the reason as text.
#[must_use]
pub fn refuse(refusal: Refusal) -> String {
    let (status, header, reason) = match refusal {
        Refusal::BadRequest => ("400 Bad Request", "", "send CONNECT HOST:PORT HTTP/1.1"),
        Refusal::Method => {
            let reason = "only CONNECT is served; with curl, add --proxytunnel";
            ("405 Method Not Allowed", "Allow: CONNECT\r\n", reason)
        }
        Refusal::TooLong => {
            ("431 Request Header Fields Too Large", "", "the head has more than 8192 bytes")
        }
        Refusal::Unauthenticated => {
            let header = "Proxy-Authenticate: Basic realm=\"batsd\"\r\n";
            ("407 Proxy Authentication Required", header, "user or password is missing or wrong")
        }
        Refusal::Reply(reply) => {
            let status = match reply {
                Reply::NotAllowed => "403 Forbidden",
                Reply::Failed => "503 Service Unavailable",
                Reply::TimedOut => "504 Gateway Timeout",
                _ => "502 Bad Gateway",
            };
            (status, "", reply.text())
        }
    };
    // With the line break.
    let length = reason.len().saturating_add(1);
    format!(
        "HTTP/1.1 {status}\r\n{header}Connection: close\r\nContent-Type: text/plain\r\n\
         Content-Length: {length}\r\n\r\n{reason}\n"
    )
}
