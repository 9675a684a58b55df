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
    let failed = |why: tokenizers::Error| Error::Tokenizer(why.to_string());
    let screen = MultiProgress::new();
    let style =
        |template: &str| ProgressStyle::with_template(template).expect("the templates are right");
    let mut streams: Vec<_> = requests
        .iter()
        .map(|_| tokenizer.decode_stream(true))
        .collect();
    let mut texts = Vec::new();
    let mut lines = Vec::new();
    for request in requests {
        texts.push(tokenizer.decode(&request.prompt, true).map_err(failed)?);
        lines.push(screen.add(ProgressBar::new_spinner().with_style(style("  {wide_msg}"))));
    }
    let most: usize = requests.iter().map(|request| request.most).sum();
    let total = screen.add(ProgressBar::new(most as u64));
    total.set_style(style("{prefix} {bar:30} {pos}/{len} tokens, {per_sec}"));
    total.set_prefix(title.to_owned());

    let generated = generate(&mut |request, token| {
        if let Some(text) = streams[request].step(token).map_err(failed)? {
            texts[request] += &text;
        }
        lines[request].set_message(texts[request].clone());
        total.inc(1);
        Ok(())
    });
    let _ = screen.clear();
    let generated = generated?;

    println!("{title}: {}", times(&generated));
    for text in texts {
        println!("  {text}");
    }
    Ok(generated)
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
