//! The suite on the host backend, ranks as threads.

use std::sync::Arc;
use std::time::Duration;

use warpweave_comm::Communicator;
use warpweave_comm::collective::{Operation, Variant};
use warpweave_symm_mem::{DType, Exchange, Host, ThreadExchange};

use crate::calls;
use crate::case::{Case, Reach};
use crate::faults;
use crate::late::{self, Stray};
use crate::norm;
use crate::play::{Played, Step};
use crate::random::Random;
use crate::rank::{Rank, Sizes, message};
use crate::replays;
use crate::suite::{self, Mixture};

/// Long enough for many ranks on few cores.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Runs `body` on every rank of a group of threads; what went wrong on any of them.
pub fn on(
    exchanges: Vec<Arc<dyn Exchange>>,
    timeout: Duration,
    sizes: Sizes,
    body: impl Fn(&Rank<Host>) -> Played + Sync,
) -> Played {
    let body = &body;
    let run = move |exchange| {
        let backend = Host::with_timeout(timeout);
        let rank = Rank::new(backend, exchange, sizes).map_err(message)?;
        body(&rank)?;
        rank.close().map_err(message)
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> = exchanges
            .into_iter()
            .map(|exchange| scope.spawn(move || run(exchange)))
            .collect();
        let played: Vec<_> = ranks
            .into_iter()
            .map(|rank| {
                rank.join()
                    .unwrap_or_else(|_| Err("a rank panicked".into()))
            })
            .collect();
        match played
            .into_iter()
            .filter_map(Result::err)
            .collect::<Vec<_>>()
        {
            failures if failures.is_empty() => Ok(()),
            failures => Err(failures.join("\n")),
        }
    })
}

pub fn on_threads(
    world: usize,
    timeout: Duration,
    body: impl Fn(&Rank<Host>) -> Played + Sync,
) -> Played {
    let group = ThreadExchange::group_with_timeout(world, Duration::from_secs(120));
    let exchanges = group.into_iter().map(|e| Arc::new(e) as Arc<dyn Exchange>);
    on(exchanges.collect(), timeout, Sizes::SMALL, body)
}

fn plays(world: usize, script: impl Fn(&Rank<Host>) -> Vec<Step> + Sync) {
    on_threads(world, TIMEOUT, |rank| {
        rank.play(&script(rank), world as u64)
    })
    .unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn every_variant_type_and_small_length_of_one_to_four_ranks() {
    for world in 1..=4 {
        plays(world, |rank| suite::small(&rank.limits()));
    }
}

#[test]
fn every_variant_type_and_small_length_of_five_to_eight_ranks() {
    for world in 5..=8 {
        plays(world, |rank| suite::small(&rank.limits()));
    }
}

/// More than the GPUs of a host, up to the most that the tables of the launches hold.
#[test]
fn every_variant_of_more_than_eight_ranks() {
    for world in [9, 16] {
        plays(world, |rank| suite::few(&rank.limits()));
    }
}

#[test]
fn groups_beyond_the_limit_are_refused_with_the_limit() {
    use warpweave_comm::collective::launch::MAX_WORLD;
    let made = on_threads(MAX_WORLD + 1, TIMEOUT, |_| Ok(())).unwrap_err();
    let refused = made.matches("they serve 16 ranks at most").count();
    assert_eq!(refused, MAX_WORLD + 1, "{made}");
}

#[test]
fn lengths_at_which_variants_change() {
    for world in [1, 2, 3, 8] {
        plays(world, |rank| suite::boundaries(&rank.limits()));
    }
}

#[test]
fn large_calls() {
    for world in [2, 5] {
        plays(world, |rank| suite::large(&rank.limits(), rank.sizes.room));
    }
}

#[test]
fn sizes_up_and_down() {
    plays(4, |rank| suite::sizes_up_and_down(&rank.limits()));
}

#[test]
fn nans_and_infinities_stay_where_they_are() {
    for world in [1, 2, 3, 5] {
        on_threads(world, TIMEOUT, |rank| {
            suite::nans_and_infinities(rank, |_| true)
        })
        .unwrap_or_else(|why| panic!("{why}"));
    }
}

/// Chunks of more than 8 MiB go through staging memory in two pieces.
#[test]
fn staging_in_pieces() {
    let mut sizes = Sizes::SMALL;
    sizes.options.staging_bytes = 18 << 20;
    sizes.room = 18 << 20;
    sizes.batch = 40 << 20;
    let group = ThreadExchange::group_with_timeout(2, Duration::from_secs(120));
    let exchanges = group.into_iter().map(|e| Arc::new(e) as Arc<dyn Exchange>);
    let steps = [
        (Operation::AllReduce, (17 << 20) / 2 + 11, false),
        (Operation::AllReduce, (17 << 20) / 2 + 5, true),
        (Operation::ReduceScatter, (9 << 20) / 2 - 7, true),
        (Operation::ReduceScatter, (8 << 20) / 2, false),
    ]
    .map(|(operation, count, in_place)| {
        let variant = Variant::PushCopyEngine;
        Step::Call(Case {
            in_place,
            ..Case::new(operation, variant, DType::Bf16, count, Reach::BOTH)
        })
    });
    on(exchanges.collect(), TIMEOUT, sizes, |rank| {
        rank.play(&steps, 3)
    })
    .unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn mixed_calls_with_delays_and_graphs() {
    let mixture = Mixture {
        calls: 400,
        most: 3000,
        micros: 400,
        graphs: 12,
    };
    for world in [2, 4, 7] {
        plays(world, |rank| {
            suite::mixed(
                &mut Random::with_seed(world as u64),
                &rank.limits(),
                &mixture,
            )
        });
    }
}

/// With staging memory so small that most staged calls take many pieces, among calls of all other kinds.
#[test]
fn mixed_calls_in_many_pieces() {
    let mut sizes = Sizes::SMALL;
    sizes.options.staging_bytes = 4 << 10;
    let mixture = Mixture {
        calls: 300,
        most: 3000,
        micros: 400,
        graphs: 10,
    };
    for world in [2, 3, 8] {
        let group = ThreadExchange::group_with_timeout(world, Duration::from_secs(120));
        let exchanges = group.into_iter().map(|e| Arc::new(e) as Arc<dyn Exchange>);
        on(exchanges.collect(), TIMEOUT, sizes, |rank| {
            let mut random = Random::with_seed(20 + world as u64);
            let steps = suite::mixed(&mut random, &rank.limits(), &mixture);
            let mut staged = suite::mixed(&mut random, &rank.limits(), &mixture);
            for step in &mut staged {
                if let Step::Call(case) = step {
                    case.variant = Variant::Staged;
                }
            }
            rank.play(&[steps, staged].concat(), world as u64)
        })
        .unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn epochs_wrap_around() {
    for world in [2, 3] {
        on_threads(world, TIMEOUT, suite::epochs_wrap_around).unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn barriers_order_work() {
    for world in [1, 2, 5, 16] {
        let body = |rank: &Rank<Host>| suite::barriers_order_work(rank).map_err(message);
        on_threads(world, TIMEOUT, body).unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn barriers_order_work_after_half_a_turn() {
    for world in [2, 3] {
        let body =
            |rank: &Rank<Host>| suite::barriers_order_work_after_half_a_turn(rank).map_err(message);
        on_threads(world, TIMEOUT, body).unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn bad_calls_are_refused() {
    on_threads(3, TIMEOUT, suite::bad_calls_are_refused).unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn a_silent_peer_is_named_and_the_group_goes_on() {
    let timeout = Duration::from_millis(1500);
    for (world, calls) in [(2, &faults::CALLS[..]), (4, &faults::CALLS[..3])] {
        on_threads(world, timeout, |rank| {
            calls
                .iter()
                .try_for_each(|&call| faults::a_silent_peer_is_named(rank, call, timeout))
        })
        .unwrap_or_else(|why| panic!("{why}"));
    }
}

fn stray(world: usize, stray: Stray) {
    // Who is named depends on who is late: on a busy machine a rank may be for a while.
    let timeout = Duration::from_millis(match stray {
        Stray::Late => 250,
        Stray::Skips | Stray::Repeats => 500,
    });
    on_threads(world, timeout, |rank| {
        late::every_call(rank, stray, timeout)
    })
    .unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn a_late_rank_of_two_fails_or_is_right() {
    stray(2, Stray::Late);
}

#[test]
fn a_late_rank_of_four_fails_or_is_right() {
    stray(4, Stray::Late);
}

#[test]
fn a_rank_that_skips_a_call_is_named() {
    stray(3, Stray::Skips);
}

#[test]
fn a_rank_that_repeats_a_call_is_named() {
    stray(3, Stray::Repeats);
}

#[test]
fn ranks_of_a_communicator() {
    let exchanges = Communicator::threads(3)
        .expect("a job")
        .iter()
        .map(Communicator::shared_exchange)
        .collect();
    let mixture = Mixture {
        calls: 60,
        most: 2000,
        micros: 100,
        graphs: 8,
    };
    on(exchanges, TIMEOUT, Sizes::SMALL, |rank| {
        rank.play(
            &suite::mixed(&mut Random::with_seed(11), &rank.limits(), &mixture),
            11,
        )
    })
    .unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn rows_are_added_and_normalized_in_every_variant() {
    // Payloads of 12 bytes.
    let hiddens = [1, 7, 12, 24, 100, 384, 768, 1000, 4104];
    // Of more ranks than cores each case takes long.
    let worlds = [1, 2, 3, 4, 8].map(|world| (world, &hiddens[..]));
    for (world, hiddens) in worlds.into_iter().chain([(12, &[24, 1000][..])]) {
        on_threads(world, TIMEOUT, |rank| {
            norm::every_case(rank, &norm::WAYS, hiddens, &[0, 1, 2, 5])
        })
        .unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn bad_norms_are_refused() {
    on_threads(2, TIMEOUT, norm::bad_calls_are_refused).unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn calls_on_any_memory() {
    for world in [1, 2, 3, 8, 12] {
        let counts = [0, 2, 6, 50, 1200, 7000];
        let counts = &counts[if world > 8 { 3..5 } else { 0..6 }];
        on_threads(world, TIMEOUT, |rank| calls::any_memory(rank, counts))
            .unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn chunks_of_different_lengths() {
    for world in [1, 2, 3, 8, 12] {
        on_threads(world, TIMEOUT, calls::uneven).unwrap_or_else(|why| panic!("{why}"));
    }
    let told = on_threads(2, TIMEOUT, calls::lengths_that_differ_are_told);
    told.unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn ten_thousand_replays_on_two_streams() {
    on_threads(2, TIMEOUT, |rank| replays::of_collectives(rank, 10_000))
        .unwrap_or_else(|why| panic!("{why}"));
    on_threads(4, TIMEOUT, |rank| replays::of_collectives(rank, 500))
        .unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn replays_of_reduced_and_normalized_rows() {
    on_threads(2, TIMEOUT, |rank| replays::of_norms(rank, 3_000))
        .unwrap_or_else(|why| panic!("{why}"));
}

#[test]
fn ranks_that_make_different_calls_are_told() {
    for world in [2, 4] {
        on_threads(world, TIMEOUT, |rank| {
            calls::different_calls_are_told(rank, TIMEOUT)?;
            calls::every_variant_tells_other_calls(rank, TIMEOUT)
        })
        .unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn a_rank_that_strays_from_a_norm_is_named() {
    let timeout = Duration::from_millis(1500);
    for world in [2, 3] {
        on_threads(world, timeout, |rank| {
            norm::a_stray_rank_is_named(rank, timeout)
        })
        .unwrap_or_else(|why| panic!("{why}"));
    }
}
