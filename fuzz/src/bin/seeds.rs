//! Writes the seeds of every target to `fuzz/corpus/`; files that are there beside them stay.

#![forbid(unsafe_code)]

use std::path::Path;

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (target, _) in ferrule_fuzz::TARGETS {
        let folder = corpus.join(target);
        std::fs::create_dir_all(&folder)?;
        let seeds = ferrule_fuzz::seeds::of(target).into_iter();
        for (name, bytes) in seeds.filter(|(name, _)| ferrule_fuzz::seeds::is_file(target, name)) {
            std::fs::write(folder.join(name), bytes)?;
        }
    }
    Ok(())
}
