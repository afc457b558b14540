//! How a queue pair waits: for events of the connection manager and of the device, for timers, and
//! for the notification of the completion queue.

use std::{
    future::Future,
    task::{Context, Poll, ready},
    time::Instant,
};

use smbdirect::rdma::work::ProviderErrorKind;

use super::{Phase, VerbsQueuePair, work::SendEntry};

impl VerbsQueuePair {
    /// Waits for a completion, an event or a timer. Returns `Ready` if there may be something to
    /// do.
    pub(super) fn poll_wait(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.is_phase_new = false;
        if let Poll::Ready(event) = self.cm_events.poll_next(context) {
            self.handle_cm_event(event);
            return Poll::Ready(());
        }
        if self.device_fault.is_none()
            && !matches!(self.phase, Phase::Flushing(_))
            && let Poll::Ready(fault) = self.device_events.poll_fault(context)
        {
            self.device_fault = Some(fault);
            // The connection may not be established yet, and the connection manager does not
            // disconnect it before.
            if matches!(self.phase, Phase::Open | Phase::Closing) {
                self.await_fault_report();
            }
            return Poll::Ready(());
        }
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(context).is_ready()
        {
            self.deadline = None;
            self.handle_deadline();
            return Poll::Ready(());
        }
        if self.poll_startup_probe(context) {
            return Poll::Ready(());
        }
        if !self.is_armed {
            if let Err(error) = self.cq.arm() {
                let what = format!("the completion queue cannot be waited for: {error}");
                self.fail_connection(ProviderErrorKind::Local, what);
                return Poll::Ready(());
            }
            self.is_armed = true;
            // The queue is polled once more: completions from before it was armed produce no event.
            return Poll::Ready(());
        }
        self.poll_notification(context)
    }

    /// Waits for the notification of the armed completion queue.
    fn poll_notification(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match ready!(self.completions.poll_read_ready(context)) {
            Ok(mut ready) => match self.cq.take_event() {
                Ok(true) => self.is_armed = false,
                Ok(false) => ready.clear_ready(),
                Err(error) => {
                    drop(ready);
                    let what = format!("the completion channel cannot be read: {error}");
                    self.fail_connection(ProviderErrorKind::Local, what);
                }
            },
            Err(error) => {
                let what = format!("the completion channel cannot be waited for: {error}");
                self.fail_connection(ProviderErrorKind::Local, what);
            }
        }
        Poll::Ready(())
    }

    /// Queues a startup probe if one is due, and returns whether one was due.
    fn poll_startup_probe(&mut self, context: &mut Context<'_>) -> bool {
        let Some(probes) = &mut self.startup_probes else {
            return false;
        };
        if probes.poll_due(context).is_pending() {
            return false;
        }
        if probes.is_finished() {
            self.startup_probes = None;
        }
        if matches!(self.phase, Phase::Open) && self.queue.is_empty() {
            self.queue.push_back(SendEntry::zero_length_write());
            self.internal_work += 1;
            self.flushed = 1;
        }
        true
    }

    /// Polls the completion queue for the configured busy-poll time, and returns whether it held
    /// anything.
    pub(super) fn busy_poll(&mut self) -> bool {
        if self.busy_poll.is_zero() || !matches!(self.phase, Phase::Open) {
            return false;
        }
        let started = Instant::now();
        while started.elapsed() < self.busy_poll {
            if self.poll_completion_queue() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }
}
