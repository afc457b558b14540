"""The segments of messages: what one end cuts, the other puts together, and nothing comes between (3.1.5.1, 3.1.5.4, 3.1.5.8).

The functions of the model take integers or bit vectors, as those of model.py, and compiled.py compares them with
crates/smbdirect/src/engine/segments.rs.
"""

import z3

import model
import safety
from model import both, either, ite, no
from prove import finish, prove

NOTHING, MIDDLE, LAST, ABOVE_MAX, MISMATCH = range(5)


def place(begun, missing, data_length, remaining, largest, tolerates_empty, has_token, number=z3.IntVal):
    """The place of a received segment. `begun`: a message is in progress and needs `missing` bytes."""
    claimed = data_length + remaining
    empty = claimed == 0
    nothing = either(both(begun, empty, tolerates_empty), both(no(begun), empty, no(has_token)))
    legal = ite(nothing, number(NOTHING), ite(remaining > 0, number(MIDDLE), number(LAST)))
    wrong = both(begun, no(nothing), claimed != missing)
    return ite(claimed > largest, number(ABOVE_MAX), ite(wrong, number(MISMATCH), legal))


def write_is_first(has_write, write, has_message, message):
    return both(has_write, has_message, write < message)


#= SMBD-3.1.5.8-05
#= SMBD-3.1.5.8-14
#= SMBD-3.1.5.8-18
#= SMBD-3.1.5.8-19
#= SMBD-3.1.5.8-20
def sums():
    """`total`: what the first segment has announced; `taken`: what has been passed on since."""
    begun, tolerates_empty, has_token = z3.Bools("begun tolerates_empty has_token")
    missing, total, taken, length, remaining, largest = z3.Ints("missing total taken length remaining largest")
    counts = both(length >= 0, remaining >= 0, largest >= 0)
    holds = lambda begun, missing, total, taken: either(
        no(begun), both(taken >= 0, missing > 0, taken + missing == total, total <= largest)
    )
    found = place(begun, missing, length, remaining, largest, tolerates_empty, has_token)
    now = [counts, holds(begun, missing, total, taken)]
    begin = lambda value, first: ite(begun, value, first)
    after_total, after_taken = begin(total, length + remaining), begin(taken, 0) + length
    prove(
        "segments: taken and missing bytes are what was announced, and none is too many",
        [*now, found == MIDDLE],
        both(holds(True, remaining, after_total, after_taken), either(no(begun), remaining + length == missing)),
    )
    prove(
        "segments: a delivered message has the announced bytes, and at most MaxFragmentedRecvSize",
        [*now, found == LAST],
        both(after_taken == after_total, after_taken <= largest),
    )
    prove("segments: what carries nothing changes nothing", [*now, found == NOTHING], both(length == 0, remaining == 0))


#= SMBD-3.1.5.4-04
#= SMBD-3.1.5.4-07
def cuts():
    """`unsent` bytes of a message are left at the sender, and none is on the way. The sender is free to choose the length of a
    segment, as long as it is at least a byte."""
    unsent, payload, largest = z3.Ints("unsent payload largest")
    begun, has_token, tolerates_empty = z3.Bools("begun has_token tolerates_empty")
    cut = both(payload >= 1, payload <= unsent, unsent <= largest)
    found = place(begun, unsent, payload, unsent - payload, largest, tolerates_empty, has_token)
    prove("segments: a receiver accepts each segment that a sender cuts", [cut], either(found == MIDDLE, found == LAST))
    prove("segments: the last segment is the one that leaves nothing", [cut], (found == LAST) == (payload == unsent))


#= SMBD-3.1.5.4-11
def order():
    """Messages and Writes have the numbers of the owner's calls. `sending`: a segment of the oldest message was sent, and
    not its last."""
    write, message, latest, new = z3.Ints("write message latest new")
    has_write, has_message, sending = z3.Bools("has_write has_message sending")
    first = write_is_first(has_write, write, has_message, message)
    holds = both(
        either(no(has_write), write <= latest),
        either(no(has_message), message <= latest),
        either(no(sending), both(has_message, no(first))),
    )
    call = new == latest + 1
    prove(
        "order: a message that has begun does not wait for a Write, whatever is called",
        [holds, call, sending],
        both(no(first), no(write_is_first(True, ite(has_write, write, new), has_message, message))),
    )
    now = safety.system()
    end, out = now.ends[0], now.channels[0]
    last, blank, asks, held = z3.Bools("is_last blank asks held")
    guard, after, _ = model.send(end, out, safety.quarter(end), last, blank, asks, held)
    prove(
        "order: what follows a segment is the next segment of its message",
        [safety.holds(now), guard, end.Sending],
        after.SendQueue == end.SendQueue - 1,
    )
    prove(
        "order: a message does not overtake a Write of an earlier call",
        [holds, has_message, no(first)],
        either(no(has_write), message <= write),
    )


def obligations():
    sums()
    cuts()
    order()


if __name__ == "__main__":
    obligations()
    finish()
