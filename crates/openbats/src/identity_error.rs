//! Why a certificate, key or fingerprint cannot be used. This error has a file of its own, because the other errors name
//! fingerprints, and parsing a fingerprint returns this one.

use std::io;

/// Why a certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The error of the system.
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The content is not PEM, or lacks the expected item.
    #[error("{path}: {problem}")]
    Content {
        /// The file, or the item that the text is for.
        path: String,
        /// The problem with it.
        problem: String,
    },
    /// A certificate could not be generated.
    #[error("cannot generate a certificate: {0}")]
    Generate(String),
}
