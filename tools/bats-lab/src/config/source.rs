//! A file of YAML or JSON, and errors that say where in it something is wrong.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_saphyr::{Location, Spanned};

use super::suggest::nearest;

/// Longest file that is read.
const LONGEST: u64 = 16 << 20;

/// Something wrong in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    file: String,
    /// Line and column, counted from 1.
    place: Option<(u64, u64)>,
    text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Some((line, column)) => write!(f, "{}:{line}:{column}: {}", self.file, self.text),
            None => write!(f, "{}: {}", self.file, self.text),
        }
    }
}

impl std::error::Error for Fault {}

/// A file, or one that is part of this program.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// As it is named in errors.
    pub(crate) name: String,
    text: String,
    /// Where files that it names are looked for.
    folder: Option<PathBuf>,
}

impl Source {
    /// Reads a file.
    pub(crate) fn open(path: &Path) -> Result<Self, Fault> {
        let name = path.display().to_string();
        let fault = |text: String| Fault { file: name.clone(), place: None, text };
        let size =
            std::fs::metadata(path).map_err(|error| fault(format!("cannot be read: {error}")))?;
        if size.len() > LONGEST {
            return Err(fault(format!("is longer than {} MiB", LONGEST >> 20)));
        }
        let text = std::fs::read_to_string(path)
            .map_err(|error| fault(format!("cannot be read: {error}")))?;
        let folder = path.parent().map(Path::to_owned);
        Ok(Self { name, text, folder })
    }

    /// As it is written.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// A file of this program.
    pub(crate) fn shipped(name: &str, text: &str) -> Self {
        Self { name: name.to_owned(), text: text.to_owned(), folder: None }
    }

    /// A file that this one names: beside it, or one of this program.
    pub(crate) fn beside(&self, name: &Spanned<String>) -> Result<Self, Fault> {
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
                let place = path.display();
                Err(self.wrong(
                    name,
                    match self.folder {
                        Some(_) => format!("{text} (there is no {place}, either)"),
                        None => text,
                    },
                ))
            },
            |text| Ok(Self::shipped(&name.value, text)),
        )
    }

    /// What is wrong at a place.
    pub(crate) fn fault(&self, at: Location, text: impl Into<String>) -> Fault {
        let place = (at.line() > 0).then(|| (at.line(), at.column()));
        Fault { file: self.name.clone(), place, text: text.into() }
    }

    /// What is wrong with a value.
    pub(crate) fn wrong<T>(&self, value: &Spanned<T>, text: impl Into<String>) -> Fault {
        self.fault(value.referenced, text)
    }

    /// A name that nothing has, with what may have been meant.
    pub(crate) fn unknown<'a>(
        &self,
        what: &str,
        name: &Spanned<String>,
        known: impl Iterator<Item = &'a str> + Clone,
    ) -> Fault {
        self.wrong(name, unknown(what, &name.value, known))
    }

    /// The content.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        let options = serde_saphyr::options! {
            with_snippet: false,
        };
        serde_saphyr::from_str_with_options(&self.text, options)
            .map_err(|error| self.explain(&error))
    }

    fn explain(&self, error: &serde_saphyr::Error) -> Fault {
        use serde_saphyr::Error;
        let at = error.location();
        let text = match error {
            Error::SerdeUnknownField { field, expected, .. } => {
                unknown("key", field, expected.iter().copied())
            }
            Error::SerdeUnknownVariant { variant, expected, .. } => {
                unknown("value", variant, expected.iter().copied())
            }
            Error::SerdeMissingField { field, .. } => format!("the key `{field}` is missing here"),
            Error::DuplicateMappingKey { key: Some(key), .. } => {
                format!("the key `{key}` stands here twice: say it once")
            }
            other => plain(&bare(&other.to_string())),
        };
        Fault {
            file: self.name.clone(),
            place: at.filter(|at| at.line() > 0).map(|at| (at.line(), at.column())),
            text,
        }
    }
}

/// A word that nothing has, with what may have been meant.
pub(super) fn unknown<'a>(
    what: &str,
    word: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> String {
    match nearest(word, known.clone()) {
        Some(near) => format!("unknown {what} `{word}`; did you mean `{near}`?"),
        None => {
            let known: Vec<&str> = known.collect();
            format!("unknown {what} `{word}`; known are {}", known.join(", "))
        }
    }
}

/// The parser's words without the names of types.
fn plain(text: &str) -> String {
    let most = match text {
        "invalid u8" => u64::from(u8::MAX),
        "invalid u16" => u64::from(u16::MAX),
        "invalid u32" => u64::from(u32::MAX),
        "invalid u64" => u64::MAX,
        "expected mapping start" => {
            return "keys with values belong here: for example `rate: 10M`, or `{ rate: 10M }`"
                .to_owned();
        }
        "expected sequence start" => {
            return "a list belongs here: for example `[ONE, TWO]`".to_owned();
        }
        "invalid floating point" => return "a number belongs here".to_owned(),
        "invalid boolean" => return "`true` or `false` belongs here".to_owned(),
        other => return other.to_owned(),
    };
    format!("a whole number from 0 to {most} belongs here")
}

/// The parser's words, in one line and without the place, which is told in front.
fn bare(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default().trim();
    line.rsplit_once(" at line ")
        .filter(|(_, place)| place.chars().all(|c| c.is_ascii_digit() || ", column".contains(c)))
        .map_or(line, |(text, _)| text)
        .to_owned()
}
