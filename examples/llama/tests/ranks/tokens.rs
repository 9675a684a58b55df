//! The tokens of requests that share a batch.

use std::fs;

use candle_core::DType;
use warpweave_example_llama::checkpoint::random::small_llama;
use warpweave_example_llama::config::Config;
use warpweave_example_llama::generate::{Decoding, Request, generate};
use warpweave_example_llama::model::Model;
use warpweave_example_llama::parallel::Plain;
use warpweave_example_llama::sampler::Sampling;

use super::{ROWS, on_ranks, plain, weights, written};

/// Requests of other lengths; every other one is sampled.
pub fn requests() -> Vec<Request> {
    let request = |index: usize| Request {
        prompt: (0..1 + 13 * index % 29)
            .map(|at| ((at * 7 + index * 31) % 320) as u32)
            .collect(),
        most: 8 + index,
        sampling: Sampling {
            temperature: (index % 2) as f64,
            top_p: 0.9,
            seed: index as u64,
        },
    };
    (0..7).map(request).collect()
}

fn tokens(model: &Model<'_>, requests: &[Request], rows: usize) -> Vec<Vec<u32>> {
    tokens_by(Decoding::ByRequest, model, requests, rows)
}

pub fn tokens_by(
    decoding: Decoding,
    model: &Model<'_>,
    requests: &[Request],
    rows: usize,
) -> Vec<Vec<u32>> {
    generate(model, requests, rows, decoding, &mut |_, _| Ok(()))
        .unwrap()
        .tokens
}

fn refused(model: &Model<'_>, requests: &[Request], rows: usize) -> String {
    let generated = generate(model, requests, rows, Decoding::ByRequest, &mut |_, _| {
        Ok(())
    });
    generated.unwrap_err().to_string()
}

/// Together, one by one, and in an engine so small that some wait until others have ended a step.
#[test]
fn tokens_do_not_depend_on_what_shares_the_batch() {
    let folder = written(&small_llama());
    let expected = tokens(&plain(folder.path()), &requests(), ROWS);
    for dtype in [DType::F32, DType::BF16] {
        let ranks = on_ranks(4, folder.path(), dtype, |model| {
            let requests = requests();
            let alone = requests
                .iter()
                .flat_map(|one| tokens(model, std::slice::from_ref(one), ROWS));
            let waiting = tokens(model, &requests, 40);
            [tokens(model, &requests, ROWS), alone.collect(), waiting]
        });
        for [together, alone, waiting] in ranks {
            assert_eq!(together, alone);
            assert_eq!(together, waiting);
            if dtype == DType::F32 {
                assert_eq!(together, expected);
            }
        }
    }
}

/// In steps of all requests, of which some wait and some have ended: greedy, sampled, and both.
#[test]
fn requests_that_decode_together_have_the_same_tokens() {
    let folder = written(&small_llama());
    let every = |step: usize| {
        let requests = requests();
        requests.into_iter().step_by(step).collect::<Vec<_>>()
    };
    let asked = [
        every(2),
        every(1),
        every(1)[1..].iter().step_by(2).cloned().collect(),
    ];
    on_ranks(2, folder.path(), DType::F32, |model| {
        for requests in &asked {
            for rows in [ROWS, 40] {
                let by = |decoding| tokens_by(decoding, model, requests, rows);
                assert_eq!(by(Decoding::Together), by(Decoding::ByRequest));
            }
        }
    });
}

#[test]
fn a_request_that_does_not_fit_is_named() {
    let folder = written(&small_llama());
    let model = plain(folder.path());
    let mut requests = requests();
    requests[3].prompt = vec![5; 50];
    assert_eq!(
        refused(&model, &requests, 50),
        "request 3: a prompt has 1 to 44 tokens here, not 50"
    );
    let one = |prompt: usize, most: usize| Request {
        prompt: vec![5; prompt],
        most,
        sampling: requests[0].sampling,
    };
    assert_eq!(
        refused(&model, &[one(17, 2)], 16),
        "request 0: a prompt has 1 to 16 tokens here, not 17"
    );
    let all = generate(
        &model,
        &[one(16, 2)],
        16,
        Decoding::ByRequest,
        &mut |_, _| Ok(()),
    );
    assert_eq!(all.unwrap().tokens[0].len(), 2);
    let why = refused(&model, &[one(3, usize::MAX)], 16);
    assert!(why.contains("`max_position_embeddings`"), "{why}");
    requests[3].prompt = vec![320];
    assert_eq!(
        refused(&model, &requests, 50),
        "request 3: token 320 is not in the vocabulary"
    );
}

#[test]
fn logits_that_are_not_finite_end_the_job() {
    let folder = written(&small_llama());
    let (config, mut weights) = weights(folder.path(), (0, 1), DType::F32).unwrap();
    weights.norm = (weights.norm * f64::NAN).unwrap();
    let model = Model::new(config, weights, &Plain, ROWS).unwrap();
    assert_eq!(
        refused(&model, &requests(), ROWS),
        "request 0: the logits are not finite; with f16 try bf16"
    );
}

/// generation_config.json has more of them.
#[test]
fn ends_of_both_files_end_a_sequence() {
    let folder = written(&small_llama());
    let request = requests()[0].clone();
    let generated = || tokens(&plain(folder.path()), std::slice::from_ref(&request), ROWS);
    let first = generated()[0][0];
    assert_ne!(first, 1);
    let path = folder.path().join("generation_config.json");
    let ends = |ends: &str| fs::write(&path, format!(r#"{{"eos_token_id": {ends}}}"#)).unwrap();
    for both in [first.to_string(), format!("[1, {first}]")] {
        ends(&both);
        assert_eq!(generated(), [[first]]);
        let ends = Config::read(folder.path()).unwrap().eos_token_id;
        assert!(ends.contains(1) && ends.contains(first));
    }
    fs::write(&path, "{}").unwrap();
    assert!(generated()[0].len() > 1);
    ends("\"two\"");
    let error = Config::read(folder.path()).unwrap_err().to_string();
    assert!(error.contains("generation_config.json"), "{error}");
}

#[test]
fn a_request_longer_than_the_window_is_refused() {
    let folder = written(&Config {
        model_type: "mistral".into(),
        sliding_window: Some(16),
        ..small_llama()
    });
    let model = plain(folder.path());
    let mut request = requests()[0].clone();
    request.prompt = vec![5; 12];
    request.most = 4;
    tokens(&model, std::slice::from_ref(&request), ROWS);
    request.most = 8;
    assert_eq!(
        refused(&model, &[request], ROWS),
        "request 0: prompt and answer of 20 tokens; the model takes 16, its `sliding_window`"
    );
}
