//! The options of `smbdirect tdi` and `smbdirect listen --tdi` for the TDI transport.

use anyhow::Result;
use clap::{Args, ValueEnum};
use smbdirect::{
    Config, ConfigError, Settings,
    tdi::{Expedited, NoResponse, NonBlocking, SendSettings, TransportSettings},
};

use super::command::ScriptOptions;
use crate::options::{size, usage};

const TDI: &str = "TDI settings";

/// Returns one of the options that need `--tdi` and were given, if any was.
pub(crate) fn given(tdi: &TdiOptions, script: &ScriptOptions) -> Option<&'static str> {
    tdi.given().or_else(|| script.given())
}

/// Options for how the transport treats sends and received data.
#[derive(Clone, Debug, Args)]
pub(crate) struct TdiOptions {
    /// Most bytes of a TSDU to send [default: --max-fragmented-size]
    #[arg(long, value_name = "SIZE", help_heading = TDI, value_parser = size)]
    max_tsdu: Option<u32>,

    /// Size of the send buffer, for partial and non-blocking sends; 0 is none [default: two TSDUs]
    #[arg(long, value_name = "SIZE", help_heading = TDI, value_parser = size)]
    send_buffer: Option<u32>,

    /// Bytes that are held for receives before the peer gets no more credits [default: 4M]
    #[arg(long, value_name = "SIZE", help_heading = TDI, value_parser = size)]
    receive_buffer: Option<u32>,

    /// Send expedited TSDUs in the order of all others
    #[arg(long, help_heading = TDI)]
    no_expedited: bool,

    /// Take all of a non-blocking send, or nothing
    #[arg(long, help_heading = TDI)]
    atomic: bool,

    /// When a send that expects no response asks the peer for one [default: low]
    #[arg(long, value_enum, value_name = "WHEN", help_heading = TDI)]
    no_response: Option<When>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum When {
    /// Never
    Ignore,
    /// When few credits are left
    Low,
    /// Each time, if no request is outstanding
    Always,
}

impl TdiOptions {
    /// Returns one of these options that was given, if any was.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let given = [
            ("--max-tsdu", self.max_tsdu.is_some()),
            ("--send-buffer", self.send_buffer.is_some()),
            ("--receive-buffer", self.receive_buffer.is_some()),
            ("--no-expedited", self.no_expedited),
            ("--atomic", self.atomic),
            ("--no-response", self.no_response.is_some()),
        ];
        given
            .iter()
            .find(|(_, given)| *given)
            .map(|(name, _)| *name)
    }

    /// # Errors
    /// A usage error that names the option.
    pub(crate) fn settings(&self, config: Config) -> Result<TransportSettings> {
        let mut settings = TransportSettings::new(config);
        if let Some(max_tsdu) = self.max_tsdu {
            settings.send = SendSettings::new(max_tsdu as usize);
        }
        let send = &mut settings.send;
        if send.max_tsdu == 0 {
            return Err(usage("--max-tsdu must be at least 1"));
        }
        let classes = if self.no_expedited { 1 } else { 2 };
        if let Some(bytes) = self.send_buffer {
            let (bytes, least) = (bytes as usize, classes * send.max_tsdu);
            if bytes > 0 && bytes < least {
                return Err(usage(format!(
                    "--send-buffer {bytes} is too small, the least is {least} for TSDUs of up to \
                     {}; 0 is none; see --max-tsdu",
                    send.max_tsdu
                )));
            }
            send.high_water = bytes;
            send.low_water = send.low_water.min(bytes.saturating_sub(1));
        }
        if self.no_expedited {
            send.expedited = Expedited::Ignore;
        }
        if self.atomic {
            send.non_blocking = NonBlocking::Atomic;
        }
        send.no_response = match self.no_response {
            Some(When::Ignore) => NoResponse::Ignore,
            Some(When::Always) => NoResponse::Always,
            Some(When::Low) | None => NoResponse::WhenLowOnCredits,
        };
        if let Some(bytes) = self.receive_buffer {
            if bytes == 0 {
                return Err(usage("--receive-buffer must be at least 1"));
            }
            settings.receive.receive_buffer = bytes as usize;
            settings.receive.lendable = bytes as usize / 2;
            settings.config = with_receive_buffer(&settings.config, bytes as usize)?;
        }
        Ok(settings)
    }
}

/// Sets the receive buffer of the connection below, which holds segments too: the same size, or the
/// least that credits need.
fn with_receive_buffer(config: &Config, bytes: usize) -> Result<Config> {
    let with = |bytes| {
        Config::new(Settings {
            receive_buffer: Some(bytes),
            ..config.clone().into_settings()
        })
    };
    let config = match with(bytes) {
        Err(ConfigError::TooSmall { minimum, .. }) => with(minimum as usize),
        config => config,
    };
    config.map_err(|error| usage(error.to_string()))
}
