//! Checks JSON values against the schemas of an OpenAPI document.

use std::collections::BTreeSet;

use serde_json::Value;

/// Parses a document.
pub fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Checks that a document describes these methods and paths and no others.
pub fn check_routes<'a>(document: &Value, routes: impl Iterator<Item = (&'a str, &'a str)>) {
    let served = routes.map(|(method, path)| (method.to_owned(), path.to_owned()));
    assert_eq!(described(document), served.collect());
}

/// Returns the pairs of method and path that a document describes.
fn described(document: &Value) -> BTreeSet<(String, String)> {
    let paths = document["paths"].as_object().unwrap();
    paths
        .iter()
        .flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().keys();
            methods.map(|method| (method.to_uppercase(), path.clone()))
        })
        .collect()
}

/// Returns the object to which a `$ref` refers, or `at` itself if it is not a reference.
pub fn resolve<'a>(document: &'a Value, at: &'a Value) -> &'a Value {
    match at["$ref"].as_str() {
        Some(reference) => document.pointer(reference.trim_start_matches('#')).unwrap(),
        None => at,
    }
}

/// Checks a value against a schema, with the subset of JSON Schema that the project's documents use.
///
/// # Errors
/// The part of the value that does not match the schema.
pub fn conform(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let schema = resolve(document, schema);
    let wrong = || Err(format!("{value} is not {schema}"));
    if let Some(choices) = schema["enum"].as_array() {
        return if choices.contains(value) { Ok(()) } else { wrong() };
    }
    if let Some(types) = schema["type"].as_array() {
        let mut one = schema.clone();
        let fits = types.iter().any(|kind| {
            one["type"] = kind.clone();
            conform(document, &one, value).is_ok()
        });
        return if fits { Ok(()) } else { wrong() };
    }
    match schema["type"].as_str() {
        Some("string") if value.is_string() => Ok(()),
        Some("null") if value.is_null() => Ok(()),
        Some("boolean") if value.is_boolean() => Ok(()),
        Some("integer") if value.is_u64() => Ok(()),
        Some("array") => match value.as_array() {
            Some(items) => items
                .iter()
                .try_for_each(|item| conform(document, &schema["items"], item)),
            None => wrong(),
        },
        Some("object") => {
            let Some(members) = value.as_object() else {
                return wrong();
            };
            let required = schema["required"].as_array().into_iter().flatten();
            if !required
                .flat_map(Value::as_str)
                .all(|name| members.contains_key(name))
            {
                return wrong();
            }
            members.iter().try_for_each(|(name, member)| {
                match (&schema["properties"][name], &schema["additionalProperties"]) {
                    (Value::Null, Value::Bool(false)) => wrong(),
                    (Value::Null, Value::Null) => Ok(()),
                    (Value::Null, other) => conform(document, other, member),
                    (property, _) => conform(document, property, member),
                }
            })
        }
        _ => wrong(),
    }
}
