//! `smbdirect gateway ctl`: what an administrator does with a running gateway, by its control socket.

use std::{cmp::Reverse, path::PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::Value;

use crate::{
    metrics::{Endpoint, ask},
    options::Address,
    report::{self, Report},
};

/// Administer a running gateway by its control socket
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Ctl {
    /// The path of --control
    #[arg(value_name = "SOCKET", default_value = "/run/smbdirect/gateway.sock")]
    socket: PathBuf,

    /// Print JSON, for programs
    #[arg(long, global = true)]
    pub(super) json: bool,

    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the sessions
    Sessions,
    /// End a session
    End {
        /// The number of the session in the list, or SERVICE/NUMBER if there are several services
        #[arg(value_parser = session)]
        id: String,
    },
    /// End the sessions of a server, whose clients then connect again
    EndAll {
        /// The server, as the settings name it
        server: Address,
    },
    /// List the servers
    Servers,
    /// Give a server no new clients
    Drain {
        /// The server, as the settings name it
        server: Address,
    },
    /// Give a drained server new clients again
    Undrain {
        /// The server, as the settings name it
        server: Address,
    },
    /// End the gateway when its requests are answered, as SIGTERM does
    DrainAll,
    /// Show the memory of each session, the largest first
    Memory,
}

const EXAMPLES: &str = "\x1b[1m\x1b[4mExamples:\x1b[0m
  smbdirect gateway ctl sessions
  smbdirect gateway ctl end 12
  smbdirect gateway ctl /run/other.sock drain node1
  smbdirect gateway ctl end-all node1

\x1b[1m\x1b[4mWith --json:\x1b[0m
  {\"event\":\"session\", service, id, client, server, upstream, seconds, memory_bytes, CARRIED}
  {\"event\":\"server\", service, server, is_up, state, is_drained, sessions, fault,
   seconds_up, checks}   state: what the checks saw last, as docs/clusters.md lists it
  {\"event\":\"done\", ended}   of the others; ended: the sessions that end-all has ended
  CARRIED is that of smbdirect gateway";

impl Ctl {
    pub(super) async fn run(self) -> Result<bool> {
        let report = Report::new(self.json);
        match &self.action {
            Action::Sessions => self.sessions(report, false).await?,
            Action::Memory => self.sessions(report, true).await?,
            Action::Servers => self.servers(report).await?,
            Action::End { id } => drop(self.change(report, &format!("/end/{id}")).await?),
            Action::EndAll { server } => {
                let answer = self.change(report, &format!("/end-all/{server}")).await?;
                let ended = answer["ended"].as_u64().unwrap_or_default();
                report.line(format_args!("ended {}", report::plural(ended, "session")));
            }
            Action::Drain { server } => {
                self.change(report, &format!("/drain/{server}")).await?;
            }
            Action::Undrain { server } => {
                self.change(report, &format!("/undrain/{server}")).await?;
            }
            Action::DrainAll => drop(self.change(report, "/drain-all").await?),
        }
        Ok(true)
    }

    async fn ask(&self, method: Method, path: &str) -> Result<Value> {
        let endpoint = Endpoint::Path(self.socket.clone());
        let (status, answer) = ask(&endpoint, method, path, "--control").await?;
        if !status.is_success() {
            let text = String::from_utf8_lossy(&answer);
            bail!(
                "{}",
                report::printable(text.lines().next().unwrap_or_default())
            );
        }
        serde_json::from_slice(&answer)
            .context("the answer is not JSON; versions of the two programs may differ")
    }

    async fn change(&self, report: Report, path: &str) -> Result<Value> {
        let mut answer = self.ask(Method::POST, path).await?;
        answer["event"] = "done".into();
        report.event(&answer);
        Ok(answer)
    }

    async fn list(&self, path: &str, kind: &str) -> Result<Vec<Value>> {
        let Value::Array(mut list) = self.ask(Method::GET, path).await? else {
            bail!("the answer is not a list; versions of the two programs may differ");
        };
        for one in list.iter_mut().filter_map(Value::as_object_mut) {
            one.insert("event".into(), kind.into());
        }
        Ok(list)
    }

    async fn sessions(&self, report: Report, by_memory: bool) -> Result<()> {
        let mut list = self.list("/sessions", "session").await?;
        let memory = |session: &Value| session["memory_bytes"].as_u64().unwrap_or_default();
        if by_memory {
            list.sort_by_key(|session| Reverse(memory(session)));
        }
        let mut rows = vec![
            [
                "SESSION",
                "CLIENT",
                "SERVER",
                "AGE",
                "TO SERVER",
                "TO CLIENT",
                "MEMORY",
            ]
            .map(str::to_owned),
        ];
        for session in &list {
            report.event(session);
            let bytes = |key: &str| report::bytes(session[key].as_u64().unwrap_or_default());
            let age = session["seconds"].as_f64().unwrap_or_default();
            rows.push([
                format!("{}/{}", text(&session["service"]), session["id"]),
                text(&session["client"]),
                text(&session["server"]),
                report::time(std::time::Duration::try_from_secs_f64(age).unwrap_or_default()),
                bytes("bytes_to_server"),
                bytes("bytes_to_client"),
                bytes("memory_bytes"),
            ]);
        }
        print(report, &rows);
        if by_memory {
            let all = list.iter().map(memory).sum();
            report.line(format_args!("{} in all", report::bytes(all)));
        }
        Ok(())
    }

    async fn servers(&self, report: Report) -> Result<()> {
        let mut rows =
            vec![["SERVICE", "SERVER", "STATE", "SESSIONS", "LAST FAULT"].map(str::to_owned)];
        for server in self.list("/servers", "server").await? {
            report.event(&server);
            let health = match (&server["is_up"], server["state"].as_str()) {
                (Value::Bool(false), Some("closes")) => "full",
                (Value::Bool(false), Some("nameless")) => "nameless",
                (Value::Bool(false), _) => "down",
                _ => "up",
            };
            let state = match (&server["is_drained"], health) {
                (Value::Bool(true), "up") => "drained".into(),
                (Value::Bool(true), health) => format!("drained, {health}"),
                (_, health) => health.to_owned(),
            };
            rows.push([
                text(&server["service"]),
                text(&server["server"]),
                state,
                server["sessions"].to_string(),
                text(&server["fault"]),
            ]);
        }
        print(report, &rows);
        Ok(())
    }
}

/// Checks that a text may be that of a session, because it becomes a part of a path.
fn session(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if text.chars().all(is_plain) {
        Ok(text.to_owned())
    } else {
        Err("a session is NUMBER or SERVICE/NUMBER".into())
    }
}

/// Returns the text of a value, without control characters.
fn text(value: &Value) -> String {
    report::printable(value.as_str().unwrap_or("-"))
}

/// Prints a table, whose first row is the header.
fn print<const COLUMNS: usize>(report: Report, rows: &[[String; COLUMNS]]) {
    let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
        let lengths = rows.iter().map(|row| row[column].chars().count());
        lengths.max().unwrap_or_default()
    });
    for row in rows {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        report.line(line.trim_end());
    }
}
