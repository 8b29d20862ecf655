//! Filter stages.
