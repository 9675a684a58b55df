//! What can be chosen about an algorithm.

use std::fmt;

/// The largest count that a parameter takes.
const MOST: usize = 1024;

/// A choice that an algorithm leaves open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name, before `=`.
    pub key: &'static str,
    /// One sentence.
    pub summary: &'static str,
    /// What it can be.
    pub values: Values,
}

/// What a parameter can be. The first of its values is the default one, all of them are worth a try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// A number from 1 to 1024; others than these are taken too.
    Counts(&'static [usize]),
    /// One of these names.
    Choices(&'static [&'static str]),
}

/// What a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Value {
    /// A number.
    Count(usize),
    /// A name.
    Choice(&'static str),
}

impl Parameter {
    /// The values worth a try, the default one first.
    pub fn tries(&self) -> Vec<Value> {
        match self.values {
            Values::Counts(counts) => counts.iter().copied().map(Value::Count).collect(),
            Values::Choices(choices) => choices.iter().copied().map(Value::Choice).collect(),
        }
    }

    /// The value that `text` stands for.
    pub fn parse(&self, text: &str) -> Option<Value> {
        match self.values {
            Values::Counts(_) => {
                let count = text.parse().ok()?;
                (1..=MOST).contains(&count).then_some(Value::Count(count))
            }
            Values::Choices(choices) => {
                let choice = choices.iter().find(|choice| **choice == text)?;
                Some(Value::Choice(choice))
            }
        }
    }
}

/// `chunks=2|4|8|… (1 to 1024)`, `reduce=nccl|symmetric`.
impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<String> = self.tries().iter().map(Value::to_string).collect();
        let more = match self.values {
            Values::Counts(_) => format!("|… (1 to {MOST})"),
            Values::Choices(_) => String::new(),
        };
        write!(f, "{}={}{more}", self.key, values.join("|"))
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Count(count) => write!(f, "{count}"),
            Value::Choice(choice) => f.write_str(choice),
        }
    }
}
