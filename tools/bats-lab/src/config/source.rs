//! A YAML or JSON file, with errors that have line and column.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_saphyr::{Location, Spanned};

use super::suggest::nearest;

/// Maximum size of a file in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;
/// Maximum number of errors that are kept: each is compared with all others.
const MAX_ERRORS: usize = 1_000;

/// An error at a position in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigError {
    file: String,
    /// Line and column, counted from 1.
    position: Option<(u64, u64)>,
    text: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some((line, column)) => write!(f, "{}:{line}:{column}: {}", self.file, self.text),
            None => write!(f, "{}: {}", self.file, self.text),
        }
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    /// Line and column.
    pub(super) fn position(&self) -> Option<(u64, u64)> {
        self.position
    }

    pub(super) fn move_to(&mut self, line: u64, column: u64) {
        self.position = Some((line, column));
    }
}

/// A misspelt word, and its correction.
pub(super) type Correction = (String, &'static str);

/// All errors of a test file, one per line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConfigErrors(pub(crate) Vec<ConfigError>);

impl ConfigErrors {
    /// Returns the value of a result, or keeps its error.
    pub(super) fn keep<T>(&mut self, result: Result<T, ConfigError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                if self.0.len() < MAX_ERRORS && !self.0.contains(&error) {
                    self.0.push(error);
                }
                None
            }
        }
    }

    /// As [`keep`](Self::keep), for a result with several errors.
    pub(super) fn keep_all<T>(&mut self, result: Result<T, Self>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(Self(errors)) => {
                errors.into_iter().for_each(|error| {
                    self.keep::<()>(Err(error));
                });
                None
            }
        }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        Self(vec![error])
    }
}

/// A file, from disk or embedded in this program.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Its name in error messages.
    pub(crate) name: String,
    /// Shared: every protocol of a file has a copy of its source.
    text: Arc<str>,
    /// The directory in which files that it names are searched.
    folder: Option<PathBuf>,
}

impl Source {
    /// Reads a file.
    pub(crate) fn open(path: &Path) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let fault = |text: String| ConfigError { file: name.clone(), position: None, text };
        // Devices and pipes have no size, so the limit counts what is read.
        let mut text = String::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text))
            .map_err(|error| fault(format!("cannot be read: {error}")))?;
        if text.len() as u64 > MAX_FILE_BYTES {
            return Err(fault(format!("is larger than {} MiB", MAX_FILE_BYTES >> 20)));
        }
        let folder = path.parent().map(Path::to_owned);
        Ok(Self { name, text: text.into(), folder })
    }

    /// Its content as text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The directory of files that it names, if it is on disk.
    pub(crate) fn folder(&self) -> Option<&Path> {
        // A name without directory has an empty parent.
        self.folder
            .as_deref()
            .map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
    }

    /// An embedded file.
    pub(crate) fn shipped(name: &str, text: &str) -> Self {
        Self { name: name.to_owned(), text: text.into(), folder: None }
    }

    /// A file that this one names: in the same directory, or embedded.
    pub(crate) fn open_relative(&self, name: &Spanned<String>) -> Result<Self, ConfigError> {
        let path = match &self.folder {
            Some(folder) => folder.join(&name.value),
            None => PathBuf::from(&name.value),
        };
        if self.folder.is_some() && path.exists() {
            return Self::open(&path);
        }
        super::shipped::file(&name.value).map_or_else(
            || {
                let names = super::shipped::names();
                let text = unknown("file", &name.value, names.iter().map(String::as_str));
                let shown = path.display();
                Err(self.invalid(
                    name,
                    match self.folder {
                        Some(_) => format!("{text} ({shown} does not exist either)"),
                        None => text,
                    },
                ))
            },
            |text| Ok(Self::shipped(&name.value, text)),
        )
    }

    /// A file of this name in the same directory, if there is one and it is not this file.
    pub(super) fn next_to(&self, name: &str) -> Result<Option<Self>, ConfigError> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let path = folder.join(name);
        if !path.exists() || path == Path::new(&self.name) {
            return Ok(None);
        }
        Self::open(&path).map(Some)
    }

    /// An error at a position.
    pub(crate) fn error_at(&self, at: Location, text: impl Into<String>) -> ConfigError {
        let position = (at.line() > 0).then(|| (at.line(), at.column()));
        ConfigError { file: self.name.clone(), position, text: text.into() }
    }

    /// An error at the position of a value.
    pub(crate) fn invalid<T>(&self, value: &Spanned<T>, text: impl Into<String>) -> ConfigError {
        self.error_at(value.referenced, text)
    }

    /// An unknown name, with a suggestion.
    pub(crate) fn unknown<'a>(
        &self,
        what: &str,
        name: &Spanned<String>,
        known: impl Iterator<Item = &'a str> + Clone,
    ) -> ConfigError {
        self.invalid(name, unknown(what, &name.value, known))
    }

    /// The same file with another content.
    pub(super) fn with_text(&self, text: String) -> Self {
        Self { text: text.into(), ..self.clone() }
    }

    /// Parses the content.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        let options = serde_saphyr::options! {
            with_snippet: false,
        };
        serde_saphyr::from_str_with_options(&self.text, options)
            .map_err(|error| self.explain(&error))
    }

    /// Parses the content. An error comes with the misspelt word and its correction, if there is one.
    pub(super) fn parse_or_correct<T: DeserializeOwned>(
        &self,
    ) -> Result<T, (ConfigError, Option<Correction>)> {
        use serde_saphyr::Error;
        let options = serde_saphyr::options! {
            with_snippet: false,
        };
        serde_saphyr::from_str_with_options(&self.text, options).map_err(|error| {
            let correction = match &error {
                Error::SerdeUnknownField { field: word, expected, .. }
                | Error::SerdeUnknownVariant { variant: word, expected, .. } => {
                    nearest(word, expected.iter().copied()).map(|near| (word.clone(), near))
                }
                _ => None,
            };
            (self.explain(&error), correction)
        })
    }

    fn explain(&self, error: &serde_saphyr::Error) -> ConfigError {
        use serde_saphyr::Error;
        let at = error.location();
        let text = match error {
            Error::SerdeUnknownField { field, expected, .. } => {
                unknown("key", field, expected.iter().copied())
            }
            Error::SerdeUnknownVariant { variant, expected, .. } => {
                unknown("value", variant, expected.iter().copied())
            }
            Error::SerdeMissingField { field, .. } => format!("missing key `{field}`"),
            Error::DuplicateMappingKey { key: Some(key), .. } => {
                format!("duplicate key `{key}`")
            }
            other => translate_parser_message(&without_position(&other.to_string())),
        };
        ConfigError {
            file: self.name.clone(),
            position: at.filter(|at| at.line() > 0).map(|at| (at.line(), at.column())),
            text,
        }
    }
}

/// Maximum number of characters of an unknown word in its message.
const MAX_WORD: usize = 100;

/// The message for an unknown word, with a suggestion or all known words.
pub(super) fn unknown<'a>(
    what: &str,
    word: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> String {
    let near = nearest(word, known.clone());
    let word: String = word.chars().take(MAX_WORD).collect();
    match near {
        Some(near) => format!("unknown {what} `{word}`; did you mean `{near}`?"),
        None => {
            let known: Vec<&str> = known.collect();
            format!("unknown {what} `{word}`; known are {}", known.join(", "))
        }
    }
}

/// Translates messages of the parser: no names of Rust types.
fn translate_parser_message(text: &str) -> String {
    let max = match text {
        "invalid u8" => u64::from(u8::MAX),
        "invalid u16" => u64::from(u16::MAX),
        "invalid u32" => u64::from(u32::MAX),
        "invalid u64" => u64::MAX,
        "expected mapping start" => {
            return "expected keys with values, for example `rate: 10M` or `{ rate: 10M }`"
                .to_owned();
        }
        "expected sequence start" => {
            return "expected a list, for example `[ONE, TWO]`".to_owned();
        }
        "invalid floating point" => return "expected a number".to_owned(),
        "invalid boolean" => return "expected `true` or `false`".to_owned(),
        other => return other.to_owned(),
    };
    format!("expected an integer from 0 to {max}")
}

/// The first line of a message of the parser, without the position, which the caller adds in front.
fn without_position(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default().trim();
    line.rsplit_once(" at line ")
        .filter(|(_, position)| {
            position.chars().all(|c| c.is_ascii_digit() || ", column".contains(c))
        })
        .map_or(line, |(text, _)| text)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of a device is not known before it is read.
    #[test]
    fn files_without_an_end_are_refused() {
        let error = Source::open(Path::new("/dev/zero")).map(drop).unwrap_err();
        assert_eq!(error.to_string(), "/dev/zero: is larger than 16 MiB");
    }
}
