//! Errors of TLS that concern certificates, in words that say which end wants what.

use rustls::{AlertDescription, CertificateError, Error, OtherError};

const CLIENT_NEEDS_CERTIFICATE: &str =
    "the server requires a certificate of its clients, and this client presented none";
const CLIENT_IS_NOT_TRUSTED: &str = "the server does not trust the certificate of this client";
const SERVER_IS_NOT_TRUSTED: &str = "the client does not trust the certificate of this server";

/// Describes an error of this end's TLS. The peer gets the same text.
pub fn describe_tls_error(error: &Error, is_client: bool) -> String {
    match error {
        Error::NoCertificatesPresented if !is_client => CLIENT_NEEDS_CERTIFICATE.to_owned(),
        Error::InvalidCertificate(problem) => {
            let untrusted = if is_client { SERVER_IS_NOT_TRUSTED } else { CLIENT_IS_NOT_TRUSTED };
            let problem = match problem {
                // That of `PinnedVerifier`.
                CertificateError::Other(OtherError(problem)) => problem.to_string(),
                CertificateError::UnknownIssuer => {
                    "none of the accepted authorities has issued it".to_owned()
                }
                CertificateError::Expired => "it has expired".to_owned(),
                CertificateError::NotValidYet => "it is not valid yet".to_owned(),
                CertificateError::BadSignature => "a signature is wrong".to_owned(),
                other => other.to_string(),
            };
            format!("{untrusted}: {problem}")
        }
        Error::AlertReceived(alert) => {
            describe_alert((*alert).into(), is_client).unwrap_or_else(|| error.to_string())
        }
        other => other.to_string(),
    }
}

/// Describes an alert of the peer (RFC 8446 section 6.2), if it is about this end's certificate.
#[must_use]
pub fn describe_alert(alert: u8, is_client: bool) -> Option<String> {
    let untrusted = if is_client { CLIENT_IS_NOT_TRUSTED } else { SERVER_IS_NOT_TRUSTED };
    match AlertDescription::from(alert) {
        AlertDescription::CertificateRequired if is_client => {
            Some(CLIENT_NEEDS_CERTIFICATE.to_owned())
        }
        // The first one is that of `PinnedVerifier`.
        AlertDescription::CertificateUnknown | AlertDescription::AccessDenied => {
            Some(format!("{untrusted}: its fingerprint is not one of those that are accepted"))
        }
        AlertDescription::UnknownCA => {
            Some(format!("{untrusted}: none of the accepted authorities has issued it"))
        }
        // Also of a certificate with the name of an accepted authority, which has not signed it.
        AlertDescription::DecryptError => Some(format!("{untrusted}: a signature is wrong")),
        AlertDescription::CertificateExpired => Some(format!("{untrusted}: it has expired")),
        alert @ (AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked) => Some(format!("{untrusted}: {alert:?}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::crypto::verifier::NotAccepted;

    #[test]
    fn errors_about_certificates_name_the_end_that_refuses() {
        let text = describe_tls_error(&Error::NoCertificatesPresented, false);
        assert!(text.contains("requires a certificate of its clients"), "{text}");
        let untrusted = CertificateError::Other(OtherError(Arc::new(NotAccepted([0xab; 32]))));
        let by = |is_client| {
            describe_tls_error(&Error::InvalidCertificate(untrusted.clone()), is_client)
        };
        assert!(by(false).starts_with(CLIENT_IS_NOT_TRUSTED), "{}", by(false));
        assert!(by(true).starts_with(SERVER_IS_NOT_TRUSTED), "{}", by(true));
        assert!(by(true).contains(&format!("its fingerprint {} is not", "ab".repeat(32))));
        let expired = Error::InvalidCertificate(CertificateError::Expired);
        let text = describe_tls_error(&expired, true);
        assert!(text.contains("expired"), "{text}");
        // The peer's alert gives the text of its error, without the fingerprint.
        let alert = |alert| describe_tls_error(&Error::AlertReceived(alert), true);
        let without = by(false).replace(&format!("{} ", "ab".repeat(32)), "");
        assert_eq!(alert(AlertDescription::CertificateUnknown), without);
        assert_eq!(alert(AlertDescription::CertificateRequired), CLIENT_NEEDS_CERTIFICATE);
        let text = describe_tls_error(&Error::AlertReceived(AlertDescription::UnknownCA), false);
        assert!(text.starts_with(SERVER_IS_NOT_TRUSTED), "{text}");
        // Other errors keep their text.
        let other = Error::AlertReceived(AlertDescription::HandshakeFailure);
        assert_eq!(describe_tls_error(&other, true), other.to_string());
    }
    /// The alerts about certificates of RFC 8446, section 6.2, and all others.
    #[test]
    fn alerts_about_certificates_say_whose_certificate_is_not_trusted() {
        let reasons = [
            (42, "BadCertificate"),
            (43, "UnsupportedCertificate"),
            (44, "CertificateRevoked"),
            (45, "it has expired"),
            (46, "its fingerprint is not one of those that are accepted"),
            (48, "none of the accepted authorities has issued it"),
            (49, "its fingerprint is not one of those that are accepted"),
            (51, "a signature is wrong"),
        ];
        for alert in 0..=u8::MAX {
            let reason = reasons.iter().find(|(number, _)| *number == alert);
            let text = |is_client| describe_alert(alert, is_client);
            let expected = |untrusted| reason.map(|(_, reason)| format!("{untrusted}: {reason}"));
            assert_eq!(text(false), expected(SERVER_IS_NOT_TRUSTED), "alert {alert}");
            if alert == 116 {
                assert_eq!(text(true).as_deref(), Some(CLIENT_NEEDS_CERTIFICATE));
            } else {
                assert_eq!(text(true), expected(CLIENT_IS_NOT_TRUSTED), "alert {alert}");
            }
        }
    }

    /// Servers always have a certificate; a client that misses it says what TLS says.
    #[test]
    fn client_does_not_ask_clients_for_certificates() {
        let error = Error::NoCertificatesPresented;
        assert_eq!(describe_tls_error(&error, true), error.to_string());
    }
}
