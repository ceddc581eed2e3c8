//! The text of a file in which all its mutants can be switched on.

use std::ops::Range;

use crate::sites::{Form, Found, Site, Variant};

/// The text with switches, and where its parts are in it.
#[derive(Default)]
pub struct Rewritten {
    pub text: String,
    /// Texts of variants, by the index of the mutant.
    pub variants: Vec<(Range<usize>, usize)>,
    /// Texts of sites, by their index.
    pub sites: Vec<(Range<usize>, usize)>,
    pub functions: Vec<Range<usize>>,
}

/// Writes the text with the variants whose mutants are `kept`. `number` gives a mutant's number; those of
/// a site follow each other.
pub fn rewrite(
    source: &str,
    found: &Found,
    kept: impl Fn(usize) -> bool,
    number: impl Fn(usize) -> u32,
) -> Rewritten {
    let mut writer =
        Writer { source, kept, number, output: Rewritten::default(), places: Vec::new() };
    let sites: Vec<(usize, &Site)> = found.sites.iter().enumerate().collect();
    writer.write(0..source.len(), &sites);
    let Writer { mut output, places, .. } = writer;
    let place = |at: usize| {
        let next = places.partition_point(|&(original, _)| original <= at);
        let (original, written) = places[next - 1];
        written + (at - original)
    };
    output.functions =
        found.functions.iter().map(|range| place(range.start)..place(range.end)).collect();
    output
}

struct Writer<'a, Kept, Number> {
    source: &'a str,
    kept: Kept,
    number: Number,
    output: Rewritten,
    /// Offsets in the source and in the output at which copied text starts.
    places: Vec<(usize, usize)>,
}

impl<Kept: Fn(usize) -> bool, Number: Fn(usize) -> u32> Writer<'_, Kept, Number> {
    /// Writes a range of the source, which contains `sites`.
    fn write(&mut self, range: Range<usize>, sites: &[(usize, &Site)]) {
        let mut at = range.start;
        let mut rest = sites;
        while let Some((&(index, site), others)) = rest.split_first() {
            let inner = others.iter().take_while(|(_, other)| encloses(&site.range, &other.range));
            let (inside, after) = others.split_at(inner.count());
            self.copy(at..site.range.start);
            let start = self.output.text.len();
            self.site(site, inside);
            self.output.sites.push((start..self.output.text.len(), index));
            at = site.range.end;
            rest = after;
        }
        self.copy(at..range.end);
    }

    fn copy(&mut self, range: Range<usize>) {
        self.places.push((range.start, self.output.text.len()));
        self.output.text.push_str(&self.source[range]);
    }

    fn site(&mut self, site: &Site, inside: &[(usize, &Site)]) {
        let kept: Vec<&Variant> =
            site.variants.iter().filter(|variant| (self.kept)(variant.mutant)).collect();
        let first = (self.number)(site.variants[0].mutant);
        let switch = format!("crate::mutants_switch::at({first}, {})", site.variants.len());
        match site.form {
            _ if kept.is_empty() => self.write(site.range.clone(), inside),
            Form::Choice => {
                self.push(&format!("(match {switch} {{ 0 => ("));
                self.write(site.range.clone(), inside);
                self.push("), ");
                self.arms(first, &kept, "(", ")");
                self.push(" })");
            }
            Form::Body => {
                self.push(&format!("match {switch} {{ 0 => {{}} "));
                self.arms(first, &kept, "return ", "");
                self.push(" } ");
            }
            Form::Arm => {
                let start = self.output.text.len();
                self.push(&format!(" if {switch} == 0"));
                let written = start..self.output.text.len();
                self.output.variants.push((written, kept[0].mutant));
            }
        }
    }

    /// Writes the arms of variants; the last one takes all other numbers.
    fn arms(&mut self, first: u32, kept: &[&Variant], before: &str, after: &str) {
        for (place, variant) in kept.iter().enumerate() {
            if place + 1 == kept.len() {
                self.push("_");
            } else {
                let choice = (self.number)(variant.mutant) - first + 1;
                self.push(&choice.to_string());
            }
            self.push(" => ");
            let start = self.output.text.len();
            self.push(before);
            self.push(&variant.text);
            self.push(after);
            self.output.variants.push((start..self.output.text.len(), variant.mutant));
            self.push(", ");
        }
    }

    fn push(&mut self, text: &str) {
        self.output.text.push_str(text);
    }
}

fn encloses(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    !outer.is_empty() && outer.start <= inner.start && inner.end <= outer.end
}
