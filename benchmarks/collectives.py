"""Collectives of a compiled program, parsed from its HLO text: bytes and number of executions."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
COMPUTATION = re.compile(r"^(?P<entry>ENTRY )?%(?P<name>\S+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%\S+ = (?P<type>.*?) (?P<op>[a-z][a-z0-9-]*)\(")
CALLED = re.compile(r"(?:body|to_apply|calls|true_computation|false_computation)=%([\w.-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
PLACE = re.compile(r'op_name="([^"]*)"')
ARRAY = re.compile(r"(pred|[a-z]+\d+)\[([\d,]*)\]")


class Collective(NamedTuple):
    """A collective in a compiled program.

    Attributes:
      kind: one of `KINDS`.
      bytes: size of its result on one device, all of its arrays together.
      times: number of executions per call of the program; None if a loop's length depends on data.
      loops: trip counts of the enclosing loops, the outermost first; None if they depend on data.
      place: traced operation, as named by XLA.
    """

    kind: str
    bytes: int
    times: int | None
    loops: tuple[int | None, ...]
    place: str


class Link(NamedTuple):
    """Interconnect of a number of GPUs: bytes/s of the slowest link per GPU, and seconds per message."""

    devices: int
    bandwidth: float
    latency: float


def collectives(text: str) -> list[Collective]:
    """Lists the collectives of a program.

    Args:
      text: optimised HLO of one device, from `jax.stages.Compiled.as_text`.
    """
    computations, entry = _computations(text)
    return list(_inside(computations, entry, ()))


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Splits HLO text into the lines of each computation by name; also returns the entry's name."""
    found, entry, lines = {}, "", []
    for line in text.splitlines():
        if begun := COMPUTATION.match(line):
            lines = found.setdefault(begun["name"], [])
            entry = begun["name"] if begun["entry"] else entry
        else:
            lines.append(line)
    return found, entry


def _inside(
    computations: dict[str, list[str]], name: str, loops: tuple[int | None, ...]
) -> Iterator[Collective]:
    for line in computations.get(name, ()):
        read = INSTRUCTION.match(line)
        if read is None:
            continue
        kind = read["op"].removesuffix("-start")
        if kind in KINDS:
            times = None if None in loops else math.prod(loops)
            place = PLACE.search(line)
            size = _bytes(read["type"], halves=read["op"] != kind and kind != "all-reduce")
            yield Collective(kind, size, times, loops, place[1] if place else "")
            continue
        called = CALLED.findall(line)
        for branches in BRANCHES.findall(line):
            called += [one.strip(" %") for one in branches.split(",")]
        around = loops
        if read["op"] == "while":
            rounds = TRIPS.search(line)
            around = (*loops, int(rounds[1]) if rounds else None)
        for one in called:
            yield from _inside(computations, one, around)


def _bytes(types: str, *, halves: bool) -> int:
    """Sums the bytes of the arrays in a type; for a pair of operands and results, of the latter half."""
    sizes = []
    for dtype, lengths in ARRAY.findall(types):
        bits = int(re.sub(r"\D", "", dtype) or 8) if dtype != "pred" else 8
        sizes.append(math.prod(int(n) for n in lengths.split(",") if n) * bits // 8)
    return sum(sizes[len(sizes) // 2 :] if halves else sizes)


def communication(found: Sequence[Collective], measured: int, link: Link) -> float:
    """Estimates the seconds of a call's collectives over a link, one after another.

    Args:
      found: the collectives.
      measured: the number of devices of the parsed program.
      link: the interconnect of the devices.
    """
    number, total = link.devices, 0.0
    for one in found:
        passed = 2.0 * one.bytes if one.kind == "all-reduce" else one.bytes * number / measured
        volume = passed * (number - 1) / number / link.bandwidth
        total += (one.times or 1) * (2 * math.ceil(math.log2(number)) * link.latency + volume)
    return total
