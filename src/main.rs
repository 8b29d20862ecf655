//! The ferrule program.
fn main() {}
