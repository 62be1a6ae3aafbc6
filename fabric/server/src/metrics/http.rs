// SPDX-License-Identifier: MIT OR Apache-2.0
//! As much of HTTP as a scraper needs: one `GET /metrics` per connection.

/// Bytes of the longest request.
pub(crate) const MAX_REQUEST: usize = 8 << 10;
const MAX_HEADERS: usize = 64;

/// The result of parsing the bytes so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parsed {
    Incomplete,
    /// The metrics; only their head if `head`.
    Metrics {
        head: bool,
    },
    /// Something else: the status with which to refuse it.
    Refused(u16),
}

/// Parses the bytes of a connection so far.
pub(crate) fn parse(bytes: &[u8]) -> Parsed {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < MAX_REQUEST => return Parsed::Incomplete,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => return Parsed::Refused(431),
        Err(_) => return Parsed::Refused(400),
    }
    let path = request.path.unwrap_or_default();
    let path = path.split_once('?').map_or(path, |(path, _)| path);
    match (path, request.method) {
        ("/metrics", Some("GET")) => Parsed::Metrics { head: false },
        ("/metrics", Some("HEAD")) => Parsed::Metrics { head: true },
        ("/metrics", _) => Parsed::Refused(405),
        _ => Parsed::Refused(404),
    }
}

/// The reason of an error status, and what was expected.
fn explanation(status: u16) -> (&'static str, &'static str) {
    match status {
        400 => ("Bad Request", "expected a request such as GET /metrics HTTP/1.1"),
        404 => ("Not Found", "expected /metrics"),
        405 => ("Method Not Allowed", "expected GET"),
        431 => ("Request Header Fields Too Large", "expected at most 64 header fields in 8192 bytes"),
        _ => ("Service Unavailable", "the fabric did not answer"),
    }
}

fn response(status: u16, reason: &str, kind: &str, body: &str, head: bool) -> Vec<u8> {
    let allow = if status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    let mut bytes = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        body.len()
    );
    if !head {
        bytes.push_str(body);
    }
    bytes.into_bytes()
}

/// The answer with the metrics; without them if only the `head` was requested.
pub(crate) fn metrics(body: &str, head: bool) -> Vec<u8> {
    response(200, "OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", body, head)
}

/// The answer with an error status, and what was expected.
pub(crate) fn refuse(status: u16) -> Vec<u8> {
    let (reason, expected) = explanation(status);
    response(status, reason, "text/plain; charset=utf-8", &format!("{status} {reason}: {expected}\n"), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_get_metrics_is_served() {
        let host = "Host: x\r\n\r\n";
        for (line, parsed) in [
            ("GET /metrics HTTP/1.1", Parsed::Metrics { head: false }),
            ("GET /metrics?x=1 HTTP/1.0", Parsed::Metrics { head: false }),
            ("HEAD /metrics HTTP/1.1", Parsed::Metrics { head: true }),
            ("POST /metrics HTTP/1.1", Parsed::Refused(405)),
            ("GET / HTTP/1.1", Parsed::Refused(404)),
            ("GET /metricsx HTTP/1.1", Parsed::Refused(404)),
            ("BREW /coffee HTTP/1.1", Parsed::Refused(404)),
            ("GET /metrics", Parsed::Refused(400)),
            ("\x16\x03\x01", Parsed::Refused(400)),
        ] {
            assert_eq!(parse(format!("{line}\r\n{host}").as_bytes()), parsed, "{line:?}");
        }
    }

    #[test]
    fn requests_are_bounded() {
        assert_eq!(parse(b""), Parsed::Incomplete);
        assert_eq!(parse(b"GET /metr"), Parsed::Incomplete);
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(parse(many.as_bytes()), Parsed::Refused(431));
        let long = format!("GET /metrics HTTP/1.1\r\na: {}", "b".repeat(MAX_REQUEST));
        assert_eq!(parse(long.as_bytes()), Parsed::Refused(431));
    }
}
