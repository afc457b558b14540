//! Counts of a public API, from rustdoc's JSON.

use std::collections::BTreeSet;

use rustdoc_types::{Attribute, Crate, Id, Item, ItemEnum, Struct, StructKind, Use};

/// What a user of a library meets.
#[derive(Debug, Default)]
pub(super) struct Face {
    pub(super) types: usize,
    pub(super) traits: usize,
    pub(super) fields: usize,
    /// Structs whose fields are all public and that may not get further ones.
    pub(super) literals: usize,
    pub(super) methods: usize,
    pub(super) examples: usize,
}

impl Face {
    /// Counts the first of `crates`. The others have the items that it re-exports.
    pub(super) fn of(crates: &[Crate]) -> Self {
        let mut walk = Walk {
            crates,
            seen: BTreeSet::new(),
            face: Self::default(),
        };
        walk.item(0, crates[0].root);
        walk.face
    }
}

/// A walk over the items of a library.
struct Walk<'a> {
    crates: &'a [Crate],
    /// Items that were counted, by crate.
    seen: BTreeSet<(usize, Id)>,
    face: Face,
}

impl Walk<'_> {
    fn item(&mut self, home: usize, id: Id) {
        // Items that rustdoc strips are not there.
        let Some(item) = self.crates[home].index.get(&id) else {
            return;
        };
        if !self.seen.insert((home, id)) {
            return;
        }
        match &item.inner {
            ItemEnum::Module(module) => self.items(home, &module.items),
            ItemEnum::Use(import) => self.import(home, import),
            ItemEnum::Struct(of) => {
                self.face.types += 1;
                self.fields(of, item);
                self.impls(home, &of.impls);
            }
            ItemEnum::Enum(of) => {
                self.face.types += 1;
                self.impls(home, &of.impls);
            }
            ItemEnum::Union(of) => {
                self.face.types += 1;
                self.face.fields += of.fields.len();
                self.impls(home, &of.impls);
            }
            ItemEnum::TypeAlias(_) => self.face.types += 1,
            ItemEnum::Trait(of) => {
                self.face.traits += 1;
                self.items(home, &of.items);
            }
            ItemEnum::Function(_) => {
                self.face.methods += 1;
                let has_example = item.docs.as_ref().is_some_and(|docs| docs.contains("```"));
                self.face.examples += usize::from(has_example);
            }
            _ => {}
        }
    }

    fn items(&mut self, home: usize, ids: &[Id]) {
        for &id in ids {
            self.item(home, id);
        }
    }

    /// Follows a re-export, unless its target is a module of another package: that has pages of its own.
    fn import(&mut self, home: usize, import: &Use) {
        let Some(id) = import.id else { return };
        let here = &self.crates[home];
        if here.index.contains_key(&id) {
            self.item(home, id);
            return;
        }
        let Some(target) = here.paths.get(&id) else {
            return;
        };
        for (home, other) in self.crates.iter().enumerate() {
            let found = other
                .paths
                .iter()
                .find(|(id, summary)| other.index.contains_key(id) && summary.path == target.path);
            if let Some((&id, _)) = found
                && !matches!(other.index[&id].inner, ItemEnum::Module(_))
            {
                self.item(home, id);
                return;
            }
        }
    }

    fn fields(&mut self, of: &Struct, item: &Item) {
        let (public, all_public) = match &of.kind {
            StructKind::Unit => (0, true),
            StructKind::Tuple(fields) => (
                fields.iter().flatten().count(),
                fields.iter().all(Option::is_some),
            ),
            StructKind::Plain {
                fields,
                has_stripped_fields,
            } => (fields.len(), !has_stripped_fields),
        };
        self.face.fields += public;
        let may_grow = item.attrs.contains(&Attribute::NonExhaustive);
        self.face.literals += usize::from(all_public && !may_grow);
    }

    /// Counts the methods of a type that are no trait's.
    fn impls(&mut self, home: usize, ids: &[Id]) {
        for id in ids {
            if let Some(item) = self.crates[home].index.get(id)
                && let ItemEnum::Impl(block) = &item.inner
                && block.trait_.is_none()
            {
                self.items(home, &block.items);
            }
        }
    }
}
