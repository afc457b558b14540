//! The initiator's side of the startup: connect TCP, send the Request, read the Reply.

use super::{
    config::IwarpConfig,
    error::not_connected,
    options::new_socket,
    socket::{FrameError, Socket},
};
use crate::{
    deadline::within,
    iwarp::{
        handshake::{malformed, terminate},
        mpa::FrameKind,
        startup::{Agreement, ReplyFault},
    },
    provider::ConnectRequest,
    work::{ProviderError, ProviderErrorKind},
};

/// The reason why an attempt to connect failed.
pub(super) enum ConnectFailure {
    /// The peer may not support this revision of MPA.
    MaybeRevision(ProviderError),
    /// Another revision of MPA would not help.
    Other(ProviderError),
}

impl ConnectFailure {
    /// Returns the error for the caller.
    pub(super) fn into_error(self) -> ProviderError {
        let (Self::MaybeRevision(error) | Self::Other(error)) = self;
        error
    }
}

/// Connects TCP and exchanges startup frames of MPA revision `revision`.
pub(super) async fn initiate(
    config: &IwarpConfig,
    request: &ConnectRequest,
    revision: u8,
) -> Result<(Socket, Agreement), ConnectFailure> {
    let timed_out = || {
        let what = "the peer did not answer in time";
        ConnectFailure::Other(ProviderError::new(ProviderErrorKind::TimedOut, what))
    };
    let failed = |error| ConnectFailure::Other(not_connected(&error));
    let connecting = new_socket(request.address, config)
        .map_err(failed)?
        .connect(request.address);
    let stream = within(config.connect_timeout, connecting)
        .await
        .ok_or_else(timed_out)?
        .map_err(failed)?;
    let socket = Socket::new(stream, config).map_err(failed)?;
    let frame = config
        .preferences()
        .request(revision, &request.private_data);
    //= MPA-30
    let reply = within(config.connect_timeout, async {
        socket.write_frame(&frame).await?;
        socket.read_frame(FrameKind::Reply).await
    })
    .await
    .ok_or_else(timed_out)?
    .map_err(|error| match error {
        FrameError::BeforeFirstByte(error) => ConnectFailure::MaybeRevision(error),
        FrameError::Lost(error) => ConnectFailure::Other(error),
        FrameError::Malformed(error) => ConnectFailure::Other(malformed(error)),
    })?;
    let agreement = config
        .preferences()
        .agree(&frame, &reply)
        .map_err(|fault| {
            let last_bytes = terminate(&fault, frame.crc || reply.crc);
            if !last_bytes.is_empty() {
                socket.write_and_shut_down(&last_bytes);
            }
            let error = fault.to_error();
            if let ReplyFault::Revision(_) = fault {
                ConnectFailure::MaybeRevision(error)
            } else {
                ConnectFailure::Other(error)
            }
        })?;
    Ok((socket, agreement))
}
