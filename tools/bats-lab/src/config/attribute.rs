//! An attribute of links as Oasis writes it, with its values or without.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::Deserializer;
use serde_saphyr::Spanned;

use super::values::OneOrMany;

/// Values of an attribute.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ArrayValues {
    /// One value for all links, or one for each link.
    #[schemars(with = "Vec<f64>")]
    pub(crate) init_value: Spanned<OneOrMany<f64>>,
    /// Increment of each step.
    pub(crate) step_len: Option<f64>,
    /// Number of steps after the first value.
    pub(crate) step_num: Option<u32>,
}

/// An attribute of Oasis: absent, without values of its own, or with values below it.
#[derive(Clone, Debug, Default)]
pub(crate) enum Attribute {
    /// The key is not there.
    #[default]
    Absent,
    /// The key has no value: the values are next to it.
    Bare(Spanned<()>),
    /// The values.
    Values(ArrayValues),
}

impl<'de> Deserialize<'de> for Attribute {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let held = Spanned::<Option<ArrayValues>>::deserialize(deserializer)?;
        Ok(match held.value {
            None => Self::Bare(Spanned::new((), held.referenced, held.defined)),
            Some(values) => Self::Values(values),
        })
    }
}

impl JsonSchema for Attribute {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Attribute".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let values = generator.subschema_for::<ArrayValues>();
        json_schema!({ "anyOf": [{ "type": "null" }, values] })
    }
}
