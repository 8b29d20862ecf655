//! The packet path.
