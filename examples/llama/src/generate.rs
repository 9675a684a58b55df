//! Generation for a batch of requests. A step takes one row of each request that generates, and the prompts
//! of those that begin, as far as they fit.

use std::time::{Duration, Instant};

use crate::attention::Segment;
use crate::error::{Error, Result};
use crate::model::{Batch, Model, Rows};
use crate::sampler::{Sampler, Sampling};

/// What a user asks.
#[derive(Clone, Debug)]
pub struct Request {
    /// Tokens of the prompt, at least one.
    pub prompt: Vec<u32>,
    /// The most tokens to generate, at least one.
    pub most: usize,
    /// How they are chosen.
    pub sampling: Sampling,
}

/// What came of a batch.
#[derive(Clone, Debug, Default)]
pub struct Generated {
    /// New tokens by request.
    pub tokens: Vec<Vec<u32>>,
    /// Time to the first token, by request.
    pub first: Vec<Duration>,
    /// How long each step took that had no prompt in it.
    pub decode: Vec<Duration>,
    /// All of it.
    pub took: Duration,
}

/// A request under way.
struct Running {
    request: usize,
    /// Tokens in the cache.
    past: usize,
    /// What the next step takes: the prompt, then the last token.
    next: Vec<u32>,
    sampler: Sampler,
}

/// Generates the tokens of all `requests`, in steps of at most `most_rows` rows, and shows each token as it
/// comes; an error of `show` ends it. All ranks call it alike and get the same tokens.
///
/// # Errors
/// A request that is empty or too long, or whose logits are not finite; what the model reports.
pub fn generate(
    model: &Model<'_>,
    requests: &[Request],
    most_rows: usize,
    show: &mut dyn FnMut(usize, u32) -> Result<()>,
) -> Result<Generated> {
    let (positions, field) = model.config().longest_sequence();
    for (request, Request { prompt, most, .. }) in requests.iter().enumerate() {
        let wrong = |why: String| Err(Error::Request { request, why });
        let room = most_rows.saturating_sub(requests.len());
        if prompt.is_empty() || prompt.len() > room {
            return wrong(format!(
                "a prompt has 1 to {room} tokens here, not {}",
                prompt.len()
            ));
        }
        if *most == 0 || prompt.len() + most > positions {
            return wrong(format!(
                "prompt and answer of {} tokens; the model takes {positions}, its `{field}`",
                prompt.len() + most
            ));
        }
        if let Some(token) = prompt
            .iter()
            .find(|token| **token as usize >= model.config().vocab_size)
        {
            return wrong(format!("token {token} is not in the vocabulary"));
        }
    }
    let capacities: Vec<_> = requests
        .iter()
        .map(|request| request.prompt.len() + request.most)
        .collect();
    let mut cache = model.cache(&capacities)?;
    let mut done = Generated {
        tokens: vec![Vec::new(); requests.len()],
        first: vec![Duration::ZERO; requests.len()],
        ..Generated::default()
    };
    let began = Instant::now();
    let mut waiting = requests.iter().enumerate().peekable();
    let mut running: Vec<Running> = Vec::new();
    loop {
        let mut rows: usize = running.len();
        let prefill = rows;
        while let Some((request, asked)) =
            waiting.next_if(|(_, next)| rows + next.prompt.len() <= most_rows)
        {
            rows += asked.prompt.len();
            let (next, sampler) = (asked.prompt.clone(), Sampler::new(asked.sampling));
            running.push(Running {
                request,
                past: 0,
                next,
                sampler,
            });
        }
        if running.is_empty() {
            break;
        }
        let only_decodes = prefill == running.len();
        let step = Instant::now();
        let logits = model
            .forward(&batch(&running), &mut cache, Rows::Last)?
            .to_vec2::<f32>()?;
        let choose = |(this, logits): (&mut Running, &Vec<f32>)| {
            this.sampler.choose(logits).ok_or(Error::Request {
                request: this.request,
                why: "the logits are not finite; with f16 try bf16".to_owned(),
            })
        };
        let chosen = running.iter_mut().zip(&logits).map(choose);
        let chosen = chosen.collect::<Result<Vec<_>>>()?;
        let mut row = 0;
        let mut shown = Ok(());
        running.retain_mut(|this| {
            let token = chosen[row];
            row += 1;
            this.past += this.next.len();
            this.next = vec![token];
            let tokens = &mut done.tokens[this.request];
            if tokens.is_empty() {
                done.first[this.request] = began.elapsed();
            }
            tokens.push(token);
            if shown.is_ok() {
                shown = show(this.request, token);
            }
            tokens.len() < requests[this.request].most
                && !model.config().eos_token_id.contains(token)
        });
        shown?;
        if only_decodes {
            done.decode.push(step.elapsed());
        }
    }
    done.took = began.elapsed();
    Ok(done)
}

fn batch(running: &[Running]) -> Batch {
    let mut batch = Batch::default();
    for Running {
        request,
        past,
        next,
        ..
    } in running
    {
        let (start, rows) = (batch.tokens.len(), next.len());
        batch.segments.push(Segment {
            request: *request,
            start,
            rows,
            past: *past,
        });
        batch.tokens.extend(next);
    }
    batch
}
