//! A copy of a report for the other side, which takes so much and no more. What is left out is said.

use serde_json::{Map, Value, json};

/// The lists of a document that may be cut, and where it is said by how many elements.
const LISTS: [(&str, &str); 2] = [("intervals", "intervals_left_out"), ("files", "files_left_out")];
/// Bytes that a note of what is left out may take.
const NOTE: usize = 100;

/// Lines of a report up to a limit.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    text: String,
    left_out: u64,
}

impl Lines {
    /// Adds a line unless it, or one before it, does not fit into `limit` bytes.
    pub(crate) fn push(&mut self, line: &str, limit: usize) {
        let fits = self.text.len() + line.len() + NOTE < limit;
        if fits && self.left_out == 0 {
            self.text.push_str(line);
            self.text.push('\n');
        } else {
            self.left_out += 1;
        }
    }

    /// All that fitted, and a line about the rest.
    pub(crate) fn whole(&self) -> String {
        match self.left_out {
            0 => self.text.clone(),
            count => format!("{}... {count} more lines were too many to be sent\n", self.text),
        }
    }
}

/// A document in at most `limit` bytes: the last elements of its long lists go.
pub(crate) fn document(document: &Value, limit: usize) -> String {
    let whole = document.to_string();
    if whole.len() <= limit {
        return whole;
    }
    let mut excess = whole.len() - limit + LISTS.len() * NOTE;
    drop(whole);
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
        false => json!({ "error": "the report is too long to be sent" }).to_string(),
    }
}

/// What a document says to lack.
pub(crate) fn lacks(document: &Value) -> Option<String> {
    LISTS.iter().find_map(|(list, note)| {
        let count = document[note].as_u64()?;
        Some(format!("the server's report leaves out {count} of its {list}"))
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
    fn a_document_loses_its_last_intervals_and_says_how_many() {
        let whole = report(1_000);
        let length = whole.to_string().len();
        assert_eq!(document(&whole, length), whole.to_string());
        assert_eq!(lacks(&whole), None);
        for limit in [length - 1, length / 2, 500, 250] {
            let text = document(&whole, limit);
            assert!(text.len() <= limit, "{} > {limit}", text.len());
            let short: Value = serde_json::from_str(&text).unwrap();
            let kept = short["intervals"].as_array().unwrap();
            assert_eq!(kept[..], whole["intervals"].as_array().unwrap()[..kept.len()]);
            assert_eq!(short["intervals_left_out"], 1_000 - kept.len());
            assert_eq!((&short["end"], &short["start"]), (&whole["end"], &whole["start"]));
            // Not more than it takes.
            assert!(text.len() + 250 > limit, "{} of {limit}", text.len());
            assert!(lacks(&short).unwrap().contains("of its intervals"));
        }
    }

    #[test]
    fn what_was_left_out_before_counts_and_files_are_cut_as_well() {
        let mut whole = report(100);
        whole["intervals_left_out"] = 7.into();
        let short: Value = serde_json::from_str(&document(&whole, 600)).unwrap();
        let kept = short["intervals"].as_array().unwrap().len();
        assert_eq!(short["intervals_left_out"], 107 - kept);
        let whole = json!({ "files": vec!["name"; 1_000], "end": {} });
        let short: Value = serde_json::from_str(&document(&whole, 600)).unwrap();
        let kept = short["files"].as_array().unwrap().len();
        assert!(kept > 0);
        assert_eq!(short["files_left_out"], 1_000 - kept);
    }

    #[test]
    fn what_cannot_be_cut_is_told() {
        let text = document(&json!({ "title": "x".repeat(1_000) }), 500);
        assert!(text.contains("too long to be sent"), "{text}");
    }

    #[test]
    fn lines_end_with_a_word_about_the_rest() {
        let mut lines = Lines::default();
        lines.push("one", 1_000);
        assert_eq!(lines.whole(), "one\n");
        lines.push(&"x".repeat(1_000), 1_000);
        lines.push("short, but after one that is missing", 1_000);
        assert_eq!(lines.whole(), "one\n... 2 more lines were too many to be sent\n");
        assert!(lines.whole().len() < 1_000);
    }
}
