//! Plans written by hand, on ranks that are threads: right ones, and ones with an error that verification
//! must find.

use super::*;
use crate::alone::local;
use crate::candidate::Entrant;
use crate::clock::Clock;
use crate::inject::Injection;
use crate::inputs::{InputSets, Matrices, on_threads};
use crate::plans::{Implementation, PlanCandidate, Schedules};
use crate::progress::Progress;
use crate::suite::{self, Run, Settings, Stage};
use crate::timing::Effort;
use crate::verification::reference::References;
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use warpweave_comm::Store;
use warpweave_overlap::operation::{Matrix, Operand};
use warpweave_overlap::plan::{
    Collective, Placement, PlanBuilder, Provider, Region, Role, StreamId, Transport,
};
use warpweave_overlap::{Operation, Problem};
use warpweave_report::Kind;
use warpweave_symm_mem::{Backend, DType, Host};

const WORLD: usize = 3;
const MAIN: StreamId = StreamId::MAIN;
const OVERLAPPED: Operation = Operation::MatmulOverlappingAllGather;

fn problem() -> Problem {
    Problem::new(9, 4, 6, DType::F16)
}

/// An implementation that is bound, with inputs and references.
fn made<'a>(
    session: &'a Session<Host>,
    (matrices, sets): (Matrices, &[(Numbers, usize)]),
    implementation: &Implementation,
) -> Result<PlanCandidate<'a, Host>> {
    // Some of these plans are wrong on purpose.
    let plan = (implementation.plan)(session.rank(), session.world(), &problem())?;
    // SAFETY: on the host backend waits that nobody signals end at their deadline.
    let bound = unsafe { PlanCandidate::of_unproved(session, plan)? };
    let mut candidate = bound.with_operands_of(implementation, &problem());
    candidate.take(&mut InputSets::new(matrices, sets))?;
    candidate.verified_by(&References::compute(session, matrices, sets)?);
    Ok(candidate)
}

/// Calls with every set, then replays.
const FORMS: [Form; 2] = [Form::Run, Form::Replay];

/// What `work` makes on each of [`WORLD`] ranks that are threads; `fault` is injected.
fn on_ranks<T: Send>(
    timeout: Duration,
    fault: Option<&str>,
    work: impl Fn(&Session<Host>) -> T + Sync,
) -> Vec<T> {
    let stores = Store::threads(WORLD).unwrap().into_iter().enumerate();
    on_threads(stores, |(rank, store)| {
        let fault = fault.map(|fault| fault.parse().unwrap());
        let injection = Injection::new(fault, rank, Duration::ZERO);
        let session = Session::new(store, Host::with_timeout(timeout), injection).unwrap();
        let made = work(&session);
        session.on_all("end", Ok(made)).unwrap()
    })
}

/// The verdict of all ranks on an implementation, over integers and reals; `fault` is injected.
fn verdict(
    operation: Operation,
    implementation: impl Fn() -> Implementation + Sync,
    fault: Option<&str>,
) -> Verdict {
    let mut verdicts = on_ranks(Duration::from_secs(20), fault, |session| {
        let matrices = Matrices::of(Some(operation), WORLD, &problem());
        let sets = [(Numbers::Integers, 2), (Numbers::Reals, 1)];
        let mut candidate = made(session, (matrices, &sets), &implementation()).unwrap();
        candidate.first_call().unwrap();
        let found = Verifier::new(session).verify(&candidate, &batches(&FORMS, &sets));
        found.unwrap().unwrap()
    });
    assert!(verdicts.iter().all(|v| v.wrong == verdicts[0].wrong));
    verdicts.swap_remove(0)
}

fn whole(matrix: Matrix, buffer: &'static str, rows: usize, cols: usize) -> Operand {
    crate::inputs::part(buffer, matrix, 0..rows, 0..cols)
}

/// A, B and C.
fn all_of(problem: &Problem) -> [Operand; 3] {
    let Problem { m, n, k, .. } = *problem;
    [
        whole(Matrix::A, "a", m, k),
        whole(Matrix::B, "b", k, n),
        whole(Matrix::C, "c", m, n),
    ]
}

/// A plan with buffers for `operands`, and what `ops` does with them.
fn by_hand(
    name: &'static str,
    operands: impl Fn(usize, usize, &Problem) -> Vec<Operand> + Copy + 'static,
    ops: impl Fn(&mut PlanBuilder, &[Region]) + 'static,
) -> Implementation {
    Implementation::of_plan(name, operands, move |rank, world, problem| {
        let mut plan = PlanBuilder::new(name, rank, world);
        let regions = local(&mut plan, &operands(rank, world, problem), problem);
        ops(&mut plan, &regions);
        plan.finish()
    })
}

fn multiply(plan: &mut PlanBuilder, a: &Region, b: &Region, c: &Region) {
    plan.gemm(MAIN, Provider::CublasLt, a.clone(), b.clone(), c.clone());
}

/// Cᵀ = Bᵀ · Aᵀ, all of them stored transposed, or said to be.
fn transposed_plan(transposed: bool) -> Implementation {
    by_hand(
        "transposed",
        transposed_operands(transposed),
        |plan, all| {
            multiply(plan, &all[1], &all[0], &all[2]);
        },
    )
}

fn transposed_operands(
    transposed: bool,
) -> impl Fn(usize, usize, &Problem) -> Vec<Operand> + Copy + 'static {
    move |_: usize, _: usize, problem: &Problem| {
        let mut all = all_of(problem);
        for operand in &mut all {
            operand.transposed = true;
        }
        if !transposed {
            // The same buffer of N × M elements, as if the rows of C lay in it one after the other.
            all[2] = whole(Matrix::C, "c", problem.n, problem.m);
        }
        all.into()
    }
}

/// All-gather + matmul of rows that are dealt out one by one; or put where contiguous rows would belong.
fn cyclic(dealt: bool) -> Implementation {
    let operands = |rank: usize, world: usize, problem: &Problem| {
        let mut all = all_of(problem);
        let rows = (rank..problem.m).step_by(world);
        all[0].rows = rows.map(|row| row..row + 1).collect();
        all.into()
    };
    by_hand("cyclic", operands, move |plan, all| {
        let Problem { m, n, k, dtype, .. } = problem();
        let staging = plan.buffer("staging", Placement::Local, Role::Staging, dtype, (m, k));
        let (src, dst) = (all[0].clone(), plan.whole(staging));
        plan.collective(MAIN, Collective::AllGather, src, dst, Transport::Nccl);
        for place in 0..m {
            let each = m / WORLD;
            let row = match dealt {
                true => place % each * WORLD + place / each,
                false => place,
            };
            let a = plan.own(staging, place..place + 1, 0..k);
            let c = plan.own(all[2].buffer, row..row + 1, 0..n);
            multiply(plan, &a, &all[1], &c);
        }
    })
}

/// A GEMM, and an all-gather of X; or an all-gather that is left out.
fn with_all_gather(gathers: bool) -> Implementation {
    let operands =
        |rank, world, problem: &Problem| OVERLAPPED.operands((rank, world), problem, None);
    by_hand("with all-gather", operands, move |plan, all| {
        let [a, b, x, c, y] = all else {
            panic!("{all:?}");
        };
        multiply(plan, a, b, c);
        if gathers {
            let (x, y) = (x.clone(), y.clone());
            plan.collective(MAIN, Collective::AllGather, x, y, Transport::Nccl);
            return;
        }
        for at in 0..WORLD {
            let rows = at * x.rows.len()..(at + 1) * x.rows.len();
            let y = plan.own(y.buffer, rows, 0..problem().k);
            plan.copy(MAIN, x.clone(), y);
        }
    })
}

/// Three sets, each as a call and as a replay, on every rank.
fn elements(of_a_rank: u64) -> u64 {
    3 * 2 * WORLD as u64 * of_a_rank
}

/// Operands that are stored transposed, rows that are dealt out one by one, and both outputs of a GEMM with
/// an all-gather.
#[test]
fn right_plans_are_right_and_plans_with_an_error_are_not() {
    type Make = fn(bool) -> Implementation;
    let plans = [
        (Operation::AllGatherMatmul, transposed_plan as Make, 9 * 4),
        (Operation::AllGatherMatmul, cyclic, 9 * 4),
        (OVERLAPPED, with_all_gather, 9 * 4 + 4 * WORLD as u64 * 6),
    ];
    for (operation, plan, each) in plans {
        let right = verdict(operation, || plan(true), None);
        assert!(right.is_right(), "{right:?}");
        assert_eq!((right.calls, right.elements), (6, elements(each)));
        let wrong = verdict(operation, || plan(false), None);
        assert!(!wrong.is_right() && wrong.wrong > 0, "{wrong:?}");
    }
}

#[test]
fn the_first_wrong_element_is_named_with_its_matrix() {
    let wrong = verdict(OVERLAPPED, || with_all_gather(false), None);
    let first = wrong.first.as_ref().unwrap();
    assert!(first.what.contains(": Y["), "{first:?}");
    // One element of each output of one rank in each call.
    let corrupt = verdict(OVERLAPPED, || with_all_gather(true), Some("corrupt:1"));
    assert_eq!(corrupt.wrong, 3 * 2 * 2, "{corrupt:?}");
    let first = corrupt.first.unwrap();
    assert_eq!(first.rank, 1);
    assert!(first.what.contains(": C[0, 0] is NaN"), "{first:?}");
}

#[test]
fn a_buffer_of_another_shape_than_its_operand_is_an_error() {
    let wrong = || Implementation {
        operands: Rc::new(|_, _, problem| vec![whole(Matrix::A, "a", problem.m, problem.k + 1)]),
        ..transposed_plan(true)
    };
    on_ranks(Duration::from_secs(20), None, |session| {
        let matrices = Matrices::of(None, 1, &problem());
        let sets = [(Numbers::Integers, 1)];
        let candidate = made(session, (matrices, &sets), &wrong()).unwrap();
        let numbers = Numbers::Integers;
        let error = candidate.load(Set { numbers, index: 0 }).unwrap_err();
        let text = error.to_string();
        let parts = ["`a`", "6x9", "9x7"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    });
}

/// Every rank waits for a signal that nobody sends.
fn stuck() -> Implementation {
    by_hand("stuck", transposed_operands(true), |plan, all| {
        let (never, peers) = (plan.slot("never"), plan.peers());
        if plan.draft().rank == 0 {
            plan.wait(MAIN, never, peers);
        } else {
            plan.signal(MAIN, never, [0]).wait(MAIN, never, [0]);
        }
        multiply(plan, &all[1], &all[0], &all[2]);
    })
}

#[test]
fn a_plan_whose_first_call_fails_is_taken_out_and_the_others_go_on() {
    on_ranks(Duration::from_millis(300), None, |session| {
        let matrices = Matrices::of(Some(Operation::AllGatherMatmul), WORLD, &problem());
        let sets = [(Numbers::Integers, 2)];
        let mut entrants = [cyclic(true), stuck(), transposed_plan(true)].map(|one| {
            let made = made(session, (matrices, &sets), &one).unwrap();
            Entrant::new(&one.name, Kind::Ours, Ok(made))
        });
        let effort = Effort::of(Host::KIND, Some(1));
        let run = Run {
            session,
            settings: &Settings::of(&suite::GEMM),
            clock: Clock::new(session, effort.capacity()).unwrap(),
            effort,
            links: None,
            progress: Progress::new(session.rank()),
            schedules: RefCell::new(Schedules::new(&[])),
        };
        let mut stage = Stage::new(&run, (0, 1), String::new());
        let times = stage.measure(&mut entrants, &[0, 1, 2], [&batches(&FORMS, &sets), &[]]);
        let ran: Vec<_> = times.unwrap().iter().map(Option::is_some).collect();
        assert_eq!(ran, [true, false, true]);
        let failed = entrants.each_ref().map(|entrant| entrant.failed);
        assert_eq!(failed, [false, true, false]);
        let reason = entrants[1].candidate.as_ref().err().unwrap();
        assert!(reason.starts_with("first call of stuck"), "{reason}");
        for Entrant { verdict, .. } in [&entrants[0], &entrants[2]] {
            assert!(verdict.is_right() && verdict.calls == 4, "{verdict:?}");
        }
    });
}

#[test]
fn findings_survive_the_exchange_and_one_wrong_rank_is_enough() {
    let right = Verdict {
        calls: 4,
        elements: 40,
        exact_elements: 20,
        relative_error: 0.1,
        tolerance: 0.5,
        ..Verdict::default()
    };
    let (rank, what) = (1, "C[1, 2] is NaN".to_owned());
    let wrong = Verdict {
        wrong: 2,
        relative_error: f64::INFINITY,
        first: Some(Finding { rank, what }),
        ..right.clone()
    };
    let verdicts = on_ranks(Duration::from_secs(20), None, |session| {
        let own = if session.rank() == 0 { &right } else { &wrong };
        let found = session.agree("verdict", Ok(own.clone())).unwrap();
        // What cannot be read is not right.
        if session.rank() == 0 {
            session.exchange.all_gather("word", b"nothing").unwrap();
        } else {
            assert!(session.agree("word", Ok(right.clone())).is_err());
        }
        found
    });
    let verdict = Verdict::of_ranks(verdicts[0][..2].to_vec());
    assert!(!verdict.is_right());
    assert_eq!(
        (verdict.elements, verdict.wrong, verdict.exact_elements),
        (80, 2, 40)
    );
    assert_eq!(verdict.relative_error, f64::INFINITY);
    let first = verdict.first.unwrap();
    assert_eq!((first.rank, first.what.as_str()), (1, "C[1, 2] is NaN"));
    assert!(Verdict::of_ranks(vec![right]).is_right());
}
