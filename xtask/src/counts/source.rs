//! Counts of source code. Tests are left out as the compiler leaves them out: by `#[cfg(test)]`.

use std::{
    collections::BTreeSet,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::{
    Attribute, Expr, ImplItem, Item, Meta, Stmt, TraitItem, punctuated::Punctuated,
    spanned::Spanned, token::Comma, visit::Visit,
};

use crate::workspace::read;

/// What some source files have.
#[derive(Debug, Default)]
pub(super) struct Source {
    /// Lines with code that is not in a test.
    pub(super) lines: usize,
    pub(super) longest_file: Longest,
    pub(super) longest_function: Longest,
}

/// The longest of several things.
#[derive(Debug, Default)]
pub(super) struct Longest {
    pub(super) lines: usize,
    pub(super) name: String,
}

impl Source {
    /// Adds the file `root` of a target and all files of its modules that are not in `seen`.
    pub(super) fn add_tree(&mut self, root: &Path, seen: &mut BTreeSet<PathBuf>) -> Result<()> {
        let folder = root.parent().context("a file has a folder")?;
        self.add_file(root, folder, seen)
    }

    /// Adds what `other` has.
    pub(super) fn merge(&mut self, other: Self) {
        self.lines += other.lines;
        self.longest_file
            .offer(other.longest_file.lines, || other.longest_file.name);
        self.longest_function
            .offer(other.longest_function.lines, || other.longest_function.name);
    }

    /// Adds a file and those of its modules, which are in `folder`.
    fn add_file(&mut self, path: &Path, folder: &Path, seen: &mut BTreeSet<PathBuf>) -> Result<()> {
        if !seen.insert(path.to_owned()) {
            return Ok(());
        }
        let name = path.display();
        let text = read(path)?;
        let file = syn::parse_file(&text).with_context(|| name.to_string())?;
        if is_test(&file.attrs) {
            return Ok(());
        }
        let mut parts = Parts::default();
        parts.visit_file(&file);
        let is_product = |line: &usize| !parts.tests.iter().any(|test| test.contains(line));

        let tokens = text
            .parse()
            .map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
        let mut lines = BTreeSet::new();
        code_lines(tokens, &mut lines);
        self.lines += lines
            .iter()
            .copied()
            .filter(|line| is_product(line))
            .count();
        let length = (1..=text.lines().count()).filter(is_product).count();
        self.longest_file.offer(length, || name.to_string());
        for (function, lines) in parts.functions {
            if is_product(lines.start()) {
                let length = lines.end() - lines.start() + 1;
                self.longest_function
                    .offer(length, || format!("{name}: {function}"));
            }
        }
        for module in parts.modules {
            let (file, folder) = module.locate(path, folder);
            self.add_file(&file, &folder, seen)?;
        }
        Ok(())
    }
}

impl Longest {
    fn offer(&mut self, lines: usize, name: impl FnOnce() -> String) {
        if lines > self.lines {
            *self = Self {
                lines,
                name: name(),
            };
        }
    }
}

/// What a file consists of.
#[derive(Default)]
struct Parts {
    /// Lines that only tests have.
    tests: Vec<RangeInclusive<usize>>,
    functions: Vec<(String, RangeInclusive<usize>)>,
    /// Modules in files of their own.
    modules: Vec<Module>,
    /// Names of the inline modules around the current item.
    around: Vec<String>,
}

/// A module in a file of its own.
struct Module {
    around: Vec<String>,
    name: String,
    /// Its attribute `path`.
    path: Option<String>,
}

impl Module {
    /// Its file, and the folder of its modules. `parent` is the file that declares it, and `folder` that of the
    /// parent's modules.
    fn locate(&self, parent: &Path, folder: &Path) -> (PathBuf, PathBuf) {
        if let Some(path) = &self.path {
            let file = parent.with_file_name(path);
            let folder = file.parent().unwrap_or(folder).to_owned();
            return (file, folder);
        }
        let mut folder = folder.to_owned();
        folder.extend(&self.around);
        let flat = folder.join(format!("{}.rs", self.name));
        folder.push(&self.name);
        if flat.exists() {
            (flat, folder)
        } else {
            (folder.join("mod.rs"), folder)
        }
    }
}

impl<'ast> Visit<'ast> for Parts {
    fn visit_item(&mut self, item: &'ast Item) {
        if self.is_test(attributes_of(item), item) {
            return;
        }
        let Item::Mod(module) = item else {
            syn::visit::visit_item(self, item);
            return;
        };
        if let Some((_, items)) = &module.content {
            self.around.push(module.ident.to_string());
            for item in items {
                self.visit_item(item);
            }
            self.around.pop();
        } else {
            self.modules.push(Module {
                around: self.around.clone(),
                name: module.ident.to_string(),
                path: path_of(&module.attrs),
            });
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Fn(function) => &function.attrs[..],
            ImplItem::Const(constant) => &constant.attrs,
            _ => &[],
        };
        if !self.is_test(attributes, item) {
            syn::visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        let attributes = match item {
            TraitItem::Fn(function) => &function.attrs[..],
            _ => &[],
        };
        if !self.is_test(attributes, item) {
            syn::visit::visit_trait_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !self.is_test(&field.attrs, field) {
            syn::visit::visit_field(self, field);
        }
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        if !self.is_test(&variant.attrs, variant) {
            syn::visit::visit_variant(self, variant);
        }
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        let attributes = match statement {
            Stmt::Local(local) => &local.attrs[..],
            Stmt::Macro(call) => &call.attrs,
            Stmt::Expr(expression, _) => match expression {
                Expr::Assign(assignment) => &assignment.attrs[..],
                Expr::Block(block) => &block.attrs,
                Expr::Call(call) => &call.attrs,
                Expr::If(condition) => &condition.attrs,
                Expr::MethodCall(call) => &call.attrs,
                _ => &[],
            },
            Stmt::Item(_) => &[],
        };
        if !self.is_test(attributes, statement) {
            syn::visit::visit_stmt(self, statement);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.function(&function.sig, &function.block);
        syn::visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.function(&function.sig, &function.block);
        syn::visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.function(&function.sig, block);
        }
        syn::visit::visit_trait_item_fn(self, function);
    }
}

impl Parts {
    /// Notes the lines of a function from its signature to the last brace.
    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let lines = signature.span().start().line..=block.span().end().line;
        self.functions.push((signature.ident.to_string(), lines));
    }

    /// Whether only tests have `node`. If so, notes its lines.
    fn is_test(&mut self, attributes: &[Attribute], node: &impl Spanned) -> bool {
        let is_test = is_test(attributes);
        if is_test {
            let span = node.span();
            self.tests.push(span.start().line..=span.end().line);
        }
        is_test
    }
}

fn attributes_of(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether one of the attributes is `#[test]`, or a `#[cfg]` that holds in tests only.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && attribute
                    .parse_args::<Meta>()
                    .is_ok_and(|condition| needs_test(&condition))
    })
}

/// Whether a condition of `cfg` holds in tests only.
fn needs_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) => {
            let parts = list
                .parse_args_with(Punctuated::<Meta, Comma>::parse_terminated)
                .unwrap_or_default();
            if list.path.is_ident("all") {
                parts.iter().any(needs_test)
            } else {
                list.path.is_ident("any") && parts.iter().all(needs_test)
            }
        }
        Meta::NameValue(_) => false,
    }
}

/// The value of the attribute `path`.
fn path_of(attributes: &[Attribute]) -> Option<String> {
    attributes
        .iter()
        .find_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
                Expr::Lit(literal) => match &literal.lit {
                    syn::Lit::Str(text) => Some(text.value()),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        })
}

/// Adds the lines of all tokens but documentation comments, which are attributes to the compiler.
fn code_lines(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        if is_punctuation(Some(&token), '#') {
            let mut first = BTreeSet::from([token.span().start().line]);
            if is_punctuation(tokens.peek(), '!') {
                first.extend(tokens.next().map(|token| token.span().start().line));
            }
            if tokens.next_if(is_documentation).is_none() {
                lines.append(&mut first);
            }
            continue;
        }
        let span = token.span();
        match token {
            TokenTree::Group(group) => {
                lines.insert(group.span_open().start().line);
                code_lines(group.stream(), lines);
                lines.insert(group.span_close().end().line);
            }
            // A text of several lines is code in each.
            _ => lines.extend(span.start().line..=span.end().line),
        }
    }
}

fn is_punctuation(token: Option<&TokenTree>, character: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punctuation)) if punctuation.as_char() == character)
}

/// Whether a token is `[doc = "..."]`.
fn is_documentation(token: &TokenTree) -> bool {
    let TokenTree::Group(group) = token else {
        return false;
    };
    let tokens: Vec<_> = group.stream().into_iter().take(3).collect();
    matches!(&tokens[..], [TokenTree::Ident(name), equals, TokenTree::Literal(_)]
        if name == "doc" && is_punctuation(Some(equals), '='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_comments_and_blank_lines_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("lib.rs");
        std::fs::write(
            &root,
            "//! Docs.\n\n/// Docs.\n#[derive(Debug)]\npub struct A; // A comment.\n\nfn f() {\n    /* A\n       comment. */\n    \
             let _ = \"two\n        lines\";\n    #[cfg(test)]\n    g();\n}\n\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\n\
             #[cfg(all(test, unix))]\nmod away;\nmod inner { mod deep; }\n",
        )
        .unwrap();
        std::fs::create_dir(folder.path().join("inner")).unwrap();
        std::fs::write(folder.path().join("inner/deep.rs"), "#![cfg(not(test))]\n").unwrap();
        let mut source = Source::default();
        source.add_tree(&root, &mut BTreeSet::new()).unwrap();
        // derive, struct, fn, let and its second line, }, mod inner, and the attribute of the other file.
        assert_eq!(source.lines, 8);
        assert_eq!(source.longest_function.lines, 8);
        assert_eq!(source.longest_file.lines, 22 - 8);
    }
}
