//! The words of a command line as a file has them.
//!
//! The crate `shlex`, which splits as a shell does, takes what follows a `#` for a comment and leaves it out
//! without a word; here it is an argument as any other.

use super::values::Text;

/// The words of all entries: an entry may hold several, and quotes and `\` keep them together as in a
/// shell.
///
/// # Errors
/// Where a quote is not closed, in words for people.
pub(super) fn words(entries: &[Text]) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    for entry in entries {
        split(&entry.0, &mut words)?;
    }
    Ok(words)
}

fn split(text: &str, words: &mut Vec<String>) -> Result<(), String> {
    // `None` between words: two quotes alone are an empty word.
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut letters = text.chars();
    let lonely =
        |what: &str| format!("`{text}` ends within {what}: close it, or say `\\` before it");
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            // Between single quotes it is a letter as others.
            (None, '\\') => match letters.next() {
                Some(next) => word.get_or_insert_default().push(next),
                None => {
                    return Err(format!("`{text}` ends with a `\\`, which is for the next letter"));
                }
            },
            // Between double quotes it stands before what would mean something there.
            (Some('"'), '\\') => {
                let word = word.get_or_insert_default();
                match letters.next() {
                    Some(next @ ('"' | '\\' | '$' | '`')) => word.push(next),
                    Some(next) => word.extend(['\\', next]),
                    None => return Err(lonely("a quote")),
                }
            }
            (None, letter) if letter.is_whitespace() => words.extend(word.take()),
            (_, letter) => word.get_or_insert_default().push(letter),
        }
    }
    if quote.is_some() {
        return Err(lonely("a quote"));
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
    fn quotes_keep_words_together_as_in_a_shell() {
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
