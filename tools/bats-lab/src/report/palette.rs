//! Colours and line patterns: one colour per protocol through all plots of a test.

use crate::result::CaseResult;

/// The palette of Okabe and Ito, distinguishable with any colour vision, then darker colours.
pub(crate) const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#7a4f9a"];
/// Line patterns (`stroke-dasharray`), for curves of the same colour.
const DASHES: [&str; 4] = ["", "7 3", "2 2", "9 3 2 3"];

/// How a curve or bar is painted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Paint {
    /// Index of the subject: its colour and, beyond the palette, its pattern.
    pub(crate) subject: usize,
    /// Index among the curves of the subject: its pattern.
    pub(crate) variant: usize,
}

impl Paint {
    pub(crate) fn new(subject: usize, variant: usize) -> Self {
        Self { subject, variant }
    }

    pub(crate) fn colour(self) -> &'static str {
        COLOURS[self.subject % COLOURS.len()]
    }

    pub(crate) fn dash(self) -> &'static str {
        DASHES[(self.subject / COLOURS.len() + self.variant) % DASHES.len()]
    }

    /// Opacity of bars and points, which have no pattern.
    pub(crate) fn opacity(self) -> f64 {
        [1.0, 0.55, 0.75, 0.35][self.variant % 4]
    }
}

/// The subjects of plots in the order in which they get colours: protocols, then competing flows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Palette(Vec<String>);

impl Palette {
    /// The palette of all protocols and flows of these tests.
    pub(crate) fn new<'a>(cases: impl IntoIterator<Item = &'a CaseResult> + Clone) -> Self {
        let mut palette = Self::default();
        let all = || cases.clone().into_iter().flat_map(|case| &case.measurements);
        for one in all() {
            palette.add(&one.label);
        }
        for flow in all().flat_map(|one| &one.flows) {
            palette.add(&flow.label);
        }
        palette
    }

    fn add(&mut self, label: &str) {
        if self.find(label).is_none() {
            self.0.push(label.to_owned());
        }
    }

    /// The index of a subject, if it is a protocol or flow of the test.
    pub(crate) fn find(&self, label: &str) -> Option<usize> {
        self.0.iter().position(|known| known == label)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_beyond_the_palette_differ_in_their_pattern() {
        let paints: Vec<Paint> = (0..32).map(|subject| Paint::new(subject, 0)).collect();
        for (index, one) in paints.iter().enumerate() {
            for other in &paints[..index] {
                assert_ne!((one.colour(), one.dash()), (other.colour(), other.dash()));
            }
        }
        assert_eq!(Paint::new(3, 1).colour(), Paint::new(3, 0).colour());
        assert_ne!(Paint::new(3, 1).dash(), Paint::new(3, 0).dash());
    }
}
