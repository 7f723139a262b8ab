"""Anti-missile systems: several defenders and several missiles in one substep."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_echelon.envs.echelon.battle import projectiles
from jaxmarl_echelon.envs.echelon.battle.state import PROJECTILES_PER_MECH
from jaxmarl_echelon.envs.echelon.battle.unit_tables import GAUSS, MISSILE

TEAM = np.array([0, 0, 0, 1, 1, 1])
BATTLES = 4000


def random_battles():
    """Returns places of mechs, whether they are ready, draws, and all shots, for `BATTLES` battles."""
    rng, slots = np.random.default_rng(0), TEAM.size * PROJECTILES_PER_MECH
    place = np.arange(slots)
    shots = projectiles._Shots(
        place=np.broadcast_to(place, (BATTLES, slots)),
        shooter=np.broadcast_to(place // PROJECTILES_PER_MECH, (BATTLES, slots)),
        position=rng.uniform(0, 6, (BATTLES, slots, 3)),
        velocity=np.zeros((BATTLES, slots, 3)),
        kind=rng.choice([MISSILE, GAUSS, -1], (BATTLES, slots), p=[0.4, 0.1, 0.5]),
        target=np.full((BATTLES, slots), -1),
    )
    ready, draws = rng.random((BATTLES, TEAM.size)) < 0.8, rng.random((BATTLES, TEAM.size, 2))
    # Tubes of one mech share no number: only the slots of missiles hold missiles.
    shots.kind[..., place % PROJECTILES_PER_MECH < 2] = -1
    return jax.tree.map(jnp.asarray, (rng.uniform(0, 6, (BATTLES, TEAM.size, 3)), ready, draws, shots))


def intercept_in_turn(position, ready, draws, shots):
    """The same, missile by missile and defender by defender."""
    ready, stopped = ready.copy(), np.zeros(shots.kind.size, bool)
    for missile in np.flatnonzero(shots.kind == MISSILE):
        shooter = shots.shooter[missile]
        near = np.square(position - shots.position[missile]).sum(-1) <= projectiles.AMS_RANGE**2
        draw = draws[shooter, missile % 2]
        failures = np.floor(np.log1p(-draw) / np.log(1 - projectiles.AMS_CHANCE))
        for defender in np.flatnonzero(near & ready & (TEAM[shooter] != TEAM)):
            if failures == 0:
                ready[defender], stopped[missile] = False, True
                break
            failures -= 1
    return stopped, ready


def test_missiles_are_shot_down_one_after_the_other():
    @jax.jit
    @jax.vmap
    def shoot(position, ready, draws, shots):
        scene, mechs = SimpleNamespace(team=TEAM), SimpleNamespace(position=position)
        return projectiles._intercept(scene, mechs, ready, shots, draws)

    battles = random_battles()
    stopped, ready = jax.device_get(shoot(*battles))
    position, able, draws, shots = jax.device_get(battles)
    for number in range(BATTLES):
        one = jax.tree.map(lambda x, n=number: x[n], shots)
        wanted = intercept_in_turn(position[number], able[number], draws[number], one)
        np.testing.assert_array_equal(stopped[number], wanted[0])
        np.testing.assert_array_equal(ready[number], wanted[1])
    assert (stopped.sum(-1) > 2).mean() > 0.1


def test_two_defenders_shoot_down_as_many_of_two_missiles_as_in_turn():
    """1.478 on average: .84 of the first; of the second .6 after a success and .84 after none."""
    size, number = 3, 20_000
    place = jnp.array([2, 3])
    shots = projectiles._Shots(
        place, jnp.zeros(2, int), jnp.zeros((2, 3)), jnp.zeros((2, 3)), jnp.full(2, MISSILE), place
    )
    scene = SimpleNamespace(team=np.array([0, 1, 1]))

    @jax.jit
    @jax.vmap
    def shoot(draws):
        mechs = SimpleNamespace(position=jnp.zeros((size, 3)))
        return projectiles._intercept(scene, mechs, jnp.ones(size, bool), shots, draws)[0]

    stopped = np.asarray(shoot(jax.random.uniform(jax.random.key(0), (number, size, 2))))
    np.testing.assert_allclose(stopped.mean(0), [0.84, 0.6384], atol=0.015)
