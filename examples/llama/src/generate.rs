//! Generation for a batch of requests. A step takes one row of each request that generates, and the prompts
//! of those that begin, as far as they fit. Steps without prompts can be launches of a graph.

use std::mem::take;
use std::time::{Duration, Instant};

use rayon::prelude::*;

use crate::attention::{Cache, Segment};
use crate::decode::Decode;
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

/// How steps without prompts are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoding {
    /// As those with prompts: the requests that are left, one by one.
    ByRequest,
    /// By [`Decode`]. The tokens are the same where [`Model::decodes_in_graphs`].
    Together,
}

impl Decoding {
    /// In graphs, where `model` has them.
    pub fn of(model: &Model<'_>) -> Self {
        match model.decodes_in_graphs() {
            true => Decoding::Together,
            false => Decoding::ByRequest,
        }
    }
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

impl Running {
    fn not_finite(&self) -> Error {
        Error::Request {
            request: self.request,
            why: "the logits are not finite; with f16 try bf16".to_owned(),
        }
    }
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
    decoding: Decoding,
    show: &mut dyn FnMut(usize, u32) -> Result<()>,
) -> Result<Generated> {
    let (positions, field) = model.config().longest_sequence();
    for (request, Request { prompt, most, .. }) in requests.iter().enumerate() {
        let wrong = |why: String| Err(Error::Request { request, why });
        // The others may each have a row of the step.
        let room = (most_rows + 1).saturating_sub(requests.len());
        if prompt.is_empty() || prompt.len() > room {
            return wrong(format!(
                "a prompt has 1 to {room} tokens here, not {}",
                prompt.len()
            ));
        }
        let tokens = prompt.len().saturating_add(*most);
        if *most == 0 || tokens > positions {
            return wrong(format!(
                "prompt and answer of {tokens} tokens; the model takes {positions}, its `{field}`"
            ));
        }
        if let Some(token) = prompt
            .iter()
            .find(|token| **token as usize >= model.config().vocab_size)
        {
            return wrong(format!("token {token} is not in the vocabulary"));
        }
    }
    let lengths = requests.iter().map(|asked| asked.prompt.len() + asked.most);
    let cache = model.cache(requests.len(), lengths.max().unwrap_or_default())?;
    let mut together = match decoding {
        Decoding::ByRequest => None,
        Decoding::Together => Some(Together::new(model, &cache, requests)?),
    };
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
        let chosen = match &mut together {
            Some(together) if only_decodes => together.step(&mut running)?,
            _ => step_by_request(model, &cache, &mut running)?,
        };
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

/// The next tokens of all that run.
fn step_by_request(model: &Model<'_>, cache: &Cache, running: &mut [Running]) -> Result<Vec<u32>> {
    let logits = model.forward(&batch(running), cache, Rows::Last)?;
    choose(running, &logits.to_vec2()?)
}

/// Steps of all requests together.
struct Together<'a> {
    model: &'a Model<'a>,
    decode: Decode<'a>,
    /// By request: the token and its position that the next step takes, of those that ran in the last.
    next: Vec<Option<(u32, usize)>>,
}

impl<'a> Together<'a> {
    fn new(model: &'a Model<'a>, cache: &'a Cache, requests: &[Request]) -> Result<Self> {
        let with_logits = requests.iter().any(|asked| !asked.sampling.is_greedy());
        Ok(Together {
            model,
            decode: Decode::new(model, cache, with_logits)?,
            next: vec![None; requests.len()],
        })
    }

    /// The next tokens of all that run.
    fn step(&mut self, running: &mut [Running]) -> Result<Vec<u32>> {
        let mut wanted = vec![None; self.next.len()];
        for this in running.iter() {
            wanted[this.request] = Some((this.next[0], this.past));
        }
        if wanted != self.next {
            // The others begin at the first position, and never come further than those that run.
            let values = wanted.iter().map(|next| next.unwrap_or_default());
            let (tokens, positions): (Vec<_>, Vec<_>) =
                values.map(|(token, past)| (token, past as u32)).unzip();
            self.decode.set(&tokens, &positions)?;
        }
        self.decode.step()?;
        self.model.finish()?;
        let tokens = self.decode.tokens()?;
        let after = |(next, &token): (Option<(u32, usize)>, &u32)| Some((token, next?.1 + 1));
        self.next = wanted.into_iter().zip(&tokens).map(after).collect();
        if let Some(mut logits) = self.decode.logits()? {
            let of_running = running.iter().map(|this| take(&mut logits[this.request]));
            let of_running = of_running.collect::<Vec<_>>();
            return choose(running, &of_running);
        }
        let vocabulary = self.model.config().vocab_size;
        let found = |this: &Running| match tokens[this.request] {
            token if (token as usize) < vocabulary => Ok(token),
            _ => Err(this.not_finite()),
        };
        running.iter().map(found).collect()
    }
}

/// The next tokens, by the logits of each. A large vocabulary takes milliseconds.
fn choose(running: &mut [Running], logits: &[Vec<f32>]) -> Result<Vec<u32>> {
    let each = running.par_iter_mut().zip(logits);
    each.map(|(this, logits)| {
        let chosen = this.sampler.choose(logits);
        chosen.ok_or_else(|| this.not_finite())
    })
    .collect()
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
