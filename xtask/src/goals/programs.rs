//! iperf3 and UCX, if they are installed: run with the same sizes on the same cores, alternately with our rows. Each
//! wait has a time limit.

use std::{
    env,
    io::Read,
    net::TcpListener,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use smbdirect_bench::{Cores, Program, Row, Sample};

/// Runs the programs on the cores of the two ends.
#[derive(Debug)]
pub(super) struct Programs {
    cores: Cores,
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
    pub(super) const fn new(cores: Cores) -> Self {
        Self { cores }
    }

    /// Returns why the program of a row cannot be measured, or `None` if it can or if the row is of no program.
    pub(super) fn obstacle(&self, row: &Row) -> Option<String> {
        let Row::Program(program, _) = row else {
            return None;
        };
        let (name, package) = match program {
            Program::Iperf3 => ("iperf3", "iperf3"),
            Program::Ucx => ("ucx_perftest", "ucx-utils"),
        };
        (!is_installed(name)).then(|| format!("{name} is not installed (package {package})"))
    }

    /// Runs a program once with about `count` messages.
    pub(super) fn run(&self, program: Program, size: u32, count: u64) -> Result<Sample> {
        let mut why = None;
        for _ in 0..ATTEMPTS {
            match self.try_once(program, size, count) {
                Ok(sample) => return Ok(sample),
                Err(error) => why = Some(error),
            }
        }
        Err(why.expect("ATTEMPTS is not 0"))
    }

    fn try_once(&self, program: Program, size: u32, count: u64) -> Result<Sample> {
        let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let (server, client) = commands(program, size, count, &free.to_string());
        // A child starts on the core of the thread that starts it.
        self.cores.pin(self.cores.far());
        let server = start(server);
        self.cores.pin(self.cores.near());
        let _server = server?;
        thread::sleep(SERVER_START_TIME);
        let text = start(client)?.output()?;
        match program {
            Program::Iperf3 => iperf3(&text),
            Program::Ucx => ucx(&text, size),
        }
    }
}

/// Returns the commands of the server and of the client.
fn commands(program: Program, size: u32, count: u64, port: &str) -> (Command, Command) {
    let (size, count) = (size.to_string(), count.max(MIN_MESSAGES).to_string());
    let new = |program: &str, arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(arguments);
        command
    };
    match program {
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
        Program::Ucx => {
            let mut server = new("ucx_perftest", &["-p", port]);
            let mut client = new("ucx_perftest", &["127.0.0.1", "-w", "10", "-f", "-v"]);
            client.args(["-p", port, "-t", "tag_bw", "-s", &size, "-n", &count]);
            for command in [&mut server, &mut client] {
                command.env("UCX_TLS", "posix,cma,self");
            }
            (server, client)
        }
    }
}

fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_each_program_is_parsed() {
        let sample = ucx("iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n 60000,10.387,19.495,18.165,400.75,430.09,51296,60000\n", 8192).unwrap();
        assert_eq!((sample.messages, sample.bytes), (60_000, 60_000 * 8192));
        assert_eq!(sample.seconds, 1.0);
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
        ] {
            assert!(iperf3(text).is_err(), "{text}");
            assert!(ucx(text, 1).is_err(), "{text}");
        }
    }
}
