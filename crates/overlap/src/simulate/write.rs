//! A machine as text.

use super::machine::Machine;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;

impl Machine {
    /// The description in TOML, which [`Machine::from_toml`] reads as the same machine. `remarks` become
    /// comments above the keys they name, such as `link.pulls_gbs`.
    pub fn to_toml(&self, remarks: &BTreeMap<String, String>) -> String {
        let mut text = String::new();
        // A machine holds nothing that cannot be a value.
        let value = serde_json::to_value(self).unwrap_or_default();
        table(&mut text, "", &value, remarks);
        text
    }
}

/// Plain keys first, then tables, each under its full name.
fn table(text: &mut String, name: &str, value: &Value, remarks: &BTreeMap<String, String>) {
    let full = |key: &str| match name {
        "" => key.to_owned(),
        name => format!("{name}.{key}"),
    };
    let entries = || value.as_object().into_iter().flatten();
    for (key, value) in entries().filter(|(_, value)| !value.is_object()) {
        if let Some(remark) = remarks.get(&full(key)) {
            let _ = writeln!(text, "# {}", remark.replace('\n', " "));
        }
        let _ = writeln!(text, "{key} = {}", inline(value));
    }
    for (key, value) in entries().filter(|(_, value)| value.is_object()) {
        let name = full(key);
        let _ = writeln!(text, "\n[{name}]");
        table(text, &name, value, remarks);
    }
}

fn inline(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(inline).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(entries) => {
            let pair = |(key, value): (&String, &Value)| format!("{key} = {}", inline(value));
            let pairs: Vec<String> = entries.iter().map(pair).collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        // Strings and numbers are written alike in both languages.
        scalar => scalar.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_goes_round_with_its_remarks() {
        let key = "link.pulls_gbs".to_owned();
        let remarks = BTreeMap::from([(key, "not measured: one rank\nalone".to_owned())]);
        for name in Machine::names() {
            let machine = Machine::named(name).unwrap();
            let text = machine.to_toml(&remarks);
            assert_eq!(Machine::from_toml(&text).unwrap(), machine, "{text}");
            assert!(
                text.contains("\n# not measured: one rank alone\npulls_gbs = "),
                "{text}"
            );
        }
    }
}
