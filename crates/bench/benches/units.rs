//! The cost of each part of the library.
//!
//! ```sh
//! cargo bench -p smbdirect-bench                        # time and allocations of each unit
//! cargo bench -p smbdirect-bench -- iwarp/transmit      # of those with this in their name
//! cargo bench -p smbdirect-bench -- --instructions      # instructions, against the committed ones
//! SMBDIRECT_BLESS=1 cargo bench -p smbdirect-bench -- --instructions   # which these become
//! ```
//!
//! A unit works in batches, and the preparation of a batch is not measured. The results are
//! nanoseconds and allocations per segment. Therefore this file reads the clock itself, instead of
//! using a library that times closures.

#[path = "units/instructions.rs"]
mod instructions;
#[path = "units/mod.rs"]
mod units;

use std::{
    env,
    process::ExitCode,
    time::{Duration, Instant},
};

use units::{Case, Unit};

/// Time for which a unit runs before it is measured.
const WARM_UP: Duration = Duration::from_millis(60);
const MEASURED: Duration = Duration::from_millis(350);
/// Shortest time of a sample, to which reading the clock adds little.
const SAMPLE: Duration = Duration::from_micros(20);
/// Batches whose allocations are counted.
const COUNTED: usize = 20;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let flag = |name| arguments.iter().any(|argument| argument == name);
    let mut names = arguments.iter().filter(|name| !name.starts_with("--"));
    let filter = names.next().map_or("", String::as_str);
    let mut cases = units::all();
    cases.retain(|case| case.name.contains(filter));
    if cases.is_empty() {
        eprintln!("no unit has {filter:?} in its name");
        return ExitCode::FAILURE;
    }
    if flag(instructions::INSIDE) {
        instructions::run_all(&cases);
        return ExitCode::SUCCESS;
    }
    if flag("--instructions") {
        return instructions::gate(&cases, filter);
    }
    println!(
        "{:42} {:>10} {:>10} {:>8} {:>12}",
        "median and best of each unit", "ns", "best", "GiB/s", "allocations"
    );
    for case in &cases {
        time(case);
    }
    ExitCode::SUCCESS
}

/// Prints the row of one unit.
fn time(case: &Case) {
    let mut unit = case.build();
    let start = Instant::now();
    while start.elapsed() < WARM_UP {
        sample(&mut *unit);
    }
    let mut samples = Vec::new();
    let start = Instant::now();
    while start.elapsed() < MEASURED || samples.len() < 10 {
        samples.push(sample(&mut *unit));
    }
    samples.sort_by(|one, other| one.0.total_cmp(&other.0));
    let (median, gibs) = samples[samples.len() / 2];
    let gibs = match gibs {
        0.0 => String::new(),
        gibs => format!("{gibs:.2}"),
    };
    let (mut allocations, mut items) = (0, 0);
    for _ in 0..COUNTED {
        unit.feed();
        let counted = allocation_counter::measure(|| items += unit.run().items);
        allocations += counted.count_total;
    }
    println!(
        "{:42} {median:10.1} {:10.1} {gibs:>8} {:12.3} per {}",
        case.name,
        samples[0].0,
        allocations as f64 / items as f64,
        case.item,
    );
}

/// Nanoseconds for an item, and GiB in a second.
fn sample(unit: &mut dyn Unit) -> (f64, f64) {
    let (mut time, mut items, mut bytes) = (Duration::ZERO, 0, 0);
    while time < SAMPLE || items == 0 {
        unit.feed();
        let start = Instant::now();
        let done = unit.run();
        time += start.elapsed();
        items += done.items;
        bytes += done.bytes;
    }
    let gibs = bytes as f64 / (1_u64 << 30) as f64 / time.as_secs_f64();
    (time.as_nanos() as f64 / items as f64, gibs)
}
