//! Tokens as they come, and a line of progress.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tokenizers::Tokenizer;

use crate::error::{Error, Result};
use crate::generate::{Generated, Request};

/// Runs `generate` and shows its tokens, a line for each request and one for all; at the end the texts and
/// the times, under `title`. Where there is no terminal, only these.
///
/// # Errors
/// What `generate` and the tokenizer report.
pub fn shown(
    title: &str,
    tokenizer: &Tokenizer,
    requests: &[Request],
    generate: impl FnOnce(&mut dyn FnMut(usize, u32) -> Result<()>) -> Result<Generated>,
) -> Result<Generated> {
    let screen = MultiProgress::new();
    let style =
        |template: &str| ProgressStyle::with_template(template).expect("the templates are right");
    let line = || ProgressBar::new_spinner().with_style(style("  {wide_msg}"));
    let lines: Vec<_> = requests.iter().map(|_| screen.add(line())).collect();
    let most = requests
        .iter()
        .fold(0, |sum: usize, request| sum.saturating_add(request.most));
    let total = screen.add(ProgressBar::new(most as u64));
    total.set_style(style("{prefix} {bar:30} {pos}/{len} tokens, {per_sec}"));
    total.set_prefix(title.to_owned());

    let new_stream = || tokenizer.decode_stream(true);
    let mut streams: Vec<_> = requests.iter().map(|_| new_stream()).collect();
    let mut texts = vec![String::new(); requests.len()];
    let mut add = |request: usize, token| {
        match streams[request].step(token) {
            Ok(text) => texts[request].extend(text),
            // A byte can change what was made of those before it: the text at the end is right.
            Err(_) => streams[request] = new_stream(),
        }
        lines[request].set_message(texts[request].clone());
    };
    for (request, asked) in requests.iter().enumerate() {
        asked.prompt.iter().for_each(|token| add(request, *token));
    }
    let generated = generate(&mut |request, token| {
        add(request, token);
        total.inc(1);
        Ok(())
    });
    let _ = screen.clear();
    let generated = generated?;

    println!("{title}: {}", times(&generated));
    for (request, new) in requests.iter().zip(&generated.tokens) {
        println!("  {}", text(tokenizer, request, new)?);
    }
    Ok(generated)
}

/// The text of a request with its `new` tokens, decoded at once.
fn text(tokenizer: &Tokenizer, request: &Request, new: &[u32]) -> Result<String> {
    let tokens = [request.prompt.as_slice(), new].concat();
    let decoded = tokenizer.decode(&tokens, true);
    decoded.map_err(|why| Error::Tokenizer(why.to_string()))
}

/// Tokens, their rate, the longest time to a first token, and the median of a step without prompts.
fn times(generated: &Generated) -> String {
    let tokens: usize = generated.tokens.iter().map(Vec::len).sum();
    let mut steps = generated.decode.clone();
    steps.sort_unstable();
    let median = steps.get(steps.len() / 2).copied().unwrap_or_default();
    let first = generated.first.iter().max().copied().unwrap_or_default();
    format!(
        "{tokens} tokens, {:.0} a second; first tokens after {:.1} ms; {:.2} ms a decode step",
        tokens as f64 / generated.took.as_secs_f64(),
        first.as_secs_f64() * 1e3,
        median.as_secs_f64() * 1e3,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sampler::Sampling;

    /// As that of Llama 2: spaces are ▁, the first of a text is not shown, and bytes stand for what has
    /// no token.
    fn byte_fallback() -> Tokenizer {
        let json = json!({
            "version": "1.0",
            "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
            "added_tokens": [], "pre_tokenizer": null,
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ]},
            "model": {
                "type": "BPE", "dropout": null, "unk_token": "<unk>",
                "continuing_subword_prefix": null, "end_of_word_suffix": null,
                "fuse_unk": true, "byte_fallback": true,
                "vocab": {"<unk>": 0, "<0x41>": 1, "<0xE4>": 2, "▁a": 3, "▁b": 4},
                "merges": [],
            },
        });
        json.to_string().parse().unwrap()
    }

    #[test]
    fn what_cannot_be_shown_ends_nothing() {
        let request = Request {
            prompt: vec![3],
            most: 3,
            sampling: Sampling {
                temperature: 0.0,
                top_p: 1.0,
                seed: 1,
            },
        };
        // The second byte changes what the first was.
        let new = [1, 2, 4, 2];
        // What is pending at the end is in the text, too, and so is the space after the prompt.
        let said = |new: &[u32]| text(&byte_fallback(), &request, new).unwrap();
        assert_eq!(said(&new), "a\u{fffd}\u{fffd} b\u{fffd}");
        assert_eq!(said(&[4]), "a b");
        let shown = shown("bytes", &byte_fallback(), &[request], |show| {
            new.iter().try_for_each(|token| show(0, *token))?;
            Ok(Generated {
                tokens: vec![new.to_vec()],
                ..Generated::default()
            })
        });
        assert_eq!(shown.unwrap().tokens, [new]);
    }
}
