"""Moments of missions made by hand: two of blue, two of red, on flat ground."""

import jax.numpy as jnp
import numpy as np
from echelon_battles import chassis_of, make_mechs, quiet_tally

from jaxmarl_echelon.envs.echelon.battle.state import HitLog
from jaxmarl_echelon.envs.echelon.battle.unit_tables import CHASSIS, MEDIUM, SCOUT
from jaxmarl_echelon.envs.echelon.missions.measures import facts
from jaxmarl_echelon.envs.echelon.missions.state import NEVER, Order, Orders, Scenario

TEAMS = (2, 2)
CLASSES = (MEDIUM, SCOUT, MEDIUM, SCOUT)
SIZE = len(CLASSES)
ZONE = (20.0, 20.0, 5.0)
# Blue's mechs west of the zone, red's east of it, far from each other.
PLACES = ((5.0, 20.0, 1.5), (5.0, 23.0, 0.9), (55.0, 20.0, 1.5), (55.0, 23.0, 0.9))
CELL, COLUMNS, WORDS = 5, 12, 5
ALL_OPEN = jnp.full(WORDS, 0xFFFFFFFF, jnp.uint32)


def placed(**places):
    """Places of the mechs, but for those given: `b0=(x, y)`, `r1=(x, y, z)`."""
    names = ("b0", "b1", "r0", "r1")
    rows = [np.array(PLACES[i], np.float32) for i in range(SIZE)]
    for name, place in places.items():
        rows[names.index(name)][: len(place)] = place
    return np.stack(rows)


def order(zones=(ZONE, ZONE), verb=(0, 1), parameters=(0.5, 0.5, 0.5, 0.5), went=(False, False)):
    """What both teams are told."""
    return Order(
        verb=jnp.int32(verb),
        parameters=jnp.broadcast_to(jnp.float32(parameters), (2, 4)),
        zone=jnp.float32(zones),
        complexity=jnp.zeros(2),
        went=jnp.array(went),
    )


def cell_of(position):
    x, y = (position[:, axis].astype(int) // CELL for axis in (0, 1))
    return jnp.int32(y * COLUMNS + x)


def log(rear=0.0, struck=(), suppressor=None):
    """A log of hits."""
    by = np.full(SIZE, -1, np.int32)
    for target, shooter in (suppressor or {}).items():
        by[target] = shooter
    return HitLog(
        rear=jnp.broadcast_to(jnp.float32(rear), SIZE),
        struck=jnp.asarray(np.isin(np.arange(SIZE), struck)),
        suppressor=jnp.asarray(by),
    )


def moment(
    position=None, told=None, sight=False, watching=False, stealth=(0.0, 0.0), hits=None, tally=(), **mechs
):
    """The world after a decision."""
    position = placed() if position is None else position
    bodies = make_mechs(position, CLASSES, **mechs)
    return facts.FactInputs(
        teams=TEAMS,
        mechs=bodies,
        tally=quiet_tally(SIZE, **dict(tally)).replace(log=hits or log()),
        chassis=chassis_of(CLASSES),
        classes=jnp.int32(CLASSES),
        order=told or order(),
        sight=jnp.broadcast_to(jnp.asarray(sight), (SIZE, SIZE)),
        quality=jnp.ones(SIZE),
        sensor_range=jnp.float32(30.0),
        stealth=jnp.float32(stealth),
        cell=cell_of(np.asarray(position)),
        open_cells=ALL_OPEN,
        watching=jnp.broadcast_to(jnp.asarray(watching), SIZE),
    )


def nothing(position=None):
    """Facts of mechs that have done nothing yet, by mech and by team."""
    position = placed() if position is None else position
    gap = np.hypot(*(position[:, :2] - ZONE[:2]).T)
    return facts.initial_mech_facts(
        SIZE, WORDS, cell_of(position), jnp.float32(gap)
    ), facts.initial_team_facts()


def scenario(verb=((0, 0), (1, 1)), go=(NEVER, NEVER), present=(True,) * SIZE, **orders):
    """A scenario; `orders` replace fields of its orders."""
    present = np.asarray(present)
    hp = np.where(present, CHASSIS.hp[list(CLASSES)], 0.0)
    given = {
        "verb": verb,
        "parameters": np.full((2, 4), 0.5),
        "objective": np.broadcast_to(np.array(ZONE[:2]), (2, 2, 2)),
        "radius": np.full((2, 2), ZONE[2]),
        "complexity": np.zeros((2, 2)),
        "go": go,
        "budget": (60.0, 60.0),
    } | orders
    whole = {"verb", "go"}
    return Scenario(
        orders=Orders(
            **{n: jnp.asarray(v, jnp.int32 if n in whole else jnp.float32) for n, v in given.items()}
        ),
        classes=jnp.int32(CLASSES),
        present=jnp.asarray(present),
        strength=jnp.int32([present[:2].sum(), present[2:].sum()]),
        hp=jnp.float32([hp[:2].sum(), hp[2:].sum()]),
        start=jnp.float32(placed()[:, :2]),
        disposition=jnp.zeros(2, jnp.int32),
        awareness=jnp.zeros(2, jnp.int32),
        stealth=jnp.zeros(2),
        fire=jnp.ones(2),
        route=jnp.zeros((2, 4, 2)),
        difficulty=jnp.float32(0.5),
    )
