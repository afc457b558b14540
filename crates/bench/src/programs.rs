//! Other benchmarks, if they are installed: run with the same sizes on the same cores, alternately
//! with our rows. Each wait has a time limit.

use std::{
    io::Read,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::{
    host::{self, Cores},
    plan::{Program, RATE_BYTES, Row},
    work::Sample,
};

/// The programs, and the cores that they run on.
#[derive(Clone, Debug)]
pub struct Programs {
    cores: Cores,
    pinned: bool,
    congestion_control: Option<String>,
}

/// Longest time of one run of a program.
const RUN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a server to start listening.
const SERVER_START_TIME: Duration = Duration::from_millis(150);
/// Maximum number of attempts of one run.
const ATTEMPTS: u32 = 3;
/// Fewest messages of a run.
const MIN_MESSAGES: u64 = 10;

impl Programs {
    /// Creates the programs, which run on the cores of the ends if they are `pinned`.
    pub const fn new(cores: Cores, pinned: bool, congestion_control: Option<String>) -> Self {
        Self {
            cores,
            pinned,
            congestion_control,
        }
    }

    /// Returns the rows for `sizes`, and for each missing program how to install it.
    pub fn rows(&self, sizes: &[u32]) -> (Vec<Row>, Vec<String>) {
        let (mut rows, mut missing) = (Vec::new(), Vec::new());
        for others in [
            &[Program::Iperf3][..],
            &[Program::Ucx],
            &[Program::LibfabricLatency, Program::Libfabric],
        ] {
            if let Some(why) = self.obstacle_to(others[0]) {
                missing.push(why);
                continue;
            }
            for &other in others {
                match other {
                    Program::LibfabricLatency => {
                        rows.push(Row::Program(other, RATE_BYTES));
                    }
                    _ => rows.extend(sizes.iter().map(|&size| Row::Program(other, size))),
                }
            }
        }
        (rows, missing)
    }

    /// Returns why the program of a row cannot be measured, or `None` if it can or is not needed.
    pub fn obstacle(&self, row: &Row) -> Option<String> {
        match row {
            Row::Program(other, _) => self.obstacle_to(*other),
            _ => None,
        }
    }

    fn obstacle_to(&self, other: Program) -> Option<String> {
        let (program, package) = match other {
            Program::Iperf3 => ("iperf3", "iperf3"),
            Program::Ucx | Program::UcxMemory => ("ucx_perftest", "ucx-utils"),
            Program::Libfabric | Program::LibfabricLatency => ("fi_pingpong", "libfabric-bin"),
        };
        if !is_installed(program) {
            return Some(format!("{program} is not installed (package {package})"));
        }
        let algorithm = match other {
            Program::UcxMemory => None,
            _ => self.unavailable_to_others(),
        };
        algorithm.map(|algorithm| {
            format!(
                "{program} would be paced by the system's bbr, and we are not: make {algorithm} \
                 the system's, in a network namespace for instance"
            )
        })
    }

    /// Returns the chosen congestion control if other programs would be measured with the bbr of the system
    /// instead. Programs with an option for it change it only after they have connected, and stay paced.
    fn unavailable_to_others(&self) -> Option<&str> {
        let system = host::congestion_control()?;
        let chosen = self.congestion_control.as_deref()?;
        (system.starts_with("bbr") && chosen != system).then_some(chosen)
    }

    /// Runs a program once with about `count` messages.
    pub(crate) fn run(&self, other: Program, size: u32, count: u64) -> Result<Sample> {
        let mut why = None;
        for _ in 0..ATTEMPTS {
            match self.try_once(other, size, count) {
                Ok(sample) => return Ok(sample),
                Err(error) => why = Some(error),
            }
        }
        Err(why.expect("ATTEMPTS is not 0"))
    }

    fn try_once(&self, other: Program, size: u32, count: u64) -> Result<Sample> {
        let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let (server, mut client) = commands(other, size, count, &free.to_string());
        // Only iperf3 has an option for it.
        if let (Program::Iperf3, Some(algorithm)) = (other, &self.congestion_control) {
            client.args(["-C", algorithm]);
        }
        // A child starts on the core of the thread that starts it.
        self.pin(self.cores.far());
        let server = start(server);
        self.pin(self.cores.near());
        let _server = server?;
        thread::sleep(SERVER_START_TIME);
        let text = start(client)?.output()?;
        match other {
            Program::Iperf3 => iperf3(&text),
            Program::Ucx | Program::UcxMemory => ucx(&text, size),
            Program::Libfabric | Program::LibfabricLatency => {
                libfabric(&text, size, count.max(MIN_MESSAGES))
            }
        }
    }

    fn pin(&self, core: Option<usize>) {
        self.cores.pin(core.filter(|_| self.pinned));
    }
}

fn commands(other: Program, size: u32, count: u64, port: &str) -> (Command, Command) {
    let (size, count) = (size.to_string(), count.max(MIN_MESSAGES).to_string());
    let new = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments);
        command
    };
    match other {
        Program::Iperf3 => (
            new("iperf3", &["-s", "-1", "-B", "127.0.0.1", "-p", port]),
            new(
                "iperf3",
                &[
                    "-c",
                    "127.0.0.1",
                    "-p",
                    port,
                    "-J",
                    "-l",
                    &size,
                    "-k",
                    &count,
                ],
            ),
        ),
        Program::Ucx | Program::UcxMemory => {
            let test = ["-p", port, "-t", "tag_bw", "-s", &size, "-n", &count];
            let mut server = new("ucx_perftest", &["-p", port]);
            let mut client = new("ucx_perftest", &["127.0.0.1", "-w", "10", "-f", "-v"]);
            client.args(test);
            for command in [&mut server, &mut client] {
                match other {
                    Program::UcxMemory => command.env("UCX_TLS", "posix,cma,self"),
                    _ => command.envs([("UCX_TLS", "tcp,self"), ("UCX_NET_DEVICES", "lo")]),
                };
            }
            (server, client)
        }
        Program::Libfabric | Program::LibfabricLatency => {
            let test = ["-p", "tcp", "-e", "msg", "-S", &size, "-I", &count];
            let (mut server, mut client) = (new("fi_pingpong", &test), new("fi_pingpong", &test));
            server.args(["-B", port]);
            client.args(["-P", port, "127.0.0.1"]);
            (server, client)
        }
    }
}

fn is_installed(program: &str) -> bool {
    find(program).is_some()
}

/// Returns the path of a program in PATH.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut paths = std::env::split_paths(&path).map(|directory| directory.join(program));
    paths.find(|path| path.is_file())
}

/// A running program. Dropping the value kills the program.
struct Running(Child);

fn start(mut command: Command) -> Result<Running> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command
        .spawn()
        .with_context(|| format!("cannot run {name}"))?;
    Ok(Running(child))
}

impl Running {
    /// Waits for the end and returns what was printed, which fits into a pipe.
    fn output(mut self) -> Result<String> {
        let started = Instant::now();
        while self.0.try_wait()?.is_none() {
            ensure!(started.elapsed() < RUN_TIMEOUT, "it does not end");
            thread::sleep(Duration::from_millis(2));
        }
        let mut text = Vec::new();
        if let Some(stdout) = self.0.stdout.take() {
            stdout.take(1 << 20).read_to_end(&mut text)?;
        }
        Ok(String::from_utf8_lossy(&text).into_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The program may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn iperf3(text: &str) -> Result<Sample> {
    let report: Value = serde_json::from_str(text).context("iperf3 printed no usable result")?;
    let end = &report["end"];
    let number = |value: &Value| value.as_f64().filter(|number| *number > 0.0);
    let (received, processor) = (&end["sum_received"], &end["cpu_utilization_percent"]);
    let Some((seconds, bytes)) = number(&received["seconds"]).zip(number(&received["bytes"]))
    else {
        bail!("iperf3 did not finish");
    };
    let size = number(&report["start"]["test_start"]["blksize"]).unwrap_or(bytes);
    let mut sample = Sample::reported(seconds, bytes as u64, (bytes / size) as u64);
    let percent = number(&processor["host_total"]).zip(number(&processor["remote_total"]));
    sample.cpu = percent.map(|(near, far)| (near + far) / 100.0 * seconds);
    Ok(sample)
}

fn ucx(text: &str, size: u32) -> Result<Sample> {
    // The columns are iterations, latencies, bandwidths and message rates. The last of each pair is
    // over the whole run.
    let line = text.lines().rev().find(|line| line.split(',').count() == 8);
    let numbers: Vec<f64> = line
        .context("ucx_perftest printed no usable result")?
        .split(',')
        .map(|number| number.trim().parse())
        .collect::<Result<_, _>>()
        .context("ucx_perftest did not finish")?;
    let (count, rate) = (numbers[0], numbers[7]);
    ensure!(rate > 0.0, "ucx_perftest did not finish");
    let bytes = count * f64::from(size);
    Ok(Sample::reported(count / rate, bytes as u64, count as u64))
}

fn libfabric(text: &str, size: u32, count: u64) -> Result<Sample> {
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    let mut words = line
        .filter(|line| line.contains('='))
        .context("fi_pingpong did not finish")?
        .split_whitespace();
    // The seventh column is the time of one direction.
    let microseconds = words.nth(6).and_then(|word| word.parse::<f64>().ok());
    let one_way = microseconds.filter(|time| *time > 0.0);
    let one_way = one_way.context("fi_pingpong printed no usable result")? / 1e6;
    let bytes = count.saturating_mul(u64::from(size) * 2);
    Ok(Sample::reported(one_way * 2.0 * count as f64, bytes, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_each_program_is_parsed() {
        let sample = ucx("iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n 60000,10.387,19.495,18.165,400.75,430.09,51296,60000\n", 8192).unwrap();
        assert_eq!((sample.messages, sample.bytes), (60_000, 60_000 * 8192));
        assert_eq!(sample.seconds, 1.0);
        let sample = libfabric(
            "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n\
             64      1k      =1k      125k        0.34s      0.38     170.50       0.01\n",
            64,
            1000,
        )
        .unwrap();
        assert!(
            (sample.seconds - 0.341).abs() < 1e-9 && sample.messages == 1000,
            "{sample:?}"
        );
        let sample = iperf3(
            r#"{"start":{"test_start":{"blksize":1024}},"end":{
                "sum_received":{"seconds":0.5,"bytes":4096},
                "cpu_utilization_percent":{"host_total":40,"remote_total":60}}}"#,
        )
        .unwrap();
        assert_eq!(
            (sample.seconds, sample.bytes, sample.messages),
            (0.5, 4096, 4)
        );
        assert_eq!(sample.cpu, Some(0.5));
    }

    #[test]
    fn incomplete_output_is_an_error() {
        for text in [
            "",
            "{}",
            "iterations\n",
            "1,2,3,4,5,6,7,x",
            "1,2,3,4,5,6,7,0",
            "bytes",
        ] {
            assert!(iperf3(text).is_err(), "{text}");
            assert!(ucx(text, 1).is_err(), "{text}");
            assert!(libfabric(text, 1, 1).is_err(), "{text}");
        }
    }
}
