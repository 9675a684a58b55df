//! Tables and plots of what was measured.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use plotters::prelude::*;

use super::{Figure, Figures, Phase, SILENT, WARPWEAVE};
use crate::error::{Error, Result};

impl Figures {
    fn of(&self, phase: Phase) -> impl Iterator<Item = &Figure> {
        self.figures
            .iter()
            .filter(move |figure| figure.phase == phase)
    }

    fn seconds(&self, way: &str, of: &Figure) -> Option<f64> {
        let same = |figure: &&Figure| {
            (figure.phase, figure.size) == (of.phase, of.size) && figure.way == way
        };
        self.figures.iter().find(same).map(|figure| figure.seconds)
    }
}

/// In Markdown.
pub fn tables(figures: &Figures) -> String {
    let mut text = format!(
        "{} ranks on {}, {} layers; a rank has {:.1} MiB of weights and {:.1} MiB of arena\n",
        figures.ranks,
        figures.device,
        figures.layers,
        figures.weights as f64 / f64::from(1 << 20),
        figures.arena as f64 / f64::from(1 << 20),
    );
    for (phase, what, time) in [
        (Phase::Prefill, "prompt", "time to first token, ms"),
        (Phase::Decode, "batch", "time per token, ms"),
    ] {
        let _ = writeln!(
            text,
            "\n| {what} | by | {time} | tokens/s | of Warpweave's | communication |"
        );
        text += "|---:|---|---:|---:|---:|---:|\n";
        for figure in figures.of(phase) {
            let Figure {
                way, size, seconds, ..
            } = figure;
            let of = |other: &str| figures.seconds(other, figure);
            let share = |other: f64| format!("{:.0} %", 100.0 * (1.0 - other / seconds).max(0.0));
            let communication = if way == WARPWEAVE {
                of(SILENT).map(share)
            } else {
                None
            };
            let ratio = of(WARPWEAVE).map(|own| format!("{:.2}", seconds / own));
            let _ = writeln!(
                text,
                "| {size} | {way} | {:.3} | {:.0} | {} | {} |",
                seconds * 1e3,
                *size as f64 / seconds,
                ratio.unwrap_or_default(),
                communication.unwrap_or_default(),
            );
        }
    }
    text
}

/// Writes figures.json, tables.md, prefill.svg and decode.svg.
///
/// # Errors
/// A file cannot be written.
pub fn write(folder: &Path, figures: &Figures) -> Result<()> {
    fs::create_dir_all(folder).map_err(Error::file(folder))?;
    let save = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).map_err(Error::file(&path))
    };
    save(
        "figures.json",
        serde_json::to_string_pretty(figures).map_err(Error::file(folder))?,
    )?;
    save("tables.md", tables(figures))?;
    for (phase, name) in [
        (Phase::Prefill, "prefill.svg"),
        (Phase::Decode, "decode.svg"),
    ] {
        save(
            name,
            plot(figures, phase).map_err(Error::file(folder.join(name)))?,
        )?;
    }
    Ok(())
}

/// Milliseconds over sizes, a line for each way.
fn plot(figures: &Figures, phase: Phase) -> Result<String, Box<dyn std::error::Error>> {
    let mut svg = String::new();
    let points: Vec<_> = figures.of(phase).collect();
    let Some(largest) = points
        .iter()
        .map(|figure| figure.size as f64)
        .reduce(f64::max)
    else {
        return Ok(svg);
    };
    let slowest = points
        .iter()
        .map(|figure| figure.seconds * 1e3)
        .fold(0.0, f64::max);
    let mut ways: Vec<&str> = points.iter().map(|figure| figure.way.as_str()).collect();
    ways.dedup();
    ways.sort_unstable();
    ways.dedup();
    let (caption, x) = match phase {
        Phase::Prefill => ("Time to first token", "tokens of the prompt"),
        Phase::Decode => ("Time per token", "requests of the batch"),
    };
    {
        let area = SVGBackend::with_string(&mut svg, (720, 420)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(
                format!("{caption}, {} ranks", figures.ranks),
                ("sans-serif", 18),
            )
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..largest * 1.05, 0.0..slowest * 1.1)?;
        chart.configure_mesh().x_desc(x).y_desc("ms").draw()?;
        for (index, way) in ways.into_iter().enumerate() {
            let color = Palette99::pick(index).to_rgba();
            let line = points.iter().filter(|figure| figure.way == way);
            let line = line.map(|figure| (figure.size as f64, figure.seconds * 1e3));
            chart
                .draw_series(LineSeries::new(line, color.stroke_width(2)).point_size(3))?
                .label(way)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2))
                });
        }
        chart
            .configure_series_labels()
            .background_style(WHITE)
            .border_style(BLACK)
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}
