//! Curves with axes and a legend.

use std::fmt::Write as _;

use super::{
    BOTTOM, Curve, HEIGHT, LEFT, LETTER_WIDTH, Paint, RIGHT, Scale, Style, WIDTH, at, draw_y_axis,
    escape, step, tick,
};

/// Maximum number of points of a curve in a plot.
const MAX_POINTS: usize = 1_500;

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

/// Draws curves with their axes and legend.
pub(super) fn draw(
    svg: &mut String,
    curves: &[Curve],
    x: &str,
    y: &str,
    limit: Option<f64>,
    end: Option<f64>,
) {
    let scale = Scale::for_curves(curves, limit, end);
    draw_y_axis(svg, &scale, y);
    let range = scale.max_x - scale.min_x;
    let step = step(range, 7.0);
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
        HEIGHT - 8.0,
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
    for curve in curves {
        draw_curve(svg, curve, &scale);
    }
    legend(svg, curves);
    let _ = write!(
        svg,
        "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y}\" y2=\"{y}\" stroke=\"#333\"/>",
        WIDTH - RIGHT,
        y = HEIGHT - BOTTOM
    );
}

fn draw_curve(svg: &mut String, curve: &Curve, scale: &Scale) {
    let colour = curve.paint.colour();
    let points = thinned(&curve.points, MAX_POINTS);
    if curve.style == Style::Dots {
        let _ = write!(
            svg,
            "<g class=\"curve\" fill=\"{colour}\" fill-opacity=\"{}\">",
            curve.paint.opacity()
        );
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
        "<polyline class=\"curve\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"{} points=\"{}\"/>",
        dash_attribute(curve.paint),
        text.trim_end()
    );
}

/// The pattern of a line as an attribute, if it has one.
fn dash_attribute(paint: Paint) -> String {
    match paint.dash() {
        "" => String::new(),
        dash => format!(" stroke-dasharray=\"{dash}\""),
    }
}

/// Height of a line of the legend below a plot.
const LEGEND_LINE_HEIGHT: f64 = 20.0;

/// Width of a legend entry.
fn legend_entry_width(curve: &Curve) -> f64 {
    curve.label.chars().count() as f64 * LETTER_WIDTH + 34.0
}

/// Positions of the legend entries, in lines below the plot, and the additional height of the plot.
pub(super) fn legend_layout(curves: &[Curve]) -> (Vec<(f64, f64)>, f64) {
    let (mut x, mut line) = (6.0, 1.0);
    let mut places = Vec::new();
    for curve in curves {
        let width = legend_entry_width(curve);
        if x > 6.0 && x + width > WIDTH - RIGHT {
            (x, line) = (6.0, line + 1.0);
        }
        places.push((x, HEIGHT + LEGEND_LINE_HEIGHT * (line - 1.0) + 12.0));
        x += width;
    }
    (places, if curves.is_empty() { 0.0 } else { LEGEND_LINE_HEIGHT * line })
}

fn legend(svg: &mut String, curves: &[Curve]) {
    svg.push_str("<g class=\"legend\">");
    for (index, (curve, (x, y))) in curves.iter().zip(legend_layout(curves).0).enumerate() {
        let colour = curve.paint.colour();
        let _ = write!(svg, "<g data-curve=\"{index}\">");
        if curve.style == Style::Dots {
            let opacity = curve.paint.opacity();
            let _ = write!(
                svg,
                "<circle cx=\"{}\" cy=\"{}\" r=\"4\" fill=\"{colour}\" fill-opacity=\"{opacity}\"/>",
                at(x + 11.0),
                at(y - 4.0)
            );
        } else {
            let _ = write!(
                svg,
                "<line x1=\"{}\" x2=\"{}\" y1=\"{2}\" y2=\"{2}\" stroke=\"{colour}\" stroke-width=\"3\"{3}/>",
                at(x),
                at(x + 22.0),
                at(y - 4.0),
                dash_attribute(curve.paint)
            );
        }
        let _ = write!(
            svg,
            "<text x=\"{}\" y=\"{y}\" fill=\"#333\">{}</text></g>",
            at(x + 26.0),
            escape(&curve.label)
        );
    }
    svg.push_str("</g>");
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let curve = Curve {
                label,
                style: Style::Line,
                paint: Paint::default(),
                points: vec![(1.0, 1.0)],
            };
            let curves = vec![curve; count];
            let (places, more) = legend_layout(&curves);
            assert_eq!(places.len(), count);
            for (curve, (x, y)) in curves.iter().zip(places) {
                assert!(x >= 6.0 && x + legend_entry_width(curve) <= WIDTH, "{count}: {x}");
                assert!(y <= HEIGHT + more, "{count}: {y}");
            }
        }
    }
}
