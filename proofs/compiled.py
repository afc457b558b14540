"""The compiled code of credits.rs and segments.rs in crates/smbdirect/src/engine equals the model, for all inputs.

rustc compiles each file as in a release build, but with checks of overflow; angr executes each function with symbolic
arguments along every path. The obligation of a function: every path ends with the result of the model, and no path
ends in a panic. The assumptions are what safety.py proves of every reachable state.
"""

import logging
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

for name in ("angr", "cle", "claripy", "pyvex"):
    logging.getLogger(name).setLevel("CRITICAL")

import angr
import claripy
import z3

import model
import prove
import segments
from model import End, both, either, ite, no, posted

HERE = pathlib.Path(__file__).resolve().parent
ENGINE = HERE.parent / "crates/smbdirect/src/engine"
WIDTH = 80  # bits of the model's numbers: no sum of the model overflows
FIELDS = {"available": 16, "granted": 16, "target": 16, "max": 16, "target_rose": 1, "quiet": 1}
END = ("available", "granted", "target", "max", "target_rose", "quiet")


def compiled(source):
    """Compiles the text of a module to an object file."""
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "module.rs").write_text(source)
    (folder / "lib.rs").write_text('#[path = "module.rs"]\nmod module;\n')
    command = [os.environ.get("RUSTC", "rustc"), "--edition=2024", "-Copt-level=3", "-Coverflow-checks=on",
               "-Cpanic=abort", "-Ccodegen-units=1", "-Awarnings", "--crate-type=lib", "--emit=obj", "lib.rs"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "lib.o"


class Panic(angr.SimProcedure):
    NO_RET = True

    def run(self):
        self.state.globals["panic"] = True
        self.exit(1)


def load(source):
    project = angr.Project(str(compiled(source)), auto_load_libs=False)
    # The only functions outside the object are those that panic.
    for symbol in project.loader.main_object.symbols:
        if symbol.is_import and symbol.name:
            project.hook_symbol(symbol.name, Panic(), replace=True)
    return project


def paths(project, name, arguments):
    """Returns (condition, rax, rdx or None if it panics) of every path; `arguments`: (name, bits)."""
    address = project.loader.find_symbol(name).rebased_addr
    values = []
    for argument, bits in arguments:
        symbol = claripy.BVS(argument, bits, explicit_name=True)
        values.append(claripy.ZeroExt(64 - bits, symbol) if bits < 64 else symbol)
    prototype = angr.types.parse_type(f"uint64_t({', '.join(['uint64_t'] * len(values))})").with_arch(project.arch)
    state = project.factory.call_state(address, *values, prototype=prototype)
    state.options |= {angr.options.ZERO_FILL_UNCONSTRAINED_MEMORY, angr.options.ZERO_FILL_UNCONSTRAINED_REGISTERS}
    manager = project.factory.simulation_manager(state)
    manager.run()
    left = [stash for stash, states in manager.stashes.items() if states and stash not in ("deadended",)]
    assert not left and not manager.errored, (name, manager, manager.errored)
    convert = claripy.backends.z3.convert
    for state in manager.deadended:
        condition = z3.And(*map(convert, state.solver.constraints), True)
        panics = state.globals.get("panic", False)
        yield condition, None if panics else (convert(state.regs.rax), convert(state.regs.rdx))


def without_division(formula):
    """Replaces each quotient and remainder by an unknown, and returns what is known of them: equal operands have equal
    results, and a quotient by two or more is at most half, and at least one of a number that is not less. Solvers cannot compare two dividers of 64 bits."""
    kinds = {z3.Z3_OP_BUDIV: "/", z3.Z3_OP_BUDIV_I: "/", z3.Z3_OP_BUREM: "%", z3.Z3_OP_BUREM_I: "%"}
    unknowns, done = [], {}

    def replaced(term):
        key = term.get_id()
        if key not in done:
            parts = [replaced(part) for part in term.children()]
            kind = kinds.get(term.decl().kind())
            if kind:
                result = z3.BitVec(f"unknown{len(unknowns)}", term.size())
                unknowns.append((kind, *(z3.ZeroExt(128 - part.size(), part) for part in (*parts, result))))
            else:
                result = z3.substitute(term, *[(a, b) for a, b in zip(term.children(), parts) if not a.eq(b)])
            done[key] = result, term  # The term stays, so that its number is not used again.
        return done[key][0]

    result = replaced(formula)
    known = [z3.Implies(z3.UGE(b, 2), z3.ULE(value, z3.LShR(a, 1)))
             for kind, a, b, value in unknowns if kind == "/"]
    known += [z3.Implies(z3.And(z3.UGE(a, b), b != 0), value != 0) for kind, a, b, value in unknowns if kind == "/"]
    known += [z3.ULE(value, a) for _, a, _, value in unknowns]
    for kind, a, b, value in unknowns:
        known += [z3.Implies(z3.And(a == c, b == d), value == other)
                  for other_kind, c, d, other in unknowns if kind == other_kind]
    return result, known


def flag(symbol):
    return symbol == 1


class Inputs:
    """The arguments as numbers and flags of the model."""

    def __init__(self, arguments):
        for name, bits in arguments:
            symbol = z3.BitVec(name, bits)
            setattr(self, name, flag(symbol) if bits == 1 else z3.ZeroExt(WIDTH - bits, symbol))

    def end(self, **others):
        number = z3.BitVecVal(0, WIDTH)
        fields = dict(SendCredits=number, SendQueue=number, Owed=number, Most=number, Answered=False, Sending=False,
                      SendImmediate=False, HoldsFirst=False, Strict=True, V2014=False)
        return End(Granted=self.granted, Available=self.available, ReceiveCreditTarget=self.target,
                   ReceiveCreditMax=self.max, TargetRose=self.target_rose, Quiet=self.quiet, **(fields | others))


def wide(value, low, bits):
    """Bits of a register as a number of the model."""
    return z3.ZeroExt(WIDTH - bits, z3.Extract(low + bits - 1, low, value))


def quarter(end):
    return z3.LShR(model.limit(end), 2)


# name, arguments after the six of the credits (or all), assumption, what the result has to be


def same(bits):
    """The result is a number or a flag in the low bits of rax."""
    return lambda registers, expected: wide(registers[0], 0, bits) == (
        ite(expected, z3.BitVecVal(1, WIDTH), z3.BitVecVal(0, WIDTH)) if z3.is_bool(expected) else expected
    )


def at_most(registers, largest):
    result = wide(registers[0], 0, 64)
    return both(1 <= result, result <= largest)


def option(registers, expected):
    possible, grant = expected
    return wide(registers[0], 0, 32) == ite(possible, grant, z3.BitVecVal(0xFFFF_FFFF, WIDTH))


def fields(registers, expected):
    """The structure After in rax and rdx."""
    end, result = expected
    rax, rdx = registers
    numbers = (end.Available, end.Granted, end.ReceiveCreditTarget, end.ReceiveCreditMax)
    parts = [wide(rax, 16 * at, 16) == number for at, number in enumerate(numbers)]
    parts.append((wide(rdx, 0, 16) == 1) == end.TargetRose)
    parts.append((wide(rdx, 16, 16) == 1) == end.Quiet)
    return both(*parts, wide(rdx, 32, 32) == result)


def granted(inputs, grant):
    """send() changes the end by a grant; the rest of it is in connection/send.rs."""
    end = inputs.end()
    grants = grant > 0
    return model.replace(end, Available=end.Available - grant, Granted=end.Granted + grant,
                         TargetRose=both(end.TargetRose, no(grants)), Quiet=both(end.Quiet, no(grants))), 0


def received(inputs):
    end = inputs.end()
    held = end.Granted > 0
    after = model.replace(end, Granted=model.monus(end.Granted, 1), Quiet=inputs.is_quiet)
    return after, ite(held, z3.BitVecVal(1, WIDTH), z3.BitVecVal(0, WIDTH))


def retargeted(inputs):
    end = inputs.end()
    rises = model.least(inputs.requested, end.ReceiveCreditMax) > model.limit(end)
    return model.replace(end, ReceiveCreditTarget=inputs.requested, TargetRose=either(end.TargetRose, rises)), 0


def reachable(inputs):
    return both(inputs.target >= 1, inputs.max >= 1, inputs.max <= 65533, inputs.granted + inputs.available <= 65534)


ANY = lambda _: z3.BoolVal(True)
OF_CREDITS = [
    ("x_limit", {}, ANY, same(16), lambda i: model.limit(i.end())),
    ("x_missing", {"last": 1}, reachable, same(16), lambda i: model.missing(i.end(), i.last)),
    ("x_grantable", {"last": 1}, ANY, same(16), lambda i: model.grantable(i.end(), i.last)),
    ("x_is_due", {"send_immediate": 1, "holds": 1}, ANY, same(8),
     lambda i: model.is_due(i.end(SendImmediate=i.send_immediate, HoldsFirst=i.holds), quarter(i.end()))),
    ("x_next_grant", {"send_credits": 16, "strict": 1}, ANY, option,
     lambda i: model.next_grant(i.end(SendCredits=i.send_credits, Strict=i.strict))),
    ("x_may_begin", {"send_credits": 16, "strict": 1, "affordable": 16}, ANY, same(8),
     lambda i: model.may_begin(i.end(SendCredits=i.send_credits, Strict=i.strict), i.affordable)),
    ("x_post", {"count": 16}, lambda i: i.available + i.count <= 65535, fields,
     lambda i: (model.post(i.end(), i.count)[1], 0)),
    ("x_grant", {"grant": 16}, lambda i: both(reachable(i), i.grant <= i.available), fields,
     lambda i: granted(i, i.grant)),
    ("x_received", {"is_quiet": 1}, ANY, fields, received),
    ("x_set_target", {"requested": 16}, ANY, fields, retargeted),
    ("x_fit_into", {"queue": 64}, ANY, fields,
     lambda i: (model.replace(i.end(), ReceiveCreditMax=model.fitted(i.max, i.queue)), 0)),
]
OF_NUMBERS = [
    ("x_to_post", {"missing": 16, "affordable": 16, "owed": 16, "posted": 16, "room": 16}, ANY, same(16),
     lambda i: model.to_post(i.missing, i.affordable, i.owed, i.posted, i.room)),
    ("x_spends_last", {"send_credits": 16, "send_immediate": 1, "waiting": 1}, ANY, same(8),
     lambda i: both(i.send_credits == 1, either(i.send_immediate, i.waiting))),
    ("x_is_quiet", {"data_length": 32, "remaining": 32, "asks": 1}, ANY, same(8),
     lambda i: both(i.data_length == 0, i.remaining == 0, no(i.asks))),
    ("x_prompts", {"asks": 1, "quiet": 1, "is_2014": 1, "waiting": 1}, ANY, same(8),
     lambda i: model.prompts(i.asks, i.quiet, i.is_2014, i.waiting)),
    ("x_affordable", {"buffer": 64, "unread": 64, "size": 32, "posted": 16}, lambda i: i.size >= 128, same(16),
     lambda i: model.affordable(i.buffer, i.unread, i.size, i.posted)),
    ("x_owed", {"remaining": 32, "size": 32, "limit": 16}, lambda i: i.size >= 128, same(16),
     lambda i: model.owed(i.remaining, i.size, i.limit)),
]


# The checker of steps, relation.rs. Its functions return the end after the step, and whether it is one.
CHECKER = {"available": 16, "granted": 16, "target": 16, "max": 16, "flags": 8, "send_credits": 16}


def checked(inputs, waiting):
    bit = lambda at: z3.Extract(at, at, z3.BitVec("flags", 8)) == 1
    inputs.target_rose, inputs.quiet = bit(0), bit(1)
    return inputs.end(SendCredits=inputs.send_credits, SendImmediate=bit(2), HoldsFirst=bit(3), Strict=bit(4),
                      V2014=bit(5), SendQueue=ite(waiting, z3.BitVecVal(1, WIDTH), z3.BitVecVal(0, WIDTH)))


def step(registers, expected):
    """The end after the step has to be right only if it is a step."""
    (rax, rdx), (is_step, after) = registers, expected
    said = z3.Extract(26, 26, rdx) == 1
    bit = lambda at: z3.Extract(20 + at, 20 + at, rdx) == 1
    right = both(wide(rax, 0, 20) == after.SendCredits, wide(rax, 20, 20) == after.Granted,
                 wide(rax, 40, 20) == after.Available, wide(rdx, 0, 20) == after.ReceiveCreditTarget,
                 bit(0) == after.TargetRose, bit(1) == after.Quiet, bit(2) == after.SendImmediate,
                 bit(3) == after.HoldsFirst)
    return both(said == is_step, z3.Implies(is_step, right))


NOTHING = model.Channel(*[z3.BitVecVal(0, WIDTH)] * 5)


def sent(inputs):
    """`called_for` is either a segment that waits, or a prompt, which can come at any time."""
    def with_queue(waiting, prompted):
        end = checked(inputs, waiting)
        end = model.replace(end, SendImmediate=either(end.SendImmediate, prompted))
        possible, after, _ = model.send(end, NOTHING, quarter(end), True, False, False, False)
        return both(possible, model.next_grant(end)[1] == inputs.grant), after
    return with_queue(False, inputs.called_for)


def received_by(inputs):
    end = checked(inputs, inputs.waiting)
    message = model.Message(inputs.requested, inputs.more, inputs.is_quiet, inputs.asks, end.Owed)
    return model.receive(end, message)


def rested(inputs):
    end = checked(inputs, inputs.waiting)
    return no(model.send(end, NOTHING, quarter(end), True, False, False, False)[0]), end


def posted_by(inputs):
    return model.post(checked(inputs, inputs.waiting), inputs.count)


def missed(inputs):
    end = checked(inputs, inputs.waiting)
    return model.missing(end, model.spends_last(end)) == inputs.count, end


OF_CHECKER = [
    ("r_post", {"count": 16, "waiting": 1}, reachable, step, posted_by),
    ("r_send", {"grant": 16, "called_for": 1}, reachable, step, sent),
    ("r_receive", {"requested": 16, "more": 16, "is_quiet": 1, "asks": 1, "waiting": 1}, reachable, step, received_by),
    ("r_may_rest", {"waiting": 1}, reachable, step, rested),
    ("r_missing", {"waiting": 1, "count": 16}, reachable, step, missed),
]


def placed(i):
    flag_of = lambda at: z3.Extract(at, at, z3.BitVec("flags", 8)) == 1
    number = lambda value: z3.BitVecVal(value, WIDTH)
    return segments.place(i.begun, i.missing, i.length, i.remaining, i.largest, flag_of(0), flag_of(1), number)


OF_SEGMENTS = [
    ("s_place", {"begun": 1, "missing": 32, "length": 32, "remaining": 32, "largest": 32, "flags": 8}, ANY, same(8), placed),
    # Connection::check has refused messages of more than 32 bits, and MaxSendSize has 32 bits and is at least 128.
    ("s_longest_payload", {"unsent": 32, "max_payload": 32, "is_single": 1},
     lambda i: i.max_payload >= 2, at_most, lambda i: i.max_payload),
    ("s_write_is_first", {"has_write": 1, "write": 64, "has_message": 1, "message": 64}, ANY, same(8),
     lambda i: segments.write_is_first(i.has_write, i.write, i.has_message, i.message)),
]


def with_first(first, rows):
    return [(name, list((first | more).items()), *rest) for name, more, *rest in rows]


def obligations(project, rows, skipped=()):
    """Yields (title, assumptions, claim, seconds) for each function."""
    for name, arguments, assumption, compare, expected in rows:
        if name in skipped:
            continue
        start = time.monotonic()
        inputs = Inputs(arguments)
        wanted = expected(inputs)
        ends = [z3.And(condition, compare(registers, wanted))
                for condition, registers in paths(project, name, arguments) if registers]
        claim, known = without_division(z3.Or(*ends, False))
        kind = {"x": "code", "s": "code", "r": "checker"}[name[0]]
        right = "is within its bounds" if compare is at_most else "equals the model"
        title = f"{kind}: {name[2:]} {right} and cannot panic, {len(ends)} paths"
        yield title, [*known, assumption(inputs)], claim, time.monotonic() - start


@dataclass(frozen=True)
class Module:
    path: pathlib.Path
    exports: str
    rows: list

    def product(self):
        """The text without its tests."""
        return self.path.read_text().partition("#[cfg(test)]\nmod tests")[0]

    def load(self, product=None):
        """Compiles the text with the functions that make it callable."""
        return load((product or self.product()) + (HERE / self.exports).read_text())

    def machine_code(self, project):
        """The bytes of each function, to see which ones a change of the source has changed."""
        found = {row[0]: project.loader.find_symbol(row[0]) for row in self.rows}
        return {name: project.loader.memory.load(at.rebased_addr, at.size) for name, at in found.items()}

    def noticed(self, product, original):
        """The first function of a changed text that no longer equals the model."""
        project = self.load(product)
        same = [name for name, code in self.machine_code(project).items() if code == original[name]]
        for title, assumptions, claim, _ in obligations(project, self.rows, same):
            if prove.z3_answer(z3.And(*assumptions, z3.Not(claim)))[0] != "unsat":
                return [title]
        return []


CODE = Module(ENGINE / "credits.rs", "exports.rs", with_first(FIELDS, OF_CREDITS) + with_first({}, OF_NUMBERS))
SEGMENTS = Module(ENGINE / "segments.rs", "exports_segments.rs", with_first({}, OF_SEGMENTS))
CHECKER_CODE = Module(
    ENGINE / "connection/proved/relation.rs", "exports_relation.rs", with_first(CHECKER, OF_CHECKER)
)


#= SMBD-3.1.5.9-04
def main():
    for module in (CODE, SEGMENTS, CHECKER_CODE):
        for obligation in obligations(module.load(), module.rows):
            prove.prove(*obligation)
    prove.finish()


if __name__ == "__main__":
    main()
