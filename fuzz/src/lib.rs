//! Fuzz targets; see fuzz_targets/.
