//! `batsctl schema`: the JSON Schema of what the verbs print with `--json`.

use anyhow::Context;
use serde_json::{Value, json};

const SCHEMA: &str = include_str!("../../../schema/batsctl.schema.json");

/// The schema of a verb's output, or the definitions of all.
pub(crate) fn schema(verb: Option<&str>) -> anyhow::Result<String> {
    let all: Value = serde_json::from_str(SCHEMA)?;
    let Some(verb) = verb else { return Ok(SCHEMA.to_owned()) };
    let definitions = all["$defs"].as_object().context("the schema has no definitions")?;
    let is_verb = |(name, _): &(&String, &Value)| is_verb(name);
    if !definitions.iter().filter(is_verb).any(|(name, _)| name == verb) {
        let verbs: Vec<&str> =
            definitions.iter().filter(is_verb).map(|(name, _)| name.as_str()).collect();
        anyhow::bail!("'{verb}' has no schema: use one of {}", verbs.join(", "));
    }
    let schema = json!({
        "$schema": all["$schema"], "title": format!("batsctl --json {}", verb.replace('-', " ")),
        "$ref": format!("#/$defs/{verb}"), "$defs": definitions,
    });
    Ok(format!("{schema:#}\n"))
}

/// Whether a definition is the output of a verb, not a part of others.
fn is_verb(name: &str) -> bool {
    !["node", "fingerprint", "session_class", "traffic", "empty", "link", "session"].contains(&name)
}
