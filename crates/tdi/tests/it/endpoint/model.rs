//! Random clients compared with a model: two FIFO queues, TSDUs assembled from parts, and a send
//! buffer that takes a part or nothing.

use std::{collections::VecDeque, sync::Arc};

use bytes::{Buf, Bytes};
use proptest::prelude::*;
use smbdirect::rdma::provider::Provider;
use smbdirect_tdi::{SendFlags, Sending, Status};

use super::ends::{Ends, iwarp, loopback, pattern, starving_settings, within};

/// The model of one class of sends.
#[derive(Debug, Default)]
struct Class {
    /// TSDUs that will arrive, in order.
    complete: VecDeque<Vec<u8>>,
    open: Option<Vec<u8>>,
}

impl Class {
    fn add(&mut self, data: &[u8], ends: bool) {
        self.open.get_or_insert_default().extend_from_slice(data);
        if ends {
            self.complete.extend(self.open.take());
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Send {
        bits: u32,
        length: usize,
    },
    Try {
        expedited: bool,
        partial: bool,
        length: usize,
    },
    Discard {
        expedited: bool,
    },
    Receive,
    Yield,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => (0..16_u32, 0..40_000_usize).prop_map(|(bits, length)| Op::Send { bits, length }),
        4 => (any::<bool>(), any::<bool>(), 1..90_000_usize)
            .prop_map(|(expedited, partial, length)| Op::Try { expedited, partial, length }),
        1 => any::<bool>().prop_map(|expedited| Op::Discard { expedited }),
        3 => Just(Op::Receive),
        2 => Just(Op::Yield),
    ];
    prop::collection::vec(op, 1..60)
}

/// Runs `ops`, and receives all TSDUs.
async fn play(provider: Arc<dyn Provider>, ops: Vec<Op>) -> Result<(), TestCaseError> {
    let mut settings = starving_settings();
    settings.send.max_tsdu = 100_000;
    settings.send.high_water = 200_000;
    settings.send.low_water = 50_000;
    let ends = Ends::with(provider, settings).await;
    let (mut normal, mut expedited) = (Class::default(), Class::default());
    let mut sendings: Vec<(Sending, Status, usize, Bytes)> = Vec::new();
    let mut seed = 0;
    let mut data = |length| {
        seed += 1;
        // Each byte identifies its send.
        pattern(length, seed)
    };
    for op in ops {
        match op {
            Op::Send { bits, length } => {
                // `Try` makes non-blocking sends, because their result decides what will arrive.
                let flags = SendFlags::from_bits_retain(bits << 5) - SendFlags::NON_BLOCKING;
                let class = class(&mut normal, &mut expedited, flags);
                let data = data(length);
                let so_far = class.open.as_ref().map(Vec::len);
                let fits = so_far.map_or(length > 0, |so_far| so_far + length <= 100_000);
                let (status, information) = if fits {
                    (Status::SUCCESS, length)
                } else {
                    (Status::INVALID_PARAMETER, 0)
                };
                if fits {
                    class.add(&data, !flags.contains(SendFlags::PARTIAL));
                }
                let sending = ends.here.send(data.clone(), flags);
                sendings.push((sending, status, information, data));
            }
            Op::Try {
                expedited: is_expedited,
                partial,
                length,
            } => {
                let mut flags = SendFlags::empty();
                flags.set(SendFlags::EXPEDITED, is_expedited);
                flags.set(SendFlags::PARTIAL, partial);
                let class = class(&mut normal, &mut expedited, flags);
                let so_far = class.open.as_ref().map_or(0, Vec::len);
                let mut data = data(length);
                match ends.here.try_send(data.clone(), flags) {
                    Ok(taken) => {
                        prop_assert!(taken > 0 && taken <= length && so_far + length <= 100_000);
                        let rest = data.split_off(taken);
                        class.add(&data, rest.is_empty() && !partial);
                    }
                    Err(Status::DEVICE_NOT_READY) => {}
                    Err(status) => {
                        prop_assert_eq!(status, Status::INVALID_PARAMETER);
                        prop_assert!(so_far + length > 100_000);
                    }
                }
            }
            Op::Discard {
                expedited: is_expedited,
            } => {
                let mut flags = SendFlags::empty();
                flags.set(SendFlags::EXPEDITED, is_expedited);
                let class = class(&mut normal, &mut expedited, flags);
                let is_open = class.open.take().is_some();
                prop_assert_eq!(ends.here.discard_partial(flags), is_open);
                if is_open {
                    // The model does not know which parts were in the buffer and have completed.
                    sendings.clear();
                }
            }
            Op::Receive => take(&ends, &mut normal, &mut expedited).await?,
            Op::Yield => tokio::task::yield_now().await,
        }
    }
    for (class, flags) in [
        (&mut normal, SendFlags::empty()),
        (&mut expedited, SendFlags::EXPEDITED),
    ] {
        if class.open.is_some() {
            class.add(&[], true);
            sendings.push((ends.here.send("", flags), Status::SUCCESS, 0, Bytes::new()));
        }
    }
    while !normal.complete.is_empty() || !expedited.complete.is_empty() {
        take(&ends, &mut normal, &mut expedited).await?;
    }
    for (sending, status, information, buffer) in sendings {
        let done = within(sending).await;
        prop_assert_eq!((done.status, done.information), (status, information));
        prop_assert_eq!(done.buffer.into_bytes(), buffer);
    }
    let room = within(ends.here.send_possible()).await;
    prop_assert_eq!(room, Ok(200_000));
    Ok(())
}

const fn class<'a>(
    normal: &'a mut Class,
    expedited: &'a mut Class,
    flags: SendFlags,
) -> &'a mut Class {
    if flags.contains(SendFlags::EXPEDITED) {
        expedited
    } else {
        normal
    }
}

/// Receives a TSDU, which must be the first of one of the two queues.
async fn take(ends: &Ends, normal: &mut Class, expedited: &mut Class) -> Result<(), TestCaseError> {
    if normal.complete.is_empty() && expedited.complete.is_empty() {
        return Ok(());
    }
    let arrived = ends.arrived().await;
    let is_first = |class: &Class| class.complete.front().is_some_and(|tsdu| *tsdu == arrived);
    let class = if is_first(expedited) {
        expedited
    } else {
        normal
    };
    prop_assert!(
        is_first(class),
        "{} bytes of {}",
        arrived.remaining(),
        arrived[0]
    );
    class.complete.pop_front();
    Ok(())
}

fn run(provider: Arc<dyn Provider>, ops: Vec<Op>) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(play(provider, ops))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    //= TDI-SEND-04 test
    //= TDI-SEND-07 test
    //= TDI-SEND-09 test
    //= TDI-SEND-15 test
    //= TDI-SEND-28 test
    #[test]
    fn random_sends_match_the_model_in_process(ops in ops()) {
        run(loopback(), ops)?;
    }

    //= TDI-SEND-04 test
    //= TDI-SEND-07 test
    //= TDI-SEND-09 test
    //= TDI-SEND-15 test
    //= TDI-SEND-28 test
    #[test]
    fn random_sends_match_the_model_over_tcp(ops in ops()) {
        run(iwarp(), ops)?;
    }
}
