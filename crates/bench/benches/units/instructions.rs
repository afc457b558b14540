//! Counts the instructions of the units by callgrind, and compares them with the committed counts.
//!
//! A count does not depend on the load of the machine. It depends on the compiler, and on the
//! processor as valgrind emulates it. If these differ from those of the baseline, the counts are
//! only printed.

use std::{
    collections::BTreeMap,
    env,
    fmt::Write,
    fs,
    hint::black_box,
    io,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use serde::Deserialize;

use crate::units::{Case, Unit};

/// The argument of the process that runs under valgrind.
pub(crate) const INSIDE: &str = "--inside-callgrind";
/// Relative difference from the committed count that is marked.
const MARKED: f64 = 0.03;
/// Largest relative difference from the committed count. Code is not shaped for the last percent.
const TOLERANCE: f64 = 0.1;
/// Differences below this many instructions per item are ignored. Changed inlining alone can cause them.
const SLACK: f64 = 8.0;
/// Batches before the counted ones, in which buffers grow to their final size.
const WARM_UP: usize = 12;
/// Number of batches that are counted: the longest period after which the batches of a unit repeat.
const COUNTED: usize = 24;

/// The committed counts.
#[derive(Debug, Deserialize)]
struct Baseline {
    /// The compiler, libc, valgrind and processor of the counts.
    environment: BTreeMap<String, String>,
    /// Instructions for one item of each unit.
    instructions: BTreeMap<String, f64>,
}

/// Runs all units in the process under valgrind. Valgrind counts from one to the other of two
/// functions whose names it was given.
pub(crate) fn run_all(cases: &[Case]) {
    println!("{}", features());
    for case in cases.iter().filter(|case| is_steady(case)) {
        let mut unit = case.build();
        let mut items = 0;
        for round in 0..WARM_UP + COUNTED {
            unit.feed();
            if round < WARM_UP {
                unit.run();
            } else {
                items += counted_batch(&mut *unit);
            }
        }
        counted_end();
        println!("{items} {}", case.name);
    }
}

/// Returns whether each run takes the same instructions. Runs of the handle differ: it reads the
/// clock, and gathers messages that are sent within microseconds.
fn is_steady(case: &Case) -> bool {
    !case.name.starts_with("loopback/")
}

#[inline(never)]
fn counted_batch(unit: &mut dyn Unit) -> u64 {
    black_box(unit.run()).items
}

/// At this function valgrind writes its counts and resets them.
#[inline(never)]
fn counted_end() {
    black_box(());
}

/// Returns the features of the processor that select code.
fn features() -> String {
    #[cfg(target_arch = "x86_64")]
    let features = [
        ("sse4.2", is_x86_feature_detected!("sse4.2")),
        ("pclmulqdq", is_x86_feature_detected!("pclmulqdq")),
        ("avx2", is_x86_feature_detected!("avx2")),
        ("vpclmulqdq", is_x86_feature_detected!("vpclmulqdq")),
        ("avx512", is_x86_feature_detected!("avx512f")),
    ];
    #[cfg(not(target_arch = "x86_64"))]
    let features: [(&str, bool); 0] = [];
    features
        .iter()
        .filter(|(_, there)| *there)
        .fold(env::consts::ARCH.to_owned(), |all, (name, _)| {
            all + " " + name
        })
}

/// Counts, and compares or blesses.
pub(crate) fn gate(cases: &[Case], filter: &str) -> ExitCode {
    let Some(valgrind) = first_line("valgrind", &["--version"]) else {
        println!("instructions are not counted: there is no valgrind");
        let required = env::var_os("SMBDIRECT_REQUIRE_TOOLS").is_some();
        return ExitCode::from(u8::from(required));
    };
    let (features, counts) = match count(filter) {
        Ok(counts) => counts,
        Err(error) => {
            eprintln!("callgrind did not count: {error}");
            return ExitCode::FAILURE;
        }
    };
    let environment = BTreeMap::from([
        ("rustc".to_owned(), or_unknown(first_line("rustc", &["-V"]))),
        (
            "libc".to_owned(),
            or_unknown(first_line("getconf", &["GNU_LIBC_VERSION"])),
        ),
        ("processor".to_owned(), features),
        ("valgrind".to_owned(), valgrind),
    ]);
    if env::var_os("SMBDIRECT_BLESS").is_some() {
        assert!(filter.is_empty(), "all units are blessed together");
        fs::write(path(), render(&environment, &counts)).expect("the file can be written");
        println!("{} units blessed", counts.len());
        return ExitCode::SUCCESS;
    }
    let text = fs::read_to_string(path()).expect("the baseline is committed");
    let baseline: Baseline = toml::from_str(&text).expect("the baseline was written here");
    let strangers = compare(cases, filter, &baseline, &counts);
    if baseline.environment != environment {
        println!("the baseline was made elsewhere, and judges nothing here:");
        for (name, here) in &environment {
            let there = baseline.environment.get(name).map_or("", String::as_str);
            if here != there {
                println!("  {name}: {here} here, {there} there");
            }
        }
        return ExitCode::SUCCESS;
    }
    if strangers == 0 {
        println!("all are as the baseline has them");
        return ExitCode::SUCCESS;
    }
    println!(
        "{strangers} of them differ from the baseline by more than {} % and {SLACK} instructions. If \
         that is meant, make them the new one:\n  SMBDIRECT_BLESS=1 cargo bench -p smbdirect-bench -- \
         --instructions",
        TOLERANCE * 100.0
    );
    ExitCode::FAILURE
}

/// Prints all counts next to the committed ones, and returns how many differ.
fn compare(
    cases: &[Case],
    filter: &str,
    baseline: &Baseline,
    counts: &BTreeMap<String, f64>,
) -> usize {
    let mut strangers = 0;
    println!("{:42} {:>12} {:>12}", "instructions", "here", "baseline");
    for case in cases.iter().filter(|case| is_steady(case)) {
        let (name, item) = (&case.name, case.item);
        let here = counts[name];
        let Some(there) = baseline.instructions.get(name) else {
            println!("{name:42} {here:12.2} {:>12}      NEW", "");
            strangers += 1;
            continue;
        };
        let change = here / there - 1.0;
        let differs = |limit| change.abs() > limit && (here - there).abs() > SLACK;
        strangers += usize::from(differs(TOLERANCE));
        let verdict = match change {
            _ if !differs(MARKED) => "",
            more if more > 0.0 => "MORE",
            _ => "FEWER",
        };
        let percent = change * 100.0;
        println!("{name:42} {here:12.2} {there:12.2} {percent:+7.2} % per {item} {verdict}");
    }
    for name in baseline.instructions.keys() {
        if name.contains(filter) && !counts.contains_key(name) {
            println!("{name:42} GONE");
            strangers += 1;
        }
    }
    strangers
}

/// Instructions for one item of each unit, and the processor as the units saw it.
fn count(filter: &str) -> io::Result<(String, BTreeMap<String, f64>)> {
    let directory = tempfile::tempdir()?;
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--quiet", "--collect-atstart=no"])
        .args([
            "--toggle-collect=*counted_batch*",
            "--dump-after=*counted_end*",
        ])
        .arg(format!(
            "--callgrind-out-file={}/counts",
            directory.path().display()
        ))
        .arg(env::current_exe()?)
        .args([INSIDE, filter]);
    let output = command.output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(io::Error::other(said));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let mut lines = said.lines();
    let features = or_unknown(lines.next().map(str::to_owned));
    let mut counts = BTreeMap::new();
    for (number, line) in (1..).zip(lines) {
        let dump = directory.path().join(format!("counts.{number}"));
        let malformed = || io::Error::other(format!("{}: {line}", dump.display()));
        let (items, name) = line.split_once(' ').ok_or_else(malformed)?;
        let items: u64 = items.parse().map_err(|_| malformed())?;
        let text = fs::read_to_string(&dump)?;
        let total: u64 = text
            .lines()
            .find_map(|line| line.strip_prefix("summary: "))
            .and_then(|total| total.trim().parse().ok())
            .ok_or_else(malformed)?;
        counts.insert(name.to_owned(), total as f64 / items as f64);
    }
    Ok((features, counts))
}

fn render(environment: &BTreeMap<String, String>, counts: &BTreeMap<String, f64>) -> String {
    let mut text = String::from(
        "# Instructions for one item of each unit, as callgrind counts them. Written by\n\
         # SMBDIRECT_BLESS=1 cargo bench -p smbdirect-bench -- --instructions\n\n[environment]\n",
    );
    for (name, value) in environment {
        let _ = writeln!(text, "{name} = {value:?}");
    }
    text.push_str("\n[instructions]\n");
    for (name, count) in counts {
        let _ = writeln!(text, "{name:?} = {count:.2}");
    }
    text
}

fn path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/instructions.toml")
}

fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().map(str::to_owned)
}

fn or_unknown(what: Option<String>) -> String {
    what.unwrap_or_else(|| "unknown".to_owned())
}
