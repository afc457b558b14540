//! Draws rates by message size as SVG.

use anyhow::{Result, anyhow};
use plotters::{
    chart::{ChartBuilder, SeriesLabelPosition},
    prelude::{Circle, Color, IntoDrawingArea, IntoLogRange, PathElement, RGBColor, SVGBackend},
    series::LineSeries,
    style::{BLACK, TextStyle, WHITE},
};

use smbdirect_bench::{GIB, Means, Operation, Smb, Summary, Work};

use super::table;

/// A curve: its name, and the rate for each size.
#[derive(Debug, PartialEq)]
struct Curve {
    name: String,
    ours: bool,
    points: Vec<(f64, f64)>,
}

/// Draws the rows of a summary as an SVG picture.
///
/// # Errors
/// No row was measured with two sizes, so there is no line to draw.
pub(crate) fn draw(summary: &Summary) -> Result<String> {
    let curves = curves(summary);
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let (Some(smallest), Some(largest)) = (
        points().map(|point| point.0).reduce(f64::min),
        points().map(|point| point.0).reduce(f64::max),
    ) else {
        return Err(anyhow!("--svg has nothing to draw: no row moves bytes"));
    };
    let most = points().map(|point| point.1).fold(1.0, f64::max);
    let mut picture = String::new();
    let result = paint(&mut picture, &curves, smallest..largest, most);
    result.map_err(|error| anyhow!("cannot draw: {error}"))?;
    Ok(picture)
}

fn curves(summary: &Summary) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    // Memory is so much faster that the other curves would be flat.
    let works = || {
        summary
            .results
            .iter()
            .filter_map(|result| result.row.work())
    };
    for result in &summary.results {
        let Some(work) = result.row.work() else {
            continue;
        };
        if work.kind == Operation::Echo || works().any(|other| stands_for(other, work)) {
            continue;
        }
        let name = result.row.name();
        let point = (f64::from(result.row.size()), result.rate[1] / GIB);
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push(point),
            None => curves.push(Curve {
                name,
                ours: matches!(work.means, Means::SmbDirect(_)),
                points: vec![point],
            }),
        }
    }
    for curve in &mut curves {
        curve.points.sort_by(|one, other| one.0.total_cmp(&other.0));
    }
    curves
}

/// Returns whether `other` is drawn instead of `work`, so that there are few curves: one direction
/// rather than both, with CRC rather than without, with the most operations outstanding.
fn stands_for(other: &Work, work: &Work) -> bool {
    let crc = |work: &Work| matches!(work.means, Means::SmbDirect(smb) if smb.crc);
    let rank = |work: &Work| (!work.both, crc(work), work.outstanding);
    let plain = |work: &Work| Work {
        means: match work.means {
            Means::SmbDirect(smb) => Means::SmbDirect(Smb { crc: false, ..smb }),
            means => means,
        },
        both: false,
        outstanding: 0,
        ..*work
    };
    plain(other) == plain(work) && rank(other) > rank(work)
}

/// Width and height of the picture in pixels.
const SIZE: (u32, u32) = (1100, 680);
/// Factor between the highest rate and the top of the picture.
const HEADROOM: f64 = 1.3;
/// Colours that can be distinguished without seeing red and green.
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 90, 181),
    RGBColor(220, 50, 32),
    RGBColor(0, 140, 110),
    RGBColor(170, 68, 170),
    RGBColor(230, 145, 0),
    RGBColor(70, 170, 225),
    RGBColor(110, 80, 20),
    RGBColor(30, 30, 90),
];
const GREYS: [RGBColor; 4] = [
    RGBColor(60, 60, 60),
    RGBColor(130, 130, 130),
    RGBColor(175, 175, 175),
    RGBColor(100, 120, 100),
];

fn paint(
    picture: &mut String,
    curves: &[Curve],
    sizes: std::ops::Range<f64>,
    most: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(picture, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let sizes = sizes.start / 1.2..sizes.end * 1.2;
    let mut chart = ChartBuilder::on(&area)
        .caption("SMB Direct: message size and rate", ("sans-serif", 22))
        .margin(14)
        .x_label_area_size(46)
        .y_label_area_size(58)
        // Leave room above the curves for their names.
        .build_cartesian_2d(sizes.log_scale().base(2.0), 0.0..most * HEADROOM)?;
    let text = TextStyle::from(("sans-serif", 14)).color(&BLACK);
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_labels(18)
        .x_label_formatter(&|size| table::size(*size as u32))
        .y_label_formatter(&|rate| format!("{rate:.1}"))
        .x_desc("message size")
        .y_desc("GiB/s")
        .label_style(text.clone())
        .draw()?;
    let (mut ours, mut theirs) = (COLOURS.iter().cycle(), GREYS.iter().cycle());
    for curve in curves {
        let colours = if curve.ours { &mut ours } else { &mut theirs };
        let colour = *colours.next().expect("a cycle does not end");
        let style = colour.stroke_width(if curve.ours { 3 } else { 2 });
        chart
            .draw_series(LineSeries::new(curve.points.iter().copied(), style))?
            .label(&curve.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], style));
        let dot = |&at| Circle::new(at, 3, colour.filled());
        chart.draw_series(curve.points.iter().map(dot))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(200, 200, 200))
        .label_font(text)
        .draw()?;
    area.present()?;
    drop(chart);
    Ok(())
}
