//! Plots as SVG: lines, steps, points, bars in two and three dimensions and heat maps, with rounded
//! axis ticks.
//!
//! Plots are narrow, so that their text can be read where a page is 390 pixels wide.

mod bars;
mod curves;
mod heat;

use std::fmt::Write as _;

use super::palette::Paint;
pub(crate) use curves::thinned;

pub(crate) const WIDTH: f64 = 640.0;
pub(crate) const HEIGHT: f64 = 330.0;
pub(crate) const LEFT: f64 = 68.0;
pub(crate) const RIGHT: f64 = 14.0;
pub(crate) const TOP: f64 = 40.0;
pub(crate) const BOTTOM: f64 = 46.0;
/// Width that a letter may need: pages that are narrow use larger letters.
const LETTER_WIDTH: f64 = 10.4;

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
    pub(crate) paint: Paint,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A bar.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
    /// Half the width of the confidence interval.
    pub(crate) error: Option<f64>,
    pub(crate) paint: Paint,
}

/// Values over loss (rows, in percent) and one-way delay (columns, in ms).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Grid {
    pub(crate) rows: Vec<f64>,
    pub(crate) columns: Vec<f64>,
    pub(crate) values: Vec<Vec<Option<f64>>>,
    pub(crate) unit: String,
    /// The top of the scale, equal for grids that are compared.
    pub(crate) max: f64,
}

/// The content of a plot.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    Curves {
        curves: Vec<Curve>,
        x: String,
        y: String,
        limit: Option<f64>,
        /// The x axis runs from zero to this value; by default it fits the points.
        end: Option<f64>,
    },
    Bars {
        bars: Vec<Bar>,
        y: String,
    },
    /// Bars in three dimensions.
    Bars3d {
        grid: Grid,
        paint: Paint,
    },
    Heat(Grid),
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

/// The scale of the axes.
pub(crate) struct Scale {
    pub(crate) min_x: f64,
    pub(crate) max_x: f64,
    pub(crate) max_y: f64,
}

impl Scale {
    /// A scale that contains all points, and zero on the y axis. With `end` the x axis runs from
    /// zero to there, so that plots over time begin and end together.
    pub(crate) fn for_curves(curves: &[Curve], limit: Option<f64>, end: Option<f64>) -> Self {
        let all = || {
            curves
                .iter()
                .flat_map(|curve| &curve.points)
                .filter(|p| p.0.is_finite() && p.1.is_finite())
        };
        let max_x = all().map(|point| point.0).fold(end.unwrap_or(0.0), f64::max);
        let min_x = all().map(|point| point.0).fold(f64::INFINITY, f64::min);
        let max_y = all().map(|point| point.1).fold(limit.unwrap_or(0.0), f64::max);
        // The x axis begins at zero, unless all values are far from it and are no times of a test.
        let is_far = end.is_none() && min_x.is_finite() && min_x > 0.5 * max_x;
        let min_x = if is_far { min_x } else { 0.0 };
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
        let height = HEIGHT
            + match &self.content {
                Content::Curves { curves, .. } => curves::legend_layout(curves).1,
                Content::Bars { bars, .. } => bars::label_height(bars),
                _ => 0.0,
            };
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"DejaVu Sans, Verdana, sans-serif\" font-size=\"12\" role=\"img\" aria-label=\"{}\">\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>",
            escape(&self.title)
        );
        // Long titles take two lines.
        for (line, y) in title_lines(&self.title).iter().zip([14.0, 30.0]) {
            let _ = write!(
                svg,
                "<text class=\"title\" x=\"6\" y=\"{y}\" font-weight=\"bold\">{}</text>",
                escape(line)
            );
        }
        match &self.content {
            Content::Curves { curves, x, y, limit, end } => {
                curves::draw(&mut svg, curves, x, y, *limit, *end);
            }
            Content::Bars { bars, y } => bars::draw(&mut svg, bars, y),
            Content::Bars3d { grid, paint } => bars::draw_3d(&mut svg, grid, *paint),
            Content::Heat(grid) => heat::draw(&mut svg, grid),
        }
        svg.push_str("</svg>");
        svg
    }
}

/// The title in at most two lines that fit into the plot.
fn title_lines(title: &str) -> Vec<String> {
    // Bold letters of 12 pixels.
    let most = (WIDTH / 8.6) as usize;
    let mut lines = vec![String::new()];
    for word in title.split(' ') {
        let Some(line) = lines.last_mut() else { break };
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > most {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    if lines.len() > 2 {
        lines.truncate(2);
        if let Some(last) = lines.last_mut() {
            last.push_str(" ...");
        }
    }
    lines
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
        "<text x=\"15\" y=\"{0}\" transform=\"rotate(-90 15 {0})\" text-anchor=\"middle\">{1}</text></g>",
        at((TOP + HEIGHT - BOTTOM) / 2.0),
        escape(label)
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
    fn time_axes_begin_and_end_together() {
        let curve = |from: f64, to: f64| Curve {
            label: "x".into(),
            style: Style::Line,
            paint: Paint::default(),
            points: vec![(from, 1.0), (to, 1.0)],
        };
        for (from, to) in [(0.0, 3.0), (9.0, 10.0), (2.0, 2.0)] {
            let scale = Scale::for_curves(&[curve(from, to)], None, Some(10.0));
            assert_eq!((scale.min_x, scale.max_x), (0.0, 10.0));
        }
        // Values that are no times may begin elsewhere.
        assert_eq!(Scale::for_curves(&[curve(9.0, 10.0)], None, None).min_x, 9.0);
    }

    #[test]
    fn long_titles_take_two_lines() {
        assert_eq!(title_lines("iperf: throughput"), ["iperf: throughput"]);
        let lines = title_lines(&"word ".repeat(20));
        assert_eq!(lines.len(), 2);
        let lines = title_lines(&"word ".repeat(100));
        assert!(lines.len() == 2 && lines[1].ends_with("..."), "{lines:?}");
    }

    #[test]
    fn all_kinds_of_content_give_valid_svg() {
        let curve = Curve {
            label: "<a>".into(),
            style: Style::Stairs,
            paint: Paint::new(9, 1),
            points: vec![(1.0, 5.0), (2.0, f64::NAN)],
        };
        let dots = Curve { style: Style::Dots, ..curve.clone() };
        let bar = |label: &str| Bar {
            label: label.into(),
            value: 3.0,
            error: Some(9.0),
            paint: Paint::default(),
        };
        let grid = Grid {
            rows: vec![0.0],
            columns: vec![10.0, 20.0],
            values: vec![vec![Some(1.0), None]],
            unit: "Mbit/s".into(),
            max: 0.0,
        };
        let empty =
            Grid { rows: Vec::new(), columns: Vec::new(), values: Vec::new(), ..grid.clone() };
        let contents = [
            Content::Curves {
                curves: vec![curve, dots],
                x: "s".into(),
                y: "Mbit/s".into(),
                limit: Some(9.0),
                end: Some(4.0),
            },
            Content::Curves {
                curves: Vec::new(),
                x: "s".into(),
                y: "y".into(),
                limit: None,
                end: None,
            },
            Content::Bars { bars: vec![bar("TCP & co"), bar("x")], y: "ms".into() },
            Content::Bars { bars: Vec::new(), y: "ms".into() },
            Content::Bars3d { grid: grid.clone(), paint: Paint::default() },
            Content::Bars3d { grid: empty.clone(), paint: Paint::default() },
            Content::Heat(empty),
            Content::Heat(grid),
        ];
        for content in contents {
            let svg = Plot { name: "x".into(), title: "a < b".into(), content }.svg();
            let tree = resvg::usvg::Tree::from_str(&svg, &resvg::usvg::Options::default());
            assert!(tree.is_ok(), "{svg}");
        }
    }
}
