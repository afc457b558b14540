"""The proofs can fail: each change of a rule makes an obligation fail.

The model is changed by replacing one function; a change of credits.rs or segments.rs replaces one piece of its text.
"""

import contextlib
import io
import time

import z3

import compiled
import liveness
import model
import prove
import safety
import segments
from model import both, either, ite, least, monus, no


def without_token(end):
    return False


def without_one_for_the_last(end, last):
    return ORIGINAL["missing"](end, False)


def grants_beyond(end, last):
    return ORIGINAL["grantable"](end, last) + 1


def grants_unposted(end, last):
    return monus(model.limit(end), end.Granted)


def eager(end, quarter):
    return model.grantable(end, False) > 0


def never_alone(end, quarter):
    return end.SendImmediate


def without_owed(missing, affordable, owed, posted, room):
    return least(least(missing, affordable), room)


def spends_anyway(grant, strict, granted):
    return True


def linux(grant, strict, granted):
    return either(grant > 0, granted > 0)


def waits_for_zero(end, quarter):
    return both(model.grantable(end, False) > 0, no(both(end.Quiet, model.grantable(end, False) == 1)), end.TargetRose)


def literal_sums(begun, missing, length, remaining, *more):
    """The segments of a message need not add up."""
    found = ORIGINAL["place"](False, missing, length, remaining, *more)
    return ite(both(begun, found == segments.NOTHING), z3.IntVal(segments.LAST), found)


def writes_first(has_write, write, has_message, message):
    return both(has_write, has_message)


RULES = [
    ("returns_token", without_token, "a single credit is not returned as two"),
    ("missing", without_one_for_the_last, "no receive is posted for the last send credit"),
    ("grantable", grants_beyond, "one credit more than allowed is granted"),
    ("grantable", grants_unposted, "credits are granted before their receives are posted"),
    ("should_grant", eager, "every credit is returned at once, as 3.1.5.8 says literally"),
    ("should_grant", waits_for_zero, "a peer without credits is granted none"),
    ("is_due", never_alone, "no empty message grants credits"),
    ("to_post", without_owed, "a message in progress is owed nothing"),
    ("may_spend_last", spends_anyway, "the last send credit leaves without a grant"),
    ("may_spend_last", linux, "both ends use the rule of Linux 7.2"),
]
RULES_OF_SEGMENTS = [
    ("place", literal_sums, "the sums of the segments are not checked"),
    ("write_is_first", writes_first, "every Write goes before every message"),
]
ORIGINAL = {name: getattr(model, name) for name, _, _ in RULES}
ORIGINAL |= {name: getattr(segments, name) for name, _, _ in RULES_OF_SEGMENTS}

# Pieces of credits.rs and what replaces them.
TEXTS = [
    ("receive_buffer.saturating_sub(unread)", "receive_buffer"),
    ("receives.saturating_sub(posted as usize)", "receives"),
    ("if left < u16::MAX as usize", "if left > u16::MAX as usize"),
    ("remaining.div_ceil(max_receive_size)", "(remaining / max_receive_size)"),
    ("if segments < limit as u32", "if segments > limit as u32"),
    ("let owed = owed.saturating_sub(posted);", ""),
    ("if owed > affordable { owed } else { affordable }", "affordable"),
    ("if missing < allowed { missing } else { allowed }", "allowed"),
    ("if wanted < room { wanted } else { room }", "wanted"),
    ("send_credits == 1 && (send_immediate || waiting)", "send_credits <= 1 && (send_immediate || waiting)"),
    ("send_credits == 1 && (send_immediate || waiting)", "send_credits == 1 && waiting"),
    ("data_length == 0 && remaining_data_length == 0 && !asks", "data_length == 0 && !asks"),
    ("data_length == 0 && remaining_data_length == 0 && !asks", "data_length == 0 && remaining_data_length == 0"),
    ("asks || (is_2014 && !quiet && !waiting)", "asks || (is_2014 && !waiting)"),
    ("asks || (is_2014 && !quiet && !waiting)", "asks || (is_2014 && !quiet)"),
    ("grantable > 0 || (!is_strict && granted > 0)", "grantable > 0 || !is_strict"),
    ("grantable > 0 || (!is_strict && granted > 0)", "grantable > 0 || granted > 0"),
    (".saturating_sub(2)\n", ".saturating_sub(1)\n"),
    ("            .max(1);", ";"),
    ("self.target.min(self.max)", "self.target"),
    ("self.target_rose |=", "self.target_rose ="),
    ("target.min(self.max) > self.limit()", "target > self.limit()"),
    ("target.min(self.max) > self.limit()", "target.min(self.max) >= self.limit()"),
    ("wanted.max(self.granted.saturating_add(1))", "wanted.max(self.granted)"),
    ("wanted = wanted.max(2);", "wanted = wanted.max(1);"),
    ("wanted.saturating_sub(self.posted())", "wanted.saturating_sub(self.granted)"),
    ("self.quiet = quiet;\n", ""),
    ("self.granted.checked_sub(1)", "self.granted.checked_sub(2)"),
    ("self.limit().saturating_sub(self.granted)", "self.limit()"),
    ("most = most.max(2);", "most = most.max(3);"),
    ("most = most.max(1);", ""),
    ("self.available.min(most)", "most"),
    ("self.target_rose = false;\n            self.quiet = false;", "self.target_rose = false;"),
    ("self.target_rose = false;\n            self.quiet = false;", "self.quiet = false;"),
    ("        if grant > 0 {\n            self.target_rose", "        {\n            self.target_rose"),
    ("self.granted += grant;", "self.granted = grant;"),
    ("!self.quiet || grant >= 2", "true"),
    ("self.quiet && grant == 1", "grant == 1"),
    ("if self.quiet && grant == 1 {", "if self.quiet {"),
    ("self.limit() / 4", "self.limit() / 2"),
    ("self.granted <= quarter && grant >= quarter", "self.granted < quarter && grant >= quarter"),
    ("self.granted <= quarter && grant >= quarter", "self.granted <= quarter"),
    ("self.target_rose || low ||", "low ||"),
    ("grant >= GRANT_BATCH", "grant > GRANT_BATCH"),
    ("let last = send_credits == 1;", "let last = send_credits <= 2;"),
    ("!last || may_spend_last", "may_spend_last"),
    ("self.grantable(true).max(affordable)", "self.grantable(true)"),
    ("send_immediate || (!holds_first_grant && self.should_grant())", "send_immediate || self.should_grant()"),
    ("send_immediate || (!holds_first_grant && self.should_grant())", "!holds_first_grant && self.should_grant()"),
    ("self.quiet && self.granted == 0", "self.granted == 0"),
    ("self.quiet && self.granted == 0", "self.quiet"),
]


def judge(title, failed, seconds):
    if not failed:
        prove.failures.append(title)
    print(f"{'noticed' if failed else 'SURVIVED'}  {title:<92} {seconds:6.2f} s  {', '.join(failed[:2])}", flush=True)


def failing(*parts):
    """Runs parts of the proof and returns the names of the obligations that fail."""
    kept, prove.failures = prove.failures, []
    with contextlib.redirect_stdout(io.StringIO()):
        for part in parts:
            part()
    failed, prove.failures = prove.failures, kept
    return list(dict.fromkeys(failed))


TEXTS_OF_SEGMENTS = [
    ("data_length as u64 + remaining as u64", "(data_length + remaining) as u64"),
    ("claimed > max_fragmented_size as u64", "claimed >= max_fragmented_size as u64"),
    ("claimed == 0 && tolerates_empty", "claimed == 0"),
    ("claimed != missing as u64", "claimed < missing as u64"),
    ("claimed == 0 && !has_token", "claimed == 0"),
    ("if remaining > 0 {", "if remaining > 1 {"),
    ("if !is_single || unsent <= max_payload {", "if !is_single {"),
    ("if equal < max_payload {", "if equal > max_payload {"),
    ("write < message", "write > message"),
    ("_ => false,", "_ => true,"),
]


def change_rules(module, rules, *parts):
    for name, changed, what in rules:
        start = time.monotonic()
        setattr(module, name, changed)
        failed = failing(*parts)
        setattr(module, name, ORIGINAL[name])
        judge(f"model: {what}", failed, time.monotonic() - start)


def change_code(module, texts):
    product = module.product()
    original = module.machine_code(module.load())
    for old, new in texts:
        start = time.monotonic()
        assert product.count(old) == 1, f"{module.path.name} has no single {old!r}"
        failed = module.noticed(product.replace(old, new, 1), original)
        shown = " ".join(f"{old} -> {new or 'nothing'}".split())
        judge(f"code: {shown}"[:92], failed, time.monotonic() - start)


def main():
    prove.WITH_CVC5 = False
    change_rules(model, RULES, safety.obligations, liveness.obligations)
    change_rules(segments, RULES_OF_SEGMENTS, segments.obligations)
    change_code(compiled.CODE, TEXTS)
    change_code(compiled.SEGMENTS, TEXTS_OF_SEGMENTS)
    prove.finish()


if __name__ == "__main__":
    main()
