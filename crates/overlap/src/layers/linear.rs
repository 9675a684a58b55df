//! What both layers are made of: a shape, and schedules by ranges of M.

use super::choice::{self, Class};
use super::{LayerError, Layers, Options, Reproducible, Result, place};
use crate::algorithms::Configuration;
use crate::execute::{DeviceSlice, ExecuteBackend, ExecuteError, Executor, Operands, Prepared};
use crate::operation::Operation;
use crate::plan::Problem;
use crate::schedule::Schedule;
use std::ops::RangeInclusive;
use std::sync::Arc;
use warpweave_gemm::Scaling;
use warpweave_symm_mem::{agree, require_same};

/// What computes a layer at some values of M.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The values.
    pub ms: RangeInclusive<usize>,
    /// The schedule.
    pub configuration: Configuration,
}

/// A matrix of a call: its elements and, if the layer is of e4m3, their scales in f32: one, which shards of
/// rows have in common, or one for each row that the rank has.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    elements: DeviceSlice<'a>,
    scales: Option<DeviceSlice<'a>>,
}

impl<'a> Matrix<'a> {
    /// Elements of e4m3 with their scales.
    pub fn scaled(elements: DeviceSlice<'a>, scales: DeviceSlice<'a>) -> Self {
        Matrix {
            elements,
            scales: Some(scales),
        }
    }
}

impl<'a> From<DeviceSlice<'a>> for Matrix<'a> {
    fn from(elements: DeviceSlice<'a>) -> Self {
        Matrix {
            elements,
            scales: None,
        }
    }
}

/// A layer without its bias after the reduction.
pub(super) struct Linear<B: ExecuteBackend> {
    pub layers: Layers<B>,
    name: String,
    pub operation: Operation,
    /// Of the largest M.
    pub problem: Problem,
    pub options: Options,
    /// Whether it runs on this rank alone.
    alone: bool,
    pub candidates: Vec<Configuration>,
    schedules: Vec<Prepared<B>>,
    /// Former ones that graphs may still launch.
    captured: Vec<Prepared<B>>,
    /// Of each class of M the last, and its schedule.
    classes: Vec<(usize, usize)>,
    /// In place of a bias, where the operation has one and the layer has none.
    pub zeros: Option<Arc<B::Memory>>,
}

impl<B: ExecuteBackend> Linear<B> {
    /// Collective. `what` is the layer but for its numbers.
    pub fn new(
        layers: &Layers<B>,
        (what, operation): (&str, Operation),
        problem: &Problem,
        options: &Options,
        alone: bool,
    ) -> Result<Self> {
        let reproducible = options.reproducible == Reproducible::Yes;
        let problem = problem.with_batch_invariance(reproducible);
        let Problem { m, n, k, dtype, .. } = problem;
        let suffixes = [problem.scaling.suffix(), problem.activation.suffix()].concat();
        let name = format!("{what} {n}x{k} {dtype}{suffixes} up to M = {m}");
        let exchange = layers.executor().exchange().as_ref();
        require_same(exchange, "the layer", &format!("{name}, {options:?}"))
            .map_err(ExecuteError::from)?;
        let is_gpu = B::KIND == warpweave_symm_mem::BackendKind::Cuda;
        if reproducible && is_gpu && problem.dtype.size() > 2 {
            return Err(LayerError::NotReproducible {
                dtype: problem.dtype,
            });
        }
        if let Some(only) = &options.schedule
            && reproducible
            && only.operation() == operation
            && !only.is_batch_invariant()
        {
            return Err(LayerError::NotBatchInvariant {
                schedule: only.name(),
            });
        }
        let nodes = layers.machine().nodes_of(exchange.world());
        let mut candidates = choice::candidates(operation, options.reproducible, nodes);
        candidates.retain(|c| c.takes(&problem));
        if candidates.is_empty() {
            return Err(LayerError::NothingRuns {
                layer: name,
                reasons: vec!["none takes such operands".into()],
            });
        }
        if let Some(only) = &options.schedule {
            let known = candidates.iter().map(Configuration::name).collect();
            // A configuration with other numbers than those worth trying is one of the layer's too.
            let is_one = candidates.iter().any(|c| c.algorithm() == only.algorithm());
            if !is_one || only.options().choice("sharding") == "cyclic" {
                return Err(LayerError::UnknownSchedule {
                    layer: name,
                    schedule: only.name(),
                    known,
                });
            }
            candidates = vec![only.clone()];
        } else if alone {
            // All of them are one GEMM.
            candidates.truncate(1);
        }
        let mut linear = Linear {
            layers: layers.clone(),
            name,
            operation,
            problem,
            options: options.clone(),
            alone,
            candidates,
            schedules: Vec::new(),
            captured: Vec::new(),
            classes: Vec::new(),
            zeros: None,
        };
        linear.choose()?;
        Ok(linear)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn executor(&self) -> &Executor<B> {
        match self.alone {
            true => &self.layers.0.alone,
            false => &self.layers.0.executor,
        }
    }

    pub fn world(&self) -> usize {
        self.executor().exchange().world()
    }

    /// The classes of M with their rankings, by what is known now.
    pub fn rankings(&self) -> Result<Vec<Class>> {
        let figures = self.layers.figures(self.options.reproducible);
        let world = self.world();
        Ok(choice::classes(
            self.operation,
            world,
            &self.problem,
            &self.candidates,
            &figures,
        )?)
    }

    /// Prepares the best schedule of each class, or the next where one cannot run here, in place of what was
    /// chosen before. After an error that stays. Collective.
    pub fn choose(&mut self) -> Result<()> {
        let rankings = self.rankings()?;
        let mut refused: Vec<(Configuration, String)> = Vec::new();
        let mut schedules: Vec<Prepared<B>> = Vec::new();
        loop {
            let chosen = rankings.iter().map(|class| {
                let runs = |c: &&Configuration| refused.iter().all(|(refused, _)| refused != *c);
                let best = class.ranking.iter().find(runs).cloned();
                best.map(|best| (class.last, best))
            });
            let Some(chosen) = chosen.collect::<Option<Vec<_>>>() else {
                return Err(LayerError::NothingRuns {
                    layer: self.name.clone(),
                    reasons: refused
                        .into_iter()
                        .map(|(c, why)| format!("{c}: {why}"))
                        .collect(),
                });
            };
            // The classes come in order, so the last of a configuration has its largest M.
            let mut largest: Vec<(Configuration, usize)> = Vec::new();
            for (last, configuration) in &chosen {
                match largest.iter_mut().find(|(known, _)| known == configuration) {
                    Some((_, most)) => *most = *last,
                    None => largest.push((configuration.clone(), *last)),
                }
            }
            let is_it = |one: &Prepared<B>, (configuration, most): &(Configuration, usize)| {
                one.schedule().configuration() == configuration
                    && one.schedule().problem().m == *most
            };
            let mut missing = None;
            for one in &largest {
                if schedules.iter().any(|known| is_it(known, one)) {
                    continue;
                }
                match self.prepare(&one.0, one.1)? {
                    Ok(prepared) => schedules.push(prepared),
                    Err(why) => {
                        missing = Some((one.0.clone(), why));
                        break;
                    }
                }
            }
            if let Some(missing) = missing {
                refused.push(missing);
                continue;
            }
            // Peers may still read what is no longer chosen.
            self.executor().exchange().barrier("layers.chosen")?;
            schedules.retain(|known| largest.iter().any(|one| is_it(known, one)));
            let at = |c: &Configuration| {
                schedules
                    .iter()
                    .position(|one| one.schedule().configuration() == c)
            };
            self.classes = chosen
                .iter()
                .filter_map(|(last, configuration)| Some((*last, at(configuration)?)))
                .collect();
            let former = std::mem::replace(&mut self.schedules, schedules);
            self.captured
                .extend(former.into_iter().filter(Prepared::is_captured));
            return Ok(());
        }
    }

    /// Prepares a configuration for `most` rows at most. Says why it cannot be, where others may be.
    pub fn prepare(
        &self,
        configuration: &Configuration,
        most: usize,
    ) -> Result<Result<Prepared<B>, String>> {
        let problem = Problem {
            m: most,
            ..self.problem
        };
        let executor = self.executor();
        let schedule = Schedule::new(configuration.clone(), self.world(), problem);
        let prepared = schedule.map_err(ExecuteError::from).and_then(|schedule| {
            let schedule = match self.options.constant_weight {
                true => schedule.with_constant_b(),
                false => schedule,
            };
            executor.prepare(&match self.options.reproducible {
                Reproducible::Yes => schedule,
                Reproducible::No => schedule.with_fastest_gemms(),
            })
        });
        // Of a rank that computes alone, too, others hear.
        let exchange = self.layers.executor().exchange().as_ref();
        let prepared = match self.alone {
            true => agree(exchange, "preparation of a layer", prepared),
            false => prepared,
        };
        match prepared {
            Ok(prepared) => Ok(Ok(prepared)),
            // Both are the same on all ranks.
            Err(error) if error.is_unavailable() || matches!(error, ExecuteError::Schedule(_)) => {
                Ok(Err(error.to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What computes `m` rows.
    pub fn at(&self, m: usize) -> Result<&Prepared<B>> {
        let place = self.classes.partition_point(|(last, _)| *last < m);
        match self.classes.get(place) {
            Some((_, schedule)) if m > 0 => Ok(&self.schedules[*schedule]),
            _ => Err(LayerError::OutOfRange {
                layer: self.name.clone(),
                m,
                most: self.problem.m,
            }),
        }
    }

    pub fn run(&self, stream: &B::Stream, operands: &Operands<'_>, m: usize) -> Result<()> {
        Ok(self.at(m)?.run(stream, operands, m)?)
    }

    pub fn warm(&self, stream: &B::Stream, ms: impl IntoIterator<Item = usize>) -> Result<()> {
        ms.into_iter()
            .try_for_each(|m| Ok(self.at(m)?.warm(stream, [m])?))
    }

    pub fn synchronize(&self, stream: &B::Stream) -> Result<()> {
        Ok(self.executor().synchronize(stream)?)
    }

    /// The operands of a call, if it has scales exactly where the layer's shape does.
    pub fn operands<'a>(
        &self,
        x: impl Into<Matrix<'a>>,
        weight: impl Into<Matrix<'a>>,
        y: DeviceSlice<'a>,
    ) -> Result<Operands<'a>> {
        let (x, weight) = (x.into(), weight.into());
        let operands = Operands::new(x.elements, weight.elements, y);
        match (x.scales, weight.scales, self.problem.scaling) {
            (None, None, Scaling::None) => Ok(operands),
            (Some(of_x), Some(of_weight), scaling) if scaling != Scaling::None => {
                Ok(operands.with_scales(of_x, of_weight))
            }
            (_, _, scaling) => Err(LayerError::Scales {
                layer: self.name.clone(),
                why: match scaling {
                    Scaling::None => "the layer was made without: Problem::with_scaling",
                    _ => "x and the weight need theirs: Matrix::scaled",
                },
            }),
        }
    }

    /// The bias of a call, if it is as the layer was made.
    pub fn bias<'a>(&self, given: Option<DeviceSlice<'a>>) -> Result<Option<DeviceSlice<'a>>> {
        let wrong = |why: String| {
            Err(LayerError::Bias {
                layer: self.name.clone(),
                why,
            })
        };
        let bytes = self.problem.n * self.problem.output().size();
        match given {
            Some(_) if !self.options.bias => {
                wrong("the layer was made without: Options::with_bias".into())
            }
            None if self.options.bias => {
                wrong("it is missing, and the layer was made with one".into())
            }
            Some(bias) if bias.bytes() < bytes => {
                wrong(format!("{} bytes, and {bytes} are needed", bias.bytes()))
            }
            given => Ok(given),
        }
    }

    /// What computes which M, neighbours of one schedule together.
    pub fn choices(&self) -> Vec<Choice> {
        let mut choices: Vec<Choice> = Vec::new();
        let mut first = 1;
        for &(last, place) in &self.classes {
            let configuration = self.schedules[place].schedule().configuration();
            match choices.last_mut() {
                Some(choice) if choice.configuration == *configuration => {
                    choice.ms = *choice.ms.start()..=last;
                }
                _ => choices.push(Choice {
                    ms: first..=last,
                    configuration: configuration.clone(),
                }),
            }
            first = last + 1;
        }
        choices
    }

    pub fn own_bytes(&self) -> usize {
        let all = self.schedules.iter().chain(&self.captured);
        all.map(Prepared::own_bytes).sum()
    }

    /// Adds what was measured to what is known, in place of what was known of it, and keeps it.
    pub fn learn(&self, found: &[crate::select::Measurement]) {
        use super::Kept;
        let shared = &self.layers.0;
        let figures = match self.options.reproducible {
            Reproducible::Yes => Kept::InvariantSchedules,
            Reproducible::No => Kept::Schedules,
        };
        let merged = |known: crate::select::Measurements| {
            let mut all = known.filtered(|one| {
                !found.iter().any(|new| {
                    new.configuration == one.configuration
                        && choice::is_of(one, new.world, &new.problem)
                })
            });
            found.iter().for_each(|new| all.push(new.clone()));
            all
        };
        let mut measurements = shared.measurements.lock();
        let known = &mut measurements[place(self.options.reproducible)];
        *known = merged(std::mem::take(known));
        drop(measurements);
        let Some(kept) = shared
            .kept
            .as_ref()
            .filter(|_| shared.executor.exchange().rank() == 0)
        else {
            return;
        };
        // Another job may have measured since this one began.
        let of_file = kept.read(figures, crate::select::Measurements::from_text);
        let text = merged(of_file.unwrap_or_default()).to_string();
        match kept.write(figures, &text) {
            Ok(path) => tracing::info!("{}: times of `{}`", path.display(), self.name),
            Err(error) => tracing::warn!("{error}; the times are known to this job alone"),
        }
    }
}
