//! Options that are declared here for `--help` and passed on as they were given.

use std::ffi::OsString;
use std::marker::PhantomData;

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

/// The options of `T` as arguments, with a name before each value.
#[derive(Debug)]
pub struct Forward<T>(pub Vec<OsString>, PhantomData<T>);

impl<T: Args> FromArgMatches for Forward<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut words: Vec<OsString> = Vec::new();
        for arg in T::augment_args(Command::new("")).get_arguments() {
            let (id, name) = (arg.get_id().as_str(), arg.get_long().unwrap_or_default());
            if matches.value_source(id) != Some(ValueSource::CommandLine) {
                continue;
            }
            let name = format!("--{name}");
            // An option whose value may be left out takes it after an equals sign.
            let joined = arg.is_require_equals_set();
            let values = matches.get_raw(id).into_iter().flatten();
            for value in values {
                match joined {
                    true => words.push([name.as_ref(), "=".as_ref(), value].into_iter().collect()),
                    false => words.extend([name.clone().into(), value.into()]),
                }
            }
            if matches.get_raw(id).is_none_or(|values| values.len() == 0) {
                words.push(name.into());
            }
        }
        Ok(Self(words, PhantomData))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<T: Args> Args for Forward<T> {
    fn augment_args(command: Command) -> Command {
        T::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        T::augment_args_for_update(command)
    }
}
