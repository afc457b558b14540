"""Liveness: whoever has something to send sends it, and two ends with nothing to send fall silent.

The delivery is fair: each message arrives at last, each end is polled at last with room for a Send, and a timer that
holds the first grant expires. Then a rank that no step raises, and that a fair step lowers, proves that the next segment
of end 0 is sent. By the symmetry of the rules the same is true of end 1. Since each segment is sent, so are all.

stage  state, while a segment of end 0 waits             fair step              rank within the stage
  3    no credit, no grant to it, its messages on the way  end 1 receives         messages on the way
  2    no credit, nothing on the way that could bring one  end 1 is polled        1 while the first grant is held
  1    no credit, a grant on the way                       end 0 receives         messages before that grant
  0    end 0 has a credit                                  end 0 is polled        0
"""

from dataclasses import replace

import z3

import model
from model import both, either, ite, no, posted
from prove import finish, prove
from safety import System, holds, quarter, steps, system


def stage_and_rank(system):
    (end, peer), (out, into) = system.ends, system.channels
    stage = ite(end.SendCredits > 0, 0, ite(into.Grants > 0, 1, ite(out.Messages > 0, 3, 2)))
    rank = ite(
        end.SendCredits > 0,
        0,
        ite(into.Grants > 0, into.Before, ite(out.Messages > 0, out.Messages, ite(peer.HoldsFirst, 1, 0))),
    )
    return stage, rank


def lowers(before, after):
    (stage, rank), (next_stage, next_rank) = stage_and_rank(before), stage_and_rank(after)
    return either(next_stage < stage, both(next_stage == stage, next_rank < rank))


def keeps(before, after):
    (stage, rank), (next_stage, next_rank) = stage_and_rank(before), stage_and_rank(after)
    return either(lowers(before, after), both(next_stage == stage, next_rank == rank))


def polled(system, application_receives):
    """End 0 is polled: it posts its receives and then sends, if it can. Without room in its receive buffer it posts
    those that the message in progress is owed."""
    (end, peer), (out, into) = system.ends, system.channels
    wanted = model.missing(end, model.spends_last(end))
    owed = model.least(end.Owed, model.limit(end))
    affordable = ite(application_receives, wanted, 0)
    end = replace(end, Available=end.Available + model.to_post(wanted, affordable, owed, posted(end), wanted))
    last, blank, asks, held = z3.Bools("is_last blank asks held")
    guard, after, sent = model.send(end, out, quarter(end), last, blank, asks, held)
    choices = both(either(no(blank), both(last, no(end.Sending), end.SendQueue > 0)), no(both(held, end.Sending)))
    return choices, held, guard, System((after, peer), (sent, into))


def progress(now, theorem, premise, peer_receives):
    """The next segment of end 0 is sent, if its application receives; whether that of its peer does is given."""
    (end, peer), (out, into) = now.ends, now.channels
    waits = both(holds(now), premise, end.SendQueue > 0, either(end.Strict, peer.Strict))
    stage, _ = stage_and_rank(now)
    mirrored = now.mirrored()
    others = [(f"end 0 {name}", guard, after) for name, guard, after in steps(now) if name != "sends"]
    others += [(f"end 1 {name}", guard, after.mirrored()) for name, guard, after in steps(mirrored)]
    for name, guard, after in others:
        prove(f"{theorem}: the rank does not rise when {name}", [waits, guard], keeps(now, after))
    for name, guard, after in others:
        if name in ("end 0 receives", "end 1 receives"):
            here = stage == (1 if name.startswith("end 0") else 3)
            prove(f"{theorem}: the rank falls when {name}", [waits, guard, here], lowers(now, after))
        if name == "end 1 gives up holding the first grant":
            prove(f"{theorem}: the rank falls when {name}", [waits, guard, stage == 2], lowers(now, after))
    choices, held, guard, after = polled(mirrored, peer_receives)
    here = [waits, choices, stage == 2, no(peer.HoldsFirst)]
    prove(f"{theorem}: a polled end 1 grants, and the rank falls", here, both(guard, lowers(now, after.mirrored())))
    choices, held, guard, after = polled(now, z3.BoolVal(True))
    here = [waits, choices, stage == 0, no(held)]
    prove(f"{theorem}: a polled end 0 with a credit sends", here, guard)


#= SMBD-3.1.5.8-12
#= SMBD-3.1.5.9-01
#= SMBD-3.1.5.9-03
#= SMBD-3.1.5.9-05
#= SMBD-3.1.5.9-10
def every_message_is_sent():
    """From each reachable state, also from one after applications did not receive for a time: so nothing is lost."""
    now = system()
    progress(now, "liveness", z3.BoolVal(True), z3.BoolVal(True))


#= SMBD-3.1.5.9-09
#= SMBD-3.1.5.9-11
def a_message_in_progress_goes_on():
    """Also while the application of its receiver receives nothing."""
    now = system()
    progress(now, "in progress", now.ends[0].Sending, z3.BoolVal(False))


#= SMBD-3.1.5.1-15
def a_ready_end_sends():
    """`Connection::is_ready` tells a sender that its message begins at once."""
    now = system()
    end, out = now.ends[0], now.channels[0]
    affordable = z3.Int("affordable")
    ready = both(end.SendQueue == 0, affordable >= 0, model.may_begin(end, affordable))
    end = replace(end, SendQueue=z3.IntVal(1))
    wanted = model.missing(end, model.spends_last(end))
    count = model.to_post(wanted, affordable, z3.IntVal(0), posted(end), wanted)
    end = replace(end, Available=end.Available + count)
    sends = model.send(end, out, quarter(end), True, False, False, False)[0]
    prove("ready: a message of an end that may begin is sent when it is polled", [holds(now), ready], sends)


def measure(system):
    """While both upper layers and all timers rest, every message lowers it. First the messages that call for an answer,
    then the credits that can still be granted and what an end has to answer."""
    (one, two), (out, into) = system.ends, system.channels
    calls = 3 * (one.SendQueue + two.SendQueue) + 2 * (out.Loud + into.Loud)
    calls += ite(one.SendImmediate, 1, 0) + ite(two.SendImmediate, 1, 0)

    def left(end, into):
        answer = ite(end.Quiet, 0, ite(no(end.Answered), 3, ite(end.Granted <= 1, 2, 1)))
        return 4 * (end.Most + 1 - end.Granted + into.Messages) + answer + ite(end.TargetRose, 1, 0)

    return calls, left(one, into) + left(two, out)


#= SMBD-3.1.5.8-07
#= SMBD-3.1.5.8-07b
def idle_ends_fall_silent():
    now = system()
    (end, peer), (out, into) = now.ends, now.channels
    calls, left = measure(now)
    prove("silence: the measure is never negative", [holds(now)], both(calls >= 0, left >= 0))
    for name, guard, after in steps(now):
        if name in ("queues segments", "is prompted"):
            continue  # The upper layer and the timers rest.
        next_calls, next_left = measure(after)
        falls = either(next_calls < calls, both(next_calls == calls, next_left < left))
        stays = both(next_calls == calls, next_left == left)
        rest = [no(z3.Bool("asks")), z3.Int("message.CreditsRequested") == end.ReceiveCreditTarget]
        claim = falls if name == "sends" else either(falls, stays)
        prove(f"silence: the measure {'falls' if name == 'sends' else 'does not rise'} when an end {name}",
              [holds(now), guard, *rest], claim)


def obligations():
    every_message_is_sent()
    a_message_in_progress_goes_on()
    idle_ends_fall_silent()
    a_ready_end_sends()


if __name__ == "__main__":
    obligations()
    finish()
