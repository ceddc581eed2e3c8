//! Limits the length of a report for the peer, and notes what was omitted.

use serde_json::{Map, Value, json};

/// The lists of a document that may be truncated, and the key for the number of omitted elements.
const LISTS: [(&str, &str); 2] = [("intervals", "intervals_left_out"), ("files", "files_left_out")];
/// Bytes reserved for the note about omitted elements.
const NOTE_RESERVE: usize = 100;

/// The text of a report, up to a maximum length.
#[derive(Debug, Default)]
pub(crate) struct LimitedText {
    text: String,
    left_out: u64,
}

impl LimitedText {
    /// Adds a line unless it, or a line before it, does not fit into `limit` bytes.
    pub(crate) fn push(&mut self, line: &str, limit: usize) {
        let fits = self.text.len() + line.len() + NOTE_RESERVE < limit;
        if fits && self.left_out == 0 {
            self.text.push_str(line);
            self.text.push('\n');
        } else {
            self.left_out += 1;
        }
    }

    /// All lines that fit, and a note about the others.
    pub(crate) fn finish(&self) -> String {
        match self.left_out {
            0 => self.text.clone(),
            count => {
                format!("{}... {count} more lines omitted: the report is too long\n", self.text)
            }
        }
    }
}

/// Encodes a document in at most `limit` bytes, truncating its long lists.
pub(crate) fn document(document: &Value, limit: usize) -> String {
    let full = document.to_string();
    if full.len() <= limit {
        return full;
    }
    let mut excess = full.len() - limit + LISTS.len() * NOTE_RESERVE;
    drop(full);
    let mut short = Map::new();
    for (name, value) in document.as_object().into_iter().flatten() {
        let list = LISTS.iter().find(|(list, _)| list == name).zip(value.as_array());
        let Some(((_, note), list)) = list else {
            short.entry(name.as_str()).or_insert_with(|| value.clone());
            continue;
        };
        let mut kept = list.len();
        while kept > 0 && excess > 0 {
            kept -= 1;
            // With its comma.
            excess = excess.saturating_sub(list[kept].to_string().len() + 1);
        }
        short.insert(name.clone(), list[..kept].to_vec().into());
        if kept < list.len() {
            let before = document[note].as_u64().unwrap_or(0);
            let now = before.saturating_add((list.len() - kept) as u64);
            short.insert((*note).to_owned(), now.into());
        }
    }
    let short = Value::Object(short).to_string();
    match short.len() <= limit {
        true => short,
        false => json!({ "error": "the report is too long to send" }).to_string(),
    }
}

/// A note about the elements that a document omits.
pub(crate) fn omission_note(document: &Value) -> Option<String> {
    LISTS.iter().find_map(|(list, note)| {
        let count = document[note].as_u64()?;
        Some(format!("the server's report omits {count} of its {list}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(intervals: usize) -> Value {
        let intervals: Vec<Value> = (0..intervals).map(|x| json!({ "end": x })).collect();
        json!({ "end": { "bytes": 5 }, "intervals": intervals, "start": {} })
    }

    #[test]
    fn truncated_documents_omit_their_last_intervals_and_count_them() {
        let full = report(1_000);
        let length = full.to_string().len();
        assert_eq!(document(&full, length), full.to_string());
        assert_eq!(omission_note(&full), None);
        for limit in [length - 1, length / 2, 500, 250] {
            let text = document(&full, limit);
            assert!(text.len() <= limit, "{} > {limit}", text.len());
            let short: Value = serde_json::from_str(&text).unwrap();
            let kept = short["intervals"].as_array().unwrap();
            assert_eq!(kept[..], full["intervals"].as_array().unwrap()[..kept.len()]);
            assert_eq!(short["intervals_left_out"], 1_000 - kept.len());
            assert_eq!((&short["end"], &short["start"]), (&full["end"], &full["start"]));
            // No more was omitted than necessary.
            assert!(text.len() + 250 > limit, "{} of {limit}", text.len());
            assert!(omission_note(&short).unwrap().contains("of its intervals"));
        }
    }

    #[test]
    fn earlier_omissions_are_added_and_files_are_truncated_too() {
        let mut full = report(100);
        full["intervals_left_out"] = 7.into();
        let short: Value = serde_json::from_str(&document(&full, 600)).unwrap();
        let kept = short["intervals"].as_array().unwrap().len();
        assert_eq!(short["intervals_left_out"], 107 - kept);
        let full = json!({ "files": vec!["name"; 1_000], "end": {} });
        let short: Value = serde_json::from_str(&document(&full, 600)).unwrap();
        let kept = short["files"].as_array().unwrap().len();
        assert!(kept > 0);
        assert_eq!(short["files_left_out"], 1_000 - kept);
    }

    #[test]
    fn a_document_that_cannot_be_truncated_becomes_an_error() {
        let text = document(&json!({ "title": "x".repeat(1_000) }), 500);
        assert!(text.contains("too long to send"), "{text}");
    }

    #[test]
    fn truncated_text_ends_with_a_note() {
        let mut text = LimitedText::default();
        text.push("one", 1_000);
        assert_eq!(text.finish(), "one\n");
        text.push(&"x".repeat(1_000), 1_000);
        text.push("short, but after an omitted one", 1_000);
        assert_eq!(text.finish(), "one\n... 2 more lines omitted: the report is too long\n");
        assert!(text.finish().len() < 1_000);
    }
}
