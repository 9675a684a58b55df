//! Dependency files of nvcc, in make's syntax.

use std::path::PathBuf;

/// The prerequisites of all rules in `text`, in order, without duplicates.
pub(crate) fn prerequisites(text: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for rule in join_continued(text).lines() {
        let words = words(rule);
        // A target ends in a colon, or the colon is separate. Phony targets have no prerequisites.
        let Some(colon) = words.iter().position(|word| word.ends_with(':')) else {
            continue;
        };
        for word in &words[colon + 1..] {
            if seen.insert(word.clone()) {
                found.push(PathBuf::from(word));
            }
        }
    }
    found
}

fn join_continued(text: &str) -> String {
    text.replace("\\\r\n", " ").replace("\\\n", " ")
}

fn words(rule: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut characters = rule.chars().peekable();
    while let Some(character) = characters.next() {
        match (character, characters.peek()) {
            ('\\', Some(&escaped @ (' ' | '#' | '\\' | ':'))) => {
                word.push(escaped);
                characters.next();
            }
            ('$', Some('$')) => {
                word.push('$');
                characters.next();
            }
            (' ' | '\t', _) => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            _ => word.push(character),
        }
    }
    if !word.is_empty() {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(text: &str) -> Vec<String> {
        prerequisites(text)
            .into_iter()
            .map(|path| path.to_str().unwrap().to_owned())
            .collect()
    }

    #[test]
    fn follows_continuations() {
        let text = "out/x.cubin : cuda/x.cu \\\n    cuda/include/signal.cuh \\\n    /usr/include/stdint.h\n";
        assert_eq!(
            strings(text),
            [
                "cuda/x.cu",
                "cuda/include/signal.cuh",
                "/usr/include/stdint.h"
            ]
        );
        assert_eq!(strings("x.o: a.cu \\\r\n b.h\r\n"), ["a.cu", "b.h"]);
    }

    #[test]
    fn undoes_escapes() {
        let text = "x.o: my\\ kernel.cu price$$.h a\\#b.h\n";
        assert_eq!(strings(text), ["my kernel.cu", "price$.h", "a#b.h"]);
    }

    #[test]
    fn phony_targets_and_repeats_add_nothing() {
        let text = "x.o: a.cu b.h a.cu\n\nb.h:\n";
        assert_eq!(strings(text), ["a.cu", "b.h"]);
        assert!(strings("").is_empty());
        assert!(strings("no rule here\n").is_empty());
    }
}
