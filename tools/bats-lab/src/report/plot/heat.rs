//! Heat maps over loss and delay.

use std::fmt::Write as _;

use super::{BOTTOM, Grid, HEIGHT, LEFT, RIGHT, TOP, WIDTH, at, escape};
use crate::report::table::number;

/// From light to dark blue, also distinguishable in greyscale.
fn heat(fraction: f64) -> (String, &'static str) {
    let fraction = fraction.clamp(0.0, 1.0);
    let mix = |from: f64, to: f64| (from + (to - from) * fraction).round() as u8;
    let colour =
        format!("#{:02x}{:02x}{:02x}", mix(247.0, 8.0), mix(251.0, 69.0), mix(255.0, 148.0));
    (colour, if fraction > 0.55 { "#fff" } else { "#000" })
}

/// Draws a heat map.
pub(super) fn draw(svg: &mut String, grid: &Grid) {
    let Grid { rows, columns, values, unit, max } = grid;
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
                heat(if *max > 0.0 { value / max } else { 0.0 })
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
                value.map_or("-".to_owned(), number)
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
        HEIGHT - 8.0,
        if unit.is_empty() { String::new() } else { format!("; cells: {}", escape(unit)) }
    );
}
