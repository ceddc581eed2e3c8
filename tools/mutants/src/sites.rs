//! Places of a source file at which mutants can be switched, found in its syntax tree.

use std::collections::HashMap;
use std::ops::Range;

use anyhow::{Context, Result};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::list::{Genre, Position};

/// A place in the text, with one or more mutants.
pub struct Site {
    /// What the mutants replace; empty where text is inserted.
    pub range: Range<usize>,
    pub form: Form,
    pub variants: Vec<Variant>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Form {
    /// An expression; each variant is another one.
    Choice,
    /// The start of a function's body; each variant is a value that it returns.
    Body,
    /// The end of a pattern of a match arm, which the variant disables.
    Arm,
}

pub struct Variant {
    /// Index in the list given to [`find`].
    pub mutant: usize,
    pub text: String,
}

/// A mutant as listed, without what only reports need.
#[derive(Clone, Copy)]
pub struct Listed<'a> {
    pub genre: Genre,
    pub start: Position,
    pub replacement: &'a str,
}

/// The sites of a file.
pub struct Found {
    /// In the order of the text, an outer site before the inner ones.
    pub sites: Vec<Site>,
    /// Functions, to which errors of the compiler are assigned that lie in no site.
    pub functions: Vec<Range<usize>>,
    /// Mutants that cannot be switched.
    pub refused: Vec<(usize, Refusal)>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Refusal {
    /// The compiler rejects the mutant.
    Unviable,
    /// The compiler evaluates the place.
    Const,
    /// The mutant has another type than the original, which only a build of its own permits.
    OpaqueType,
    /// The other arms of the match take all values only with the arm that the mutant deletes.
    NoWildcard,
    /// The place is not in the syntax tree.
    Unknown,
}

/// Finds the sites of `mutants` in a file.
pub fn find(source: &str, mutants: &[Listed]) -> Result<Found> {
    let lines = Lines::new(source);
    let mut by_place: HashMap<_, Vec<usize>> = HashMap::new();
    for (index, mutant) in mutants.iter().enumerate() {
        let place = (mutant.genre, lines.offset(mutant.start));
        by_place.entry(place).or_default().push(index);
    }
    let file = syn::parse_file(source).context("cannot parse")?;
    let mut finder = Finder {
        source,
        mutants,
        by_place,
        constant: false,
        found: Found { sites: Vec::new(), functions: Vec::new(), refused: Vec::new() },
    };
    finder.visit_file(&file);
    let Finder { by_place, mut found, .. } = finder;
    let unknown = by_place.into_values().flatten();
    found.refused.extend(unknown.map(|mutant| (mutant, Refusal::Unknown)));
    // Stable, so that of sites with equal ranges the outer one stays first.
    found.sites.sort_by_key(|site| {
        (site.range.start, !site.range.is_empty(), usize::MAX - site.range.end)
    });
    Ok(found)
}

/// Byte offsets of lines.
struct Lines<'a> {
    source: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn new(source: &'a str) -> Self {
        let ends = source.match_indices('\n').map(|(at, _)| at + 1);
        Self { source, starts: std::iter::once(0).chain(ends).collect() }
    }

    fn offset(&self, position: Position) -> usize {
        let start = self.starts[position.line - 1];
        let columns = self.source[start..].char_indices();
        columns.map(|(at, _)| start + at).nth(position.column - 1).unwrap_or(self.source.len())
    }
}

struct Finder<'a> {
    source: &'a str,
    mutants: &'a [Listed<'a>],
    by_place: HashMap<(Genre, usize), Vec<usize>>,
    /// Whether the compiler evaluates the current code.
    constant: bool,
    found: Found,
}

impl Finder<'_> {
    fn take(&mut self, genre: Genre, at: usize) -> Vec<usize> {
        self.by_place.remove(&(genre, at)).unwrap_or_default()
    }

    fn refuse(&mut self, mutants: Vec<usize>, refusal: Refusal) {
        self.found.refused.extend(mutants.into_iter().map(|mutant| (mutant, refusal)));
    }

    fn add(&mut self, range: Range<usize>, form: Form, variants: Vec<Variant>) {
        if variants.is_empty() {
        } else if self.constant {
            let mutants = variants.iter().map(|variant| variant.mutant).collect();
            self.refuse(mutants, Refusal::Const);
        } else {
            self.found.sites.push(Site { range, form, variants });
        }
    }

    /// Variants whose text is their replacement.
    fn replacements(&self, mutants: Vec<usize>) -> Vec<Variant> {
        let text = |mutant: usize| self.mutants[mutant].replacement.to_owned();
        mutants.into_iter().map(|mutant| Variant { mutant, text: text(mutant) }).collect()
    }

    fn constant(&mut self, visit: impl FnOnce(&mut Self)) {
        let outer = std::mem::replace(&mut self.constant, true);
        visit(self);
        self.constant = outer;
    }

    fn function(
        &mut self,
        signature: &syn::Signature,
        block: &syn::Block,
        visit: impl FnOnce(&mut Self),
    ) {
        let outer = std::mem::replace(&mut self.constant, signature.constness.is_some());
        self.found.functions.push(block.span().byte_range());
        if let Some(first) = block.stmts.first() {
            let start = first.span().byte_range().start;
            let mutants = self.take(Genre::FnValue, start);
            if mentions_impl(&signature.output) {
                self.refuse(mutants, Refusal::OpaqueType);
            } else {
                let variants = self.replacements(mutants);
                self.add(start..start, Form::Body, variants);
            }
        }
        visit(self);
        self.constant = outer;
    }

    fn text(&self, node: &impl Spanned) -> &str {
        &self.source[node.span().byte_range()]
    }
}

/// Whether an expression is a chain of conditions with `let`, which stands only in a condition.
fn has_let(expression: &syn::Expr) -> bool {
    match expression {
        syn::Expr::Let(_) => true,
        syn::Expr::Binary(binary) if matches!(binary.op, syn::BinOp::And(_)) => {
            has_let(&binary.left) || has_let(&binary.right)
        }
        _ => false,
    }
}

fn mentions_impl(output: &syn::ReturnType) -> bool {
    struct Search(bool);
    impl<'ast> Visit<'ast> for Search {
        fn visit_type_impl_trait(&mut self, _: &'ast syn::TypeImplTrait) {
            self.0 = true;
        }
    }
    let mut search = Search(false);
    search.visit_return_type(output);
    search.0
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        self.function(&node.sig, &node.block, |v| visit::visit_item_fn(v, node));
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        self.function(&node.sig, &node.block, |v| visit::visit_impl_item_fn(v, node));
    }

    fn visit_trait_item_fn(&mut self, node: &'ast syn::TraitItemFn) {
        match &node.default {
            Some(block) => self.function(&node.sig, block, |v| visit::visit_trait_item_fn(v, node)),
            None => visit::visit_trait_item_fn(self, node),
        }
    }

    fn visit_expr_binary(&mut self, node: &'ast syn::ExprBinary) {
        let mutants = self.take(Genre::BinaryOperator, node.op.span().byte_range().start);
        if has_let(&node.left) || has_let(&node.right) {
            // `||` and the other operators do not take `let`.
            self.refuse(mutants, Refusal::Unviable);
        } else {
            let (left, right) = (self.text(&node.left), self.text(&node.right));
            // Parentheses, because another operator may have another precedence.
            let variant = |mutant: usize| Variant {
                mutant,
                text: format!("({left}) {} ({right})", self.mutants[mutant].replacement),
            };
            let variants = mutants.into_iter().map(variant).collect();
            self.add(node.span().byte_range(), Form::Choice, variants);
        }
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'ast syn::ExprUnary) {
        let mutants = self.take(Genre::UnaryOperator, node.op.span().byte_range().start);
        let operand = self.text(&node.expr).to_owned();
        let variants =
            mutants.into_iter().map(|mutant| Variant { mutant, text: operand.clone() }).collect();
        self.add(node.span().byte_range(), Form::Choice, variants);
        visit::visit_expr_unary(self, node);
    }

    fn visit_expr_match(&mut self, node: &'ast syn::ExprMatch) {
        // cargo-mutants also lists matches whose wildcard has a guard.
        let wildcard = |arm: &syn::Arm| matches!(arm.pat, syn::Pat::Wild(_)) && arm.guard.is_none();
        let has_wildcard = node.arms.iter().any(wildcard);
        for arm in &node.arms {
            let mutants = self.take(Genre::MatchArm, arm.span().byte_range().start);
            if has_wildcard {
                let end = arm.pat.span().byte_range().end;
                let variants = self.replacements(mutants);
                self.add(end..end, Form::Arm, variants);
            } else {
                self.refuse(mutants, Refusal::NoWildcard);
            }
            if let Some((_, guard)) = &arm.guard {
                let range = guard.span().byte_range();
                let mutants = self.take(Genre::MatchArmGuard, range.start);
                let variants = self.replacements(mutants);
                self.add(range, Form::Choice, variants);
            }
        }
        visit::visit_expr_match(self, node);
    }

    fn visit_expr_struct(&mut self, node: &'ast syn::ExprStruct) {
        let whole = node.span().byte_range();
        let mut variants = Vec::new();
        for pair in node.fields.pairs() {
            let field = pair.value().span().byte_range();
            let end = pair.punct().map_or(field.end, |comma| comma.span().byte_range().end);
            for mutant in self.take(Genre::StructField, field.start) {
                let (before, after) = (whole.start..field.start, end..whole.end);
                let text = format!("{}{}", &self.source[before], &self.source[after]);
                variants.push(Variant { mutant, text });
            }
        }
        self.add(whole, Form::Choice, variants);
        visit::visit_expr_struct(self, node);
    }

    fn visit_item_const(&mut self, node: &'ast syn::ItemConst) {
        self.constant(|v| visit::visit_item_const(v, node));
    }

    fn visit_item_static(&mut self, node: &'ast syn::ItemStatic) {
        self.constant(|v| visit::visit_item_static(v, node));
    }

    fn visit_impl_item_const(&mut self, node: &'ast syn::ImplItemConst) {
        self.constant(|v| visit::visit_impl_item_const(v, node));
    }

    fn visit_trait_item_const(&mut self, node: &'ast syn::TraitItemConst) {
        self.constant(|v| visit::visit_trait_item_const(v, node));
    }

    fn visit_variant(&mut self, node: &'ast syn::Variant) {
        self.constant(|v| visit::visit_variant(v, node));
    }

    fn visit_type_array(&mut self, node: &'ast syn::TypeArray) {
        self.constant(|v| visit::visit_type_array(v, node));
    }

    fn visit_expr_repeat(&mut self, node: &'ast syn::ExprRepeat) {
        self.visit_expr(&node.expr);
        self.constant(|v| v.visit_expr(&node.len));
    }

    fn visit_expr_const(&mut self, node: &'ast syn::ExprConst) {
        self.constant(|v| visit::visit_expr_const(v, node));
    }

    fn visit_generic_argument(&mut self, node: &'ast syn::GenericArgument) {
        match node {
            syn::GenericArgument::Const(_) => {
                self.constant(|v| visit::visit_generic_argument(v, node));
            }
            _ => visit::visit_generic_argument(self, node),
        }
    }

    fn visit_pat(&mut self, node: &'ast syn::Pat) {
        self.constant(|v| visit::visit_pat(v, node));
    }
}
