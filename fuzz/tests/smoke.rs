//! Runs the targets with mutations of their corpora, the same ones every time, within a minute.
//! `SMBDIRECT_FUZZ_ITERATIONS` sets their number per target, `SMBDIRECT_FUZZ_SEED` the seed. An
//! input that fails is stored in `artifacts`.

#[allow(dead_code, reason = "the replay uses the rest")]
mod common;

use std::{env, fs};

use fastrand::Rng;

use self::common::{Attempt, corpus, folder, target};

/// Default number of mutations per target.
const ITERATIONS: u64 = 500;
/// Length of the longest input in bytes. Longer ones would only be slower.
const LONGEST: usize = 2000;

/// How many times fewer inputs of calls of libsmbdirect and of TDI are tried: each makes connections, and so takes
/// milliseconds where others take microseconds.
const CALLS_DIVISOR: u64 = 50;

fn smoke(name: &str) {
    let run = target(name);
    let number = |variable| env::var(variable).ok().map(|text| text.parse().unwrap());
    let iterations: u64 = number("SMBDIRECT_FUZZ_ITERATIONS").unwrap_or(ITERATIONS);
    let iterations = match name {
        "capi_calls" | "tdi_calls" => iterations.div_ceil(CALLS_DIVISOR),
        _ => iterations,
    };
    let seed: u64 = number("SMBDIRECT_FUZZ_SEED").unwrap_or(1);
    let corpus: Vec<_> = corpus(name).into_iter().map(|input| input.bytes).collect();
    let mut random = Rng::with_seed(seed);
    for iteration in 0..iterations {
        let data = mutated(&corpus, &mut random);
        let _attempt = Attempt::new(|| {
            let folder = folder("artifacts", name);
            let path = folder.join(format!("smoke-{seed}-{iteration}"));
            fs::create_dir_all(folder).unwrap();
            fs::write(&path, &data).unwrap();
            eprintln!("{} fails", path.display());
        });
        run(&data);
    }
    println!("{name}: {iterations} inputs");
}

/// Returns an input of the corpus with a few changes.
fn mutated(corpus: &[Vec<u8>], random: &mut Rng) -> Vec<u8> {
    let mut data = corpus[random.usize(..corpus.len())].clone();
    for _ in 0..=random.usize(..6) {
        let at = random.usize(..data.len() + 1);
        let end = (at + 1 + random.usize(..16)).min(data.len());
        match random.usize(..7) {
            0 if at < data.len() => data[at] ^= 1 << random.usize(..8),
            1 if at < data.len() => data[at] = random.u8(..),
            2 if at < data.len() => data[at] = [0, 1, 0x7f, 0x80, 0xfe, 0xff][random.usize(..6)],
            3 => drop(data.drain(at.min(end)..end)),
            4 => {
                let bytes = data[at.min(end)..end].to_vec();
                data.splice(at..at, bytes);
            }
            5 => data.insert(at, random.u8(..)),
            _ => {
                // The rest of another input.
                let other = &corpus[random.usize(..corpus.len())];
                data.truncate(at);
                data.extend_from_slice(&other[random.usize(..other.len() + 1)..]);
            }
        }
    }
    data.truncate(LONGEST);
    data
}

#[cfg(unix)]
#[test]
fn capi_calls() {
    smoke("capi_calls");
}

#[test]
fn capture_reader() {
    smoke("capture_reader");
}

#[test]
fn decode() {
    smoke("decode");
}

#[test]
fn engine_operations() {
    smoke("engine_operations");
}

#[test]
fn gateway_translation() {
    smoke("gateway_translation");
}

#[test]
fn memory_table() {
    smoke("memory_table");
}

#[test]
fn mpa_stream() {
    smoke("mpa_stream");
}

#[test]
fn rdmap_stream() {
    smoke("rdmap_stream");
}

#[test]
fn roce_endpoint() {
    smoke("roce_endpoint");
}

#[test]
fn roce_packet() {
    smoke("roce_packet");
}

#[test]
fn roce_queue_pair() {
    smoke("roce_queue_pair");
}

#[test]
fn smb2() {
    smoke("smb2");
}

#[cfg(target_os = "linux")]
#[test]
fn tdi_calls() {
    smoke("tdi_calls");
}

#[test]
fn wire_decode() {
    smoke("wire_decode");
}

#[cfg(target_os = "linux")]
#[test]
fn work_completions() {
    smoke("work_completions");
}
