//! Packs each corpus into one file, as git holds it, and unpacks it for cargo-fuzz.
//!
//! ```sh
//! cargo run -p smbdirect-fuzz --example corpora -- unpack rdmap_stream   # corpus/rdmap_stream/*
//! cargo fuzz run -s none --features libfuzzer rdmap_stream
//! cargo run -p smbdirect-fuzz --example corpora -- pack rdmap_stream     # corpus/rdmap_stream.tar.gz
//! ```
//!
//! Without a target it processes all of them. Packing the same inputs gives the same file.

use std::{
    env, fs,
    fs::File,
    io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use flate2::{Compression, GzBuilder, read::GzDecoder};

fn main() -> io::Result<ExitCode> {
    let mut arguments = env::args().skip(1);
    let action = match arguments.next().as_deref() {
        Some("pack") => pack,
        Some("unpack") => unpack,
        _ => {
            eprintln!("usage: corpora pack|unpack [TARGET]...");
            return Ok(ExitCode::from(2));
        }
    };
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let mut targets: Vec<String> = arguments.collect();
    if targets.is_empty() {
        targets = all(&corpus)?;
    }
    for target in targets {
        let archive = corpus.join(format!("{target}.tar.gz"));
        action(&corpus.join(&target), &archive)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the names of all targets that have a corpus, packed or not.
fn all(corpus: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(corpus)? {
        let name = entry?.file_name().into_string();
        let name = name.expect("targets have names in ASCII");
        names.push(name.trim_end_matches(".tar.gz").to_owned());
    }
    names.sort();
    names.dedup();
    Ok(names)
}

/// Writes the files of a folder into an archive. If the folder does not exist, the archive is not
/// changed.
fn pack(folder: &Path, archive: &Path) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(());
    };
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<_>>()?;
    paths.sort();
    // Without a time in the header the archive is reproducible.
    let packed = GzBuilder::new()
        .mtime(0)
        .write(File::create(archive)?, Compression::best());
    let mut packed = tar::Builder::new(packed);
    packed.mode(tar::HeaderMode::Deterministic);
    for path in &paths {
        let name = path.file_name().expect("it was listed");
        packed.append_path_with_name(path, name)?;
    }
    packed.into_inner()?.finish()?;
    println!("{}: {} inputs", archive.display(), paths.len());
    Ok(())
}

/// Writes the files of an archive into a folder.
fn unpack(folder: &Path, archive: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let packed = GzDecoder::new(File::open(archive)?);
    tar::Archive::new(packed).unpack(folder)?;
    println!("{}", folder.display());
    Ok(())
}
