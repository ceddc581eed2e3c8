//! Splits command lines in test files into words.
//!
//! The crate `shlex` splits as a shell does and silently drops text after a `#` as a comment. Here
//! `#` is an ordinary character.

use super::values::Text;

/// Splits all entries into words. Quotes and `\` work as in a shell.
///
/// # Errors
/// If a quote is not closed; the error is a message for users.
pub(super) fn words(entries: &[Text]) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    for entry in entries {
        split(&entry.0, &mut words)?;
    }
    Ok(words)
}

fn split(text: &str, words: &mut Vec<String>) -> Result<(), String> {
    // `None` between words; two quotes alone are an empty word.
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut letters = text.chars();
    let unfinished =
        |what: &str| format!("`{text}` ends within {what}: close it, or escape it with `\\`");
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            // Between single quotes it is an ordinary character.
            (None, '\\') => match letters.next() {
                Some(next) => word.get_or_insert_default().push(next),
                None => {
                    return Err(format!("`{text}` ends with a `\\` that escapes nothing"));
                }
            },
            // Between double quotes it escapes only characters that are special there.
            (Some('"'), '\\') => {
                let word = word.get_or_insert_default();
                match letters.next() {
                    Some(next @ ('"' | '\\' | '$' | '`')) => word.push(next),
                    Some(next) => word.extend(['\\', next]),
                    None => return Err(unfinished("a quote")),
                }
            }
            (None, letter) if letter.is_whitespace() => words.extend(word.take()),
            (_, letter) => word.get_or_insert_default().push(letter),
        }
    }
    if quote.is_some() {
        return Err(unfinished("a quote"));
    }
    words.extend(word);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(entries: &[&str]) -> Result<Vec<String>, String> {
        words(&entries.iter().map(|text| Text((*text).to_owned())).collect::<Vec<_>>())
    }

    #[test]
    fn quotes_and_escapes_work_as_in_a_shell() {
        for (entries, expected) in [
            (&["-H -r /tmp/log root@%s"][..], &["-H", "-r", "/tmp/log", "root@%s"][..]),
            (&["-c", "'echo a; exit 3'"], &["-c", "echo a; exit 3"]),
            (&[r#"--name="two words" x"#], &["--name=two words", "x"]),
            (&[r#"a\ b "c\"d" "e\f" '\g'"#], &["a b", "c\"d", "e\\f", "\\g"]),
            (&["  ", "''", "\ta\n"], &["", "a"]),
            (&["#1 -- *"], &["#1", "--", "*"]),
        ] {
            assert_eq!(of(entries).unwrap(), expected, "{entries:?}");
        }
        for entry in ["it's", "\"a", "\"a\\", "a\\"] {
            assert!(of(&[entry]).unwrap_err().contains(entry), "{entry}");
        }
    }
}
