//! Plots as SVG: lines, steps, points, bars and heat maps, with rounded axis ticks.

use std::fmt::Write as _;

/// The palette of Okabe and Ito, distinguishable with any colour vision, then darker colours.
pub(crate) const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#7a4f9a"];
pub(crate) const WIDTH: f64 = 860.0;
pub(crate) const HEIGHT: f64 = 340.0;
pub(crate) const LEFT: f64 = 62.0;
pub(crate) const RIGHT: f64 = 14.0;
pub(crate) const TOP: f64 = 34.0;
pub(crate) const BOTTOM: f64 = 42.0;
/// Maximum number of points of a curve in a plot.
const MAX_POINTS: usize = 1_500;

/// How a curve is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Lines between points.
    Line,
    /// Steps; each point ends an interval of its value.
    Stairs,
    /// Points only.
    Dots,
}

/// A curve.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Curve {
    pub(crate) label: String,
    pub(crate) style: Style,
    pub(crate) points: Vec<(f64, f64)>,
}

/// The content of a plot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    Curves {
        curves: Vec<Curve>,
        x: String,
        y: String,
        limit: Option<f64>,
    },
    Bars {
        bars: Vec<(String, f64)>,
        y: String,
    },
    /// `max` is the value of the darkest colour, equal for matrices that are compared.
    Heat {
        rows: Vec<f64>,
        columns: Vec<f64>,
        values: Vec<Vec<Option<f64>>>,
        unit: String,
        max: f64,
    },
}

/// A plot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plot {
    /// Name for files and for the page.
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) content: Content,
}

/// Escapes text for XML.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Formats a coordinate.
fn at(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}

/// A round step that divides `range` into about `parts`.
pub(crate) fn step(range: f64, parts: f64) -> f64 {
    let rough = (range / parts).max(1e-9);
    let magnitude = 10f64.powf(rough.log10().floor());
    let factor =
        [1.0, 2.0, 5.0].into_iter().find(|factor| factor * magnitude >= rough * (1.0 - 1e-9));
    factor.unwrap_or(10.0) * magnitude
}

/// Formats the number at an axis tick.
fn tick(value: f64, step: f64) -> String {
    let digits = (-step.log10().floor()).clamp(0.0, 6.0) as usize;
    format!("{value:.digits$}")
}

/// Reduces the number of points but keeps the shape: the minimum and the maximum of each part.
pub(crate) fn thinned(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    if points.len() <= most {
        return points.to_vec();
    }
    let part = points.len().div_ceil(most / 2);
    let mut kept = Vec::with_capacity(most + 2);
    for part in points.chunks(part) {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        if let (Some(&least), Some(&largest)) =
            (part.iter().min_by(by_value), part.iter().max_by(by_value))
        {
            let (first, second) =
                if least.0 <= largest.0 { (least, largest) } else { (largest, least) };
            kept.push(first);
            if second != first {
                kept.push(second);
            }
        }
    }
    kept
}

/// The scale of the axes.
pub(crate) struct Scale {
    pub(crate) min_x: f64,
    pub(crate) max_x: f64,
    pub(crate) max_y: f64,
}

impl Scale {
    /// A scale that contains all points, and zero on the y axis.
    pub(crate) fn for_curves(curves: &[Curve], limit: Option<f64>) -> Self {
        let all = || {
            curves
                .iter()
                .flat_map(|curve| &curve.points)
                .filter(|p| p.0.is_finite() && p.1.is_finite())
        };
        let max_x = all().map(|point| point.0).fold(0.0, f64::max);
        let min_x = all().map(|point| point.0).fold(f64::INFINITY, f64::min);
        let max_y = all().map(|point| point.1).fold(limit.unwrap_or(0.0), f64::max);
        // The x axis begins at zero, unless all values are far from it.
        let min_x = if min_x.is_finite() && min_x > 0.5 * max_x { min_x } else { 0.0 };
        Self {
            min_x,
            max_x: if max_x > min_x { max_x } else { min_x + 1.0 },
            max_y: if max_y > 0.0 { max_y * 1.05 } else { 1.0 },
        }
    }

    fn x(&self, value: f64) -> f64 {
        let fraction = (value - self.min_x) / (self.max_x - self.min_x);
        LEFT + (WIDTH - LEFT - RIGHT) * fraction.clamp(0.0, 1.0)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value / self.max_y).clamp(0.0, 1.0)
    }
}

impl Plot {
    /// Renders the plot.
    pub(crate) fn svg(&self) -> String {
        let height = match &self.content {
            Content::Curves { curves, .. } => HEIGHT + legend_layout(curves).1,
            _ => HEIGHT,
        };
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"12\" role=\"img\" aria-label=\"{title}\">\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\
             <text x=\"{LEFT}\" y=\"16\" font-weight=\"bold\">{title}</text>",
            title = escape(&self.title)
        );
        match &self.content {
            Content::Curves { curves, x, y, limit } => draw_curves(&mut svg, curves, x, y, *limit),
            Content::Bars { bars, y } => draw_bars(&mut svg, bars, y),
            Content::Heat { rows, columns, values, unit, max } => {
                draw_heat(&mut svg, (rows, columns), values, unit, *max)
            }
        }
        svg.push_str("</svg>");
        svg
    }
}

fn draw_y_axis(svg: &mut String, scale: &Scale, label: &str) {
    let step = step(scale.max_y, 5.0);
    let mut value = 0.0;
    svg.push_str("<g class=\"y\" fill=\"#333\">");
    while value <= scale.max_y {
        let y = at(scale.y(value));
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{y}\" dy=\"4\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 6.0,
            tick(value, step)
        );
        value += step;
    }
    let _ = write!(
        svg,
        "<text x=\"14\" y=\"{0}\" transform=\"rotate(-90 14 {0})\" text-anchor=\"middle\">{1}</text></g>",
        at((TOP + HEIGHT - BOTTOM) / 2.0),
        escape(label)
    );
}

fn draw_curves(svg: &mut String, curves: &[Curve], x: &str, y: &str, limit: Option<f64>) {
    let scale = Scale::for_curves(curves, limit);
    draw_y_axis(svg, &scale, y);
    let range = scale.max_x - scale.min_x;
    let step = step(range, 8.0);
    let mut value = (scale.min_x / step).ceil() * step;
    svg.push_str("<g class=\"x\" fill=\"#333\">");
    while value <= scale.max_x + 1e-9 {
        let x = at(scale.x(value));
        let _ = write!(
            svg,
            "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - BOTTOM + 16.0,
            tick(value, step)
        );
        value += step;
    }
    let _ = write!(
        svg,
        "</g><text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#333\">{}</text>",
        at((LEFT + WIDTH - RIGHT) / 2.0),
        HEIGHT - 6.0,
        escape(x)
    );
    if let Some(limit) = limit {
        let y = at(scale.y(limit));
        let _ = write!(
            svg,
            "<g class=\"limit\" transform=\"translate(0 {y})\"><line x1=\"{LEFT}\" x2=\"{0}\" y1=\"0\" y2=\"0\" stroke=\"#000\" stroke-dasharray=\"5 4\"/>\
             <text x=\"{0}\" y=\"-4\" text-anchor=\"end\" font-size=\"11\">bound</text></g>",
            WIDTH - RIGHT
        );
    }
    for (curve, colour) in curves.iter().zip(COLOURS.iter().cycle()) {
        draw_curve(svg, curve, colour, &scale);
    }
    legend(svg, curves);
    let _ = write!(
        svg,
        "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"#333\"/>",
        WIDTH - RIGHT,
        y = HEIGHT - BOTTOM
    );
}

fn draw_curve(svg: &mut String, curve: &Curve, colour: &str, scale: &Scale) {
    let points = thinned(&curve.points, MAX_POINTS);
    if curve.style == Style::Dots {
        let _ = write!(svg, "<g class=\"curve\" fill=\"{colour}\">");
        for (x, y) in points {
            let _ = write!(
                svg,
                "<circle cx=\"{}\" cy=\"{}\" r=\"1.6\"/>",
                at(scale.x(x)),
                at(scale.y(y))
            );
        }
        svg.push_str("</g>");
        return;
    }
    let mut text = String::new();
    let mut before = scale.min_x;
    for (x, y) in points {
        if curve.style == Style::Stairs {
            let _ = write!(text, "{},{} ", at(scale.x(before)), at(scale.y(y)));
        }
        let _ = write!(text, "{},{} ", at(scale.x(x)), at(scale.y(y)));
        before = x;
    }
    let _ = write!(
        svg,
        "<polyline class=\"curve\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\" points=\"{}\"/>",
        text.trim_end()
    );
}

/// Height of a line of the legend below a plot.
const LEGEND_LINE_HEIGHT: f64 = 18.0;

/// Width of a legend entry.
fn legend_entry_width(curve: &Curve) -> f64 {
    curve.label.chars().count() as f64 * 8.4 + 26.0
}

/// Positions of the legend entries: in the line below the title if they fit, else in lines below
/// the plot. The second value is the additional height of the plot.
fn legend_layout(curves: &[Curve]) -> (Vec<(f64, f64)>, f64) {
    let total: f64 = curves.iter().map(legend_entry_width).sum();
    if total <= WIDTH - LEFT - RIGHT {
        let mut x = WIDTH - RIGHT - total;
        let place = |curve| {
            let place = (x, 28.0);
            x += legend_entry_width(curve);
            place
        };
        return (curves.iter().map(place).collect(), 0.0);
    }
    let (mut x, mut line) = (LEFT, 1.0);
    let mut places = Vec::new();
    for curve in curves {
        let width = legend_entry_width(curve);
        if x > LEFT && x + width > WIDTH - RIGHT {
            (x, line) = (LEFT, line + 1.0);
        }
        places.push((x, HEIGHT + LEGEND_LINE_HEIGHT * (line - 1.0) + 10.0));
        x += width;
    }
    (places, LEGEND_LINE_HEIGHT * line)
}

fn legend(svg: &mut String, curves: &[Curve]) {
    svg.push_str("<g class=\"legend\">");
    for (index, (curve, (x, y))) in curves.iter().zip(legend_layout(curves).0).enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let _ = write!(
            svg,
            "<g data-curve=\"{index}\"><rect x=\"{}\" y=\"{}\" width=\"14\" height=\"4\" fill=\"{colour}\"/>\
             <text x=\"{}\" y=\"{y}\" fill=\"#333\">{}</text></g>",
            at(x),
            at(y - 7.0),
            at(x + 18.0),
            escape(&curve.label)
        );
    }
    svg.push_str("</g>");
}

fn draw_bars(svg: &mut String, bars: &[(String, f64)], y: &str) {
    let most = bars.iter().map(|bar| bar.1).fold(0.0, f64::max);
    let scale = Scale { min_x: 0.0, max_x: 1.0, max_y: if most > 0.0 { most * 1.1 } else { 1.0 } };
    draw_y_axis(svg, &scale, y);
    let slot = (WIDTH - LEFT - RIGHT) / bars.len().max(1) as f64;
    for (index, ((label, value), colour)) in bars.iter().zip(COLOURS.iter().cycle()).enumerate() {
        let left = LEFT + slot * index as f64 + slot * 0.2;
        let top = scale.y(*value);
        let middle = at(left + slot * 0.3);
        let _ = write!(
            svg,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{colour}\"/>\
             <text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\" fill=\"#333\">{}</text>",
            at(left),
            at(top),
            at(slot * 0.6),
            at(HEIGHT - BOTTOM - top),
            at(top - 4.0),
            super::table::number(*value),
            HEIGHT - BOTTOM + 16.0,
            escape(label)
        );
    }
}

/// From light to dark blue, also distinguishable in greyscale.
fn heat(fraction: f64) -> (String, &'static str) {
    let fraction = fraction.clamp(0.0, 1.0);
    let mix = |from: f64, to: f64| (from + (to - from) * fraction).round() as u8;
    let colour =
        format!("#{:02x}{:02x}{:02x}", mix(247.0, 8.0), mix(251.0, 69.0), mix(255.0, 148.0));
    (colour, if fraction > 0.55 { "#fff" } else { "#000" })
}

fn draw_heat(
    svg: &mut String,
    (rows, columns): (&[f64], &[f64]),
    values: &[Vec<Option<f64>>],
    unit: &str,
    max: f64,
) {
    let (left, top) = (LEFT + 20.0, TOP + 8.0);
    let width = (WIDTH - left - RIGHT) / columns.len().max(1) as f64;
    let height = (HEIGHT - BOTTOM - top) / rows.len().max(1) as f64;
    for (row, (loss, values)) in rows.iter().zip(values).enumerate() {
        let y = top + height * row as f64;
        let middle = at(y + height / 2.0 + 4.0);
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{loss} %</text>",
            at(left - 6.0)
        );
        for (column, value) in values.iter().enumerate() {
            let x = left + width * column as f64;
            let (fill, ink) = value.map_or(("#eee".to_owned(), "#000"), |value| {
                heat(if max > 0.0 { value / max } else { 0.0 })
            });
            let _ = write!(
                svg,
                "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{fill}\" stroke=\"#fff\"/>\
                 <text x=\"{}\" y=\"{middle}\" text-anchor=\"middle\" fill=\"{ink}\">{}</text>",
                at(x),
                at(y),
                at(width),
                at(height),
                at(x + width / 2.0),
                value.map_or("-".to_owned(), super::table::number)
            );
        }
    }
    for (column, delay) in columns.iter().enumerate() {
        let x = at(left + width * (column as f64 + 0.5));
        let _ = write!(
            svg,
            "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{delay} ms</text>",
            HEIGHT - BOTTOM + 16.0
        );
    }
    let _ = write!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#333\">one-way delay; rows: loss{}</text>",
        at((left + WIDTH - RIGHT) / 2.0),
        HEIGHT - 6.0,
        if unit.is_empty() { String::new() } else { format!("; cells: {}", escape(unit)) }
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_rounded() {
        assert_eq!(step(918.0, 5.0), 200.0);
        assert_eq!(step(15.0, 8.0), 2.0);
        assert_eq!(step(1.0, 5.0), 0.2);
        assert_eq!(tick(0.2, 0.2), "0.2");
        assert_eq!(tick(200.0, 200.0), "200");
    }

    #[test]
    fn thinning_keeps_extremes() {
        let points: Vec<(f64, f64)> =
            (0..10_000).map(|i| (f64::from(i), if i == 5_000 { 99.0 } else { 1.0 })).collect();
        let thin = thinned(&points, 1_000);
        assert!(thin.len() <= 1_002 && thin.iter().any(|point| point.1 == 99.0));
        assert!(thin.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }

    #[test]
    fn legend_entries_fit_into_the_plot() {
        for count in [1, 4, 40] {
            let label = "A PROTOCOL WITH A NAME".to_owned();
            let curve = Curve { label, style: Style::Line, points: vec![(1.0, 1.0)] };
            let curves = vec![curve; count];
            let (places, more) = legend_layout(&curves);
            assert_eq!(places.len(), count);
            for (curve, (x, y)) in curves.iter().zip(places) {
                assert!(x >= LEFT && x + legend_entry_width(curve) <= WIDTH, "{count}: {x}");
                assert!(y <= HEIGHT + more, "{count}: {y}");
            }
        }
    }

    #[test]
    fn all_kinds_of_content_give_valid_svg() {
        let curve = Curve {
            label: "<a>".into(),
            style: Style::Stairs,
            points: vec![(1.0, 5.0), (2.0, f64::NAN)],
        };
        let dots = Curve { style: Style::Dots, ..curve.clone() };
        let contents = [
            Content::Curves {
                curves: vec![curve, dots],
                x: "s".into(),
                y: "Mbit/s".into(),
                limit: Some(9.0),
            },
            Content::Curves { curves: Vec::new(), x: "s".into(), y: "y".into(), limit: None },
            Content::Bars { bars: vec![("TCP & co".into(), 3.0)], y: "ms".into() },
            Content::Heat {
                rows: vec![0.0],
                columns: vec![10.0, 20.0],
                values: vec![vec![Some(1.0), None]],
                unit: "Mbit/s".into(),
                max: 0.0,
            },
        ];
        for content in contents {
            let svg = Plot { name: "x".into(), title: "a < b".into(), content }.svg();
            let tree = resvg::usvg::Tree::from_str(&svg, &resvg::usvg::Options::default());
            assert!(tree.is_ok(), "{svg}");
        }
    }
}
