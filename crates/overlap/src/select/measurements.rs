//! What was measured, as text.

use crate::algorithms::{self, Configuration};
use crate::plan::{Activation, Problem, Scaling};
use std::fmt;
use thiserror::Error;
use warpweave_symm_mem::DType;

/// One measured time.
#[derive(Clone, Debug, PartialEq)]
pub struct Measurement {
    /// What ran.
    pub configuration: Configuration,
    /// By how many ranks.
    pub world: usize,
    /// On what.
    pub problem: Problem,
    /// The median of single calls, µs, without what the clock itself costs.
    pub us: f64,
}

/// Measured times of one machine.
///
/// As text one line each, fields apart by tabs: configuration, world, M×N×K, element type with the scales and
/// the activation of the problem, µs. A comment begins with `#`.
///
/// ```
/// use warpweave_overlap::select::Measurements;
///
/// let text = "# four H200s\npushChunks:chunks=4\t4\t8192x3584x8192\tbf16\t751.5\n";
/// let measured = Measurements::from_text(text)?;
/// assert_eq!(measured.iter().next().unwrap().us, 751.5);
///
/// let text = "fusedColumnParallelLinear\t4\t8192x3584x8192\te4m3 scales by row swiglu\t410\n";
/// let measured = Measurements::from_text(text)?;
/// assert_eq!(measured.to_string(), text);
/// # Ok::<(), warpweave_overlap::select::MalformedMeasurements>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurements(Vec<Measurement>);

/// A line that holds no measurement.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}: {what}")]
pub struct MalformedMeasurements {
    /// Counted from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

impl Measurements {
    /// No measurements.
    pub fn none() -> Self {
        Self::default()
    }

    /// Reads text.
    ///
    /// # Errors
    /// Names the first line that holds no measurement.
    pub fn from_text(text: &str) -> Result<Self, MalformedMeasurements> {
        let mut all = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let measurement = measurement(line).map_err(|what| MalformedMeasurements {
                line: index + 1,
                what,
            })?;
            all.push(measurement);
        }
        Ok(Self(all))
    }

    /// Adds one.
    pub fn push(&mut self, measurement: Measurement) {
        self.0.push(measurement);
    }

    /// All of them, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = &Measurement> {
        self.0.iter()
    }

    /// Without those that `keep` refuses.
    #[must_use]
    pub fn filtered(mut self, keep: impl FnMut(&Measurement) -> bool) -> Self {
        self.0.retain(keep);
        self
    }
}

/// The text that [`Measurements::from_text`] reads.
impl fmt::Display for Measurements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for m in &self.0 {
            let Problem { m: rows, n, k, .. } = m.problem;
            let (name, world) = (&m.configuration, m.world);
            let elements = elements(&m.problem);
            writeln!(f, "{name}\t{world}\t{rows}x{n}x{k}\t{elements}\t{}", m.us)?;
        }
        Ok(())
    }
}

/// The element type of a problem, followed by its scales and its activation, if it has some: `e4m3 scales by
/// row swiglu`.
fn elements(problem: &Problem) -> String {
    let (scaling, activation) = (problem.scaling.suffix(), problem.activation.suffix());
    format!("{}{scaling}{activation}", problem.dtype)
}

/// The problem of this shape whose [`elements`] are these.
fn of_elements(shape: &Problem, text: &str) -> Option<Problem> {
    let dtype = text.split(' ').next()?.parse().ok()?;
    let scalings = [Scaling::None, Scaling::Tensor, Scaling::Row, Scaling::Block];
    let activations = [Activation::None, Activation::SwiGlu];
    let of = |scaling| activations.map(|activation| (scaling, activation));
    let all = scalings.into_iter().flat_map(of);
    let mut all = all.map(|(scaling, activation)| Problem {
        dtype,
        scaling,
        activation,
        ..*shape
    });
    all.find(|problem| elements(problem) == text)
}

fn measurement(line: &str) -> Result<Measurement, String> {
    let fields: Vec<&str> = line.split('\t').map(str::trim).collect();
    let [name, world, shape, of, us] = fields[..] else {
        return Err(format!("{} fields, not 5 apart by tabs", fields.len()));
    };
    let configuration = algorithms::find(name).map_err(|error| error.to_string())?;
    let count = |text: &str| match text.parse() {
        Ok(n @ 1..) => Ok(n),
        _ => Err(format!("`{text}` is no number from 1")),
    };
    let sizes = shape
        .split('x')
        .map(count)
        .collect::<Result<Vec<usize>, _>>()?;
    let [m, n, k] = sizes[..] else {
        return Err(format!("`{shape}` is not M x N x K"));
    };
    let problem = of_elements(&Problem::new(m, n, k, DType::F32), of)
        .ok_or_else(|| format!("`{of}` is no element type with its scales and activation"))?;
    let us: f64 = match us.parse() {
        Ok(us) if us > 0.0 && f64::is_finite(us) => us,
        _ => return Err(format!("`{us}` is no time")),
    };
    Ok(Measurement {
        configuration,
        world: count(world)?,
        problem,
        us,
    })
}
