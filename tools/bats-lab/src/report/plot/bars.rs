//! Bars: in a row, and in three dimensions over loss and delay.

use std::fmt::Write as _;

use super::{
    BOTTOM, Bar, Grid, HEIGHT, LEFT, LETTER_WIDTH, Paint, RIGHT, Scale, TOP, WIDTH, at,
    draw_y_axis, escape,
};
use crate::report::table::number;

/// Height of a line of labels.
const LINE_HEIGHT: f64 = 20.0;

/// Width of the place of a bar.
fn slot(bars: &[Bar]) -> f64 {
    (WIDTH - LEFT - RIGHT) / bars.len().max(1) as f64
}

/// Whether all labels fit below their bars; otherwise they stand in a list below the plot.
fn labels_fit(bars: &[Bar]) -> bool {
    let slot = slot(bars);
    bars.iter().all(|bar| bar.label.chars().count() as f64 * LETTER_WIDTH <= slot)
}

/// Additional height of a plot for its labels.
pub(super) fn label_height(bars: &[Bar]) -> f64 {
    if labels_fit(bars) { 0.0 } else { LINE_HEIGHT * bars.len() as f64 }
}

/// Draws bars with their y axis.
pub(super) fn draw(svg: &mut String, bars: &[Bar], y: &str) {
    let most = bars.iter().map(|bar| bar.value + bar.error.unwrap_or(0.0)).fold(0.0, f64::max);
    let scale = Scale { min_x: 0.0, max_x: 1.0, max_y: if most > 0.0 { most * 1.1 } else { 1.0 } };
    draw_y_axis(svg, &scale, y);
    let (slot, fit) = (slot(bars), labels_fit(bars));
    for (index, bar) in bars.iter().enumerate() {
        let left = LEFT + slot * index as f64 + slot * 0.2;
        let top = scale.y(bar.value);
        let middle = left + slot * 0.3;
        let error = bar.error.unwrap_or(0.0);
        let _ = write!(
            svg,
            "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\" fill-opacity=\"{}\"/>",
            at(left),
            at(top),
            at(slot * 0.6),
            at(HEIGHT - BOTTOM - top),
            bar.paint.colour(),
            bar.paint.opacity()
        );
        let (low, high) = (scale.y(bar.value - error), scale.y(bar.value + error));
        if error > 0.0 {
            let _ = write!(
                svg,
                "<path d=\"M{0} {1}V{2}M{3} {1}h8M{3} {2}h8\" stroke=\"#000\" fill=\"none\"/>",
                at(middle),
                at(low),
                at(high),
                at(middle - 4.0)
            );
        }
        // Of many bars only the list has the values.
        if fit || slot >= 6.0 * LETTER_WIDTH {
            let _ = write!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                at(middle),
                at(high - 4.0),
                number(bar.value)
            );
        }
        let below = HEIGHT - BOTTOM + 16.0;
        if fit {
            let _ = write!(
                svg,
                "<text x=\"{}\" y=\"{below}\" text-anchor=\"middle\" fill=\"#333\">{}</text>",
                at(middle),
                escape(&bar.label)
            );
        } else {
            let _ = write!(
                svg,
                "<text x=\"{}\" y=\"{below}\" text-anchor=\"middle\" fill=\"#333\">{1}</text>\
                 <text x=\"6\" y=\"{2}\" fill=\"#333\">{1}: {3} ({4})</text>",
                at(middle),
                index + 1,
                at(HEIGHT + LINE_HEIGHT * index as f64 + 4.0),
                escape(&bar.label),
                number(bar.value)
            );
        }
    }
}

/// A colour made darker; `factor` 1 keeps it.
#[deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
fn shaded(colour: &str, factor: f64) -> String {
    let part = |from: usize| {
        let digits = colour.get(from..).and_then(|rest| rest.get(..2));
        let value = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        (f64::from(value.unwrap_or(0)) * factor).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", part(1), part(3), part(5))
}

/// Height of the highest bar, and of the ground.
const RISE: f64 = 150.0;
const GROUND: f64 = 108.0;

/// Draws bars over loss and delay: the least of both at the back.
pub(super) fn draw_3d(svg: &mut String, grid: &Grid, paint: Paint) {
    let (rows, columns) = (grid.rows.len() as f64, grid.columns.len() as f64);
    let cells = (rows + columns).max(1.0);
    // Places are rhombi of twice this width and depth.
    let (across, along) = ((WIDTH - 170.0) / cells, GROUND / cells);
    let origin = (85.0 + rows * across, TOP + RISE - 12.0);
    // The place of a point on the ground.
    let place = |row: f64, column: f64| {
        (origin.0 + (column - row) * across, origin.1 + (column + row) * along)
    };
    let corners = |points: &[(f64, f64)]| -> String {
        points.iter().map(|(x, y)| format!("{},{} ", at(*x), at(*y))).collect()
    };
    let ground = [place(0.0, 0.0), place(0.0, columns), place(rows, columns), place(rows, 0.0)];
    let _ = write!(
        svg,
        "<polygon points=\"{}\" fill=\"#f4f4f4\" stroke=\"#bbb\"/>",
        corners(&ground).trim_end()
    );
    let colour = paint.colour();
    let has_room = cells <= 14.0;
    // From back to front, so that nearer bars cover others.
    let mut order: Vec<(usize, usize)> = (0..grid.rows.len())
        .flat_map(|row| (0..grid.columns.len()).map(move |column| (row, column)))
        .collect();
    order.sort_by_key(|(row, column)| row + column);
    for (row, column) in order {
        let value = grid.values.get(row).and_then(|values| values.get(column)).copied().flatten();
        let Some(value) = value else { continue };
        let height = if grid.max > 0.0 { RISE * (value / grid.max).clamp(0.0, 1.0) } else { 0.0 };
        let (r, c) = (row as f64, column as f64);
        let foot = [(0.15, 0.15), (0.15, 0.85), (0.85, 0.85), (0.85, 0.15)]
            .map(|(row, column)| place(r + row, c + column));
        let top = foot.map(|(x, y)| (x, y - height));
        for (face, factor) in [
            (vec![foot[2], foot[3], top[3], top[2]], 0.8),
            (vec![foot[1], foot[2], top[2], top[1]], 0.6),
            (top.to_vec(), 1.0),
        ] {
            let _ = write!(
                svg,
                "<polygon points=\"{}\" fill=\"{}\" stroke=\"#fff\" stroke-width=\"0.6\"/>",
                corners(&face).trim_end(),
                shaded(colour, factor)
            );
        }
        if has_room {
            let (x, y) = place(r + 0.5, c + 0.5);
            let _ = write!(
                svg,
                "<text class=\"small\" x=\"{}\" y=\"{}\" font-size=\"10\" text-anchor=\"middle\" \
                 stroke=\"#fff\" stroke-width=\"3\" paint-order=\"stroke\">{}</text>",
                at(x),
                at(y - height + 3.0),
                number(value)
            );
        }
    }
    // Labels along the two front edges.
    for (index, delay) in grid.columns.iter().enumerate() {
        let (x, y) = place(rows + 0.15, index as f64 + 0.5);
        label(svg, (x, y + 14.0), "end", &format!("{delay} ms"));
    }
    for (index, loss) in grid.rows.iter().enumerate() {
        let (x, y) = place(index as f64 + 0.5, columns + 0.15);
        label(svg, (x, y + 14.0), "start", &format!("{loss} %"));
    }
    label(svg, (6.0, HEIGHT - 8.0), "start", "left: one-way delay");
    let unit = if grid.unit.is_empty() { "" } else { "; height: " };
    label(svg, (WIDTH - 6.0, HEIGHT - 8.0), "end", &format!("right: loss{unit}{}", grid.unit));
}

fn label(svg: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) {
    let _ = write!(
        svg,
        "<text x=\"{}\" y=\"{}\" text-anchor=\"{anchor}\" fill=\"#333\">{}</text>",
        at(x),
        at(y),
        escape(text)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_of_a_grid_are_as_high_as_their_values() {
        let grid = Grid {
            rows: vec![0.0, 5.0],
            columns: vec![10.0],
            values: vec![vec![Some(40.0)], vec![Some(10.0)]],
            unit: "Mbit/s".into(),
            max: 40.0,
        };
        let mut svg = String::new();
        draw_3d(&mut svg, &grid, Paint::default());
        // The ground, then three faces of each bar.
        assert_eq!(svg.matches("<polygon").count(), 1 + 2 * 3);
        let faces: Vec<&str> = svg.split("points=\"").skip(2).collect();
        let height = |face: &str| {
            let ys = face
                .split('"')
                .next()
                .unwrap()
                .split(' ')
                .map(|point| point.split(',').nth(1).unwrap().parse::<f64>().unwrap());
            let ys: Vec<f64> = ys.collect();
            ys[1] - ys[2]
        };
        assert!((height(faces[0]) - RISE).abs() < 0.2, "{}", height(faces[0]));
        assert!((height(faces[3]) - RISE / 4.0).abs() < 0.2, "{}", height(faces[3]));
        for text in ["10 ms", "5 %", ">40.00<", "height: Mbit/s"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
    }

    #[test]
    fn long_labels_are_listed_below() {
        let bar = |label: &str| Bar {
            label: label.into(),
            value: 2.0,
            error: None,
            paint: Paint::default(),
        };
        assert_eq!(label_height(&[bar("BRTP"), bar("TCP")]), 0.0);
        let many: Vec<Bar> = (0..12).map(|_| bar("A LONG PROTOCOL NAME")).collect();
        assert_eq!(label_height(&many), 12.0 * LINE_HEIGHT);
        let mut svg = String::new();
        draw(&mut svg, &many, "ms");
        assert!(svg.contains(">12<") && svg.contains(">12: A LONG PROTOCOL NAME (2.00)<"), "{svg}");
    }
}
