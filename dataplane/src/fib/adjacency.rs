//! What a route leads to.

/// Index of an adjacency; 0 is "no route".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct AdjacencyId(pub u32);
