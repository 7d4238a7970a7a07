//! Walks the tree beside the decoded values, to find the place of each.

use crate::node::{Content, Node};
use crate::report::Span;

/// A node and the place of the key that it stands behind.
///
/// What is not there is stood in for by what it would be in: a problem is then shown at the
/// nearest place that exists.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'n> {
    node: &'n Node,
    key: Option<Span>,
}

impl<'n> Cursor<'n> {
    pub fn new(node: &'n Node) -> Self {
        Self { node, key: None }
    }

    /// The value of a key.
    pub fn get(self, key: &str) -> Self {
        match &self.node.content {
            Content::Map(entries) => {
                entries
                    .iter()
                    .find(|entry| entry.key == key)
                    .map_or(self, |entry| Self {
                        node: &entry.value,
                        key: entry.key_span,
                    })
            }
            _ => self,
        }
    }

    /// The item of a list, or the value of the entry of a map, at a position.
    pub fn at(self, position: usize) -> Self {
        match &self.node.content {
            Content::List(items) => items.get(position).map_or(self, |node| Self {
                node,
                key: self.key,
            }),
            Content::Map(entries) => entries.get(position).map_or(self, |entry| Self {
                node: &entry.value,
                key: entry.key_span,
            }),
            _ => self,
        }
    }

    /// The place of a single value; of the key, for a list or a map.
    pub fn span(self) -> Option<Span> {
        match self.node.content {
            Content::Scalar(_) => self.node.span.or(self.key),
            _ => self.key.or(self.node.span),
        }
    }

    /// The place of the key.
    pub fn key_span(self) -> Option<Span> {
        self.key.or(self.node.span)
    }
}
