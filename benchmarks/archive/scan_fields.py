"""Ways to store the field that scans march on: bytes of a map, beams per second, errors.

    PYTHONPATH=benchmarks python benchmarks/archive/scan_fields.py [--map line2|track:SEED|PATH.yaml]
        [--beams 108 1080] [--cars 2048] [--rounds 7] [--busy N]

Every way traces the same scans as `physics.lidar`, whose field is float32 metres; the others store less
and round down, so that marching stays safe:

* `half`: float16 metres;
* `squares`: uint16 squares of the distance in cells, exact to 255 cells;
* `byte`: uint8 whole cells, 1 next to a wall;
* `byte, near exact`: uint8 codes of the distances that cells can have, all of them near walls, from a
  table of 256 entries that stays in the cache;
* `coarse first`: a table of one byte per tile of 8 x 8 cells, their least distance, until it says 0; then
  the float32 field.

The ways run alternately; ratios are medians over rounds of the ratios within a round. `--busy N` runs N
processes that stream through memory at the same time, as on a shared machine. Errors are the largest and the
mean difference from steps of a hundredth of a cell along each beam, in cells, over a few cars.
"""

import argparse
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from f110 import environment
from machine import gather_rate
from rich.console import Console
from rich.table import Table

from physics import lidar as lidar_lib
from physics.lidar import Lidar
from physics.mapbank import MapBank, place_in_field

STREAM = "import numpy as np\na, b = np.ones(1 << 25), np.ones(1 << 25)\nwhile True: np.add(a, 1, out=b)"
MOST = 255


def tiled(tiles: int, row: jax.Array, col: jax.Array) -> jax.Array:
    """Places of cells in a flat table of tiles."""
    return (row >> 3) * tiles + (col >> 3)


def decoded(decode, place=place_in_field):
    """Builds the march on coded `cells`, which `decode` converts to metres."""

    class Decoded(lidar_lib._March):
        def ahead(self, fans, rates, travelled):
            row = (fans.row[:, None] + travelled * rates[0]).astype(jnp.int32)
            col = (fans.col[:, None] + travelled * rates[1]).astype(jnp.int32)
            index = place(self.tiles, row, col)
            codes = self.cells.at[index].get(mode="clip", wrap_negative_indices=False)
            return jnp.where(travelled <= self.reach, decode(codes), 0).astype(travelled.dtype)

    return Decoded


def half(metres: np.ndarray, _resolution: float):
    rounded = metres.astype(np.float16)
    over = rounded.astype(np.float32) > metres
    return np.where(over, np.nextafter(rounded, np.float16(0)), rounded), lambda c: c.astype(jnp.float32)


def squares(metres: np.ndarray, resolution: float):
    codes = np.minimum(np.rint(np.square(metres / resolution)), MOST**2).astype(np.uint16)
    return codes, lambda c: jnp.sqrt(c.astype(jnp.float32)) * resolution


def byte(metres: np.ndarray, resolution: float):
    # The least distance of a free cell is one cell, so that only walls are 0.
    codes = np.minimum(np.floor(metres / resolution + 1e-4), MOST).astype(np.uint8)
    return codes, lambda c: c.astype(jnp.float32) * resolution


def near_exact(metres: np.ndarray, resolution: float):
    cells = np.unique(np.square(np.arange(MOST))[:, None] + np.square(np.arange(MOST)))
    near = np.sqrt(cells[:128])
    far = np.geomspace(near[-1], max(metres.max() / resolution, near[-1] + 1), MOST + 2 - near.size)[1:]
    table = np.concatenate([near, far]).astype(np.float32)
    codes = np.searchsorted(table, metres / resolution + 1e-4, side="right") - 1
    steps = jnp.asarray(table * resolution)
    return codes.astype(np.uint8), lambda c: steps.at[c.astype(jnp.int32)].get(mode="promise_in_bounds")


def tiles_of_bytes(metres: np.ndarray, resolution: float):
    return byte(metres.min((-2, -1)), resolution)


def one_field(store):
    """`(bank) -> (marches of a reach, bytes)` from `(metres, resolution) -> (codes, decode)`."""

    def read(bank: MapBank):
        codes, decode = store(np.asarray(bank.field), float(bank.resolution[0]))
        cells, kind = jnp.asarray(codes.reshape(-1)), decoded(decode)
        return lambda reach: (kind(cells, bank.field.shape[2], reach),), codes.nbytes

    return read


def coarse_first(bank: MapBank):
    """Builds the marches on the tiles' least distances until these are 0, then on the plain field."""
    codes, decode = tiles_of_bytes(np.asarray(bank.field), float(bank.resolution[0]))
    cells, kind = jnp.asarray(codes.reshape(-1)), decoded(decode, tiled)
    plain, number = bank.field.reshape(-1), bank.field.shape[2]

    def marches(reach):
        return kind(cells, number, reach), lidar_lib._March(plain, number, reach)

    return marches, codes.nbytes + bank.field.nbytes


def today(bank: MapBank):
    """Builds the library's own marches, as `one_field`."""
    cells, number = bank.field.reshape(-1), bank.field.shape[2]
    return lambda reach: (lidar_lib._March(cells, number, reach),), bank.field.nbytes


WAYS = {
    "float32, today": today,
    "half": one_field(half),
    "squares": one_field(squares),
    "byte": one_field(byte),
    "byte, near exact": one_field(near_exact),
    "coarse first": coarse_first,
}


def poses_of(where: str, cars: int):
    """Builds a bank of one map, and the poses `[cars, 3]` of cars after a reset."""
    env = environment(where, 108)
    keys = jax.random.split(jax.random.key(2), cars // 2)
    state = jax.vmap(lambda key: env.reset(key, env.default_params())[0].cars.state)(keys)
    return env.simulation.bank, jnp.stack([state[..., 0], state[..., 1], state[..., 4]], -1).reshape(-1, 3)


def exact(bank: MapBank, poses: np.ndarray, lidar: Lidar) -> np.ndarray:
    """Ranges `[N, beams]` in metres by steps of a hundredth of a cell, on the host."""
    wall = np.asarray(bank.field[0]) == 0
    wall = wall.swapaxes(1, 2).reshape(wall.shape[0] * 8, -1)
    affine, resolution = np.asarray(bank.to_cell[0], float), float(bank.resolution[0])
    along = poses[:, 2:] + lidar.angles
    ahead = np.stack([np.cos(along), np.sin(along)], -1)
    found, travelled = np.full(along.shape, lidar.max_range), 0.0
    open_ = np.ones(along.shape, bool)
    while open_.any() and travelled < lidar.max_range:
        xy = poses[:, None, :2] + travelled * ahead
        row, col = np.floor(np.einsum("ij,nbj->inb", affine[:, :2], xy) + affine[:, 2, None, None]).astype(
            int
        )
        hit = open_ & wall[np.clip(row, 0, wall.shape[0] - 1), np.clip(col, 0, wall.shape[1] - 1)]
        found[hit], open_ = travelled, open_ & ~hit
        travelled += resolution / 100
    return found


def measure(console: Console, where: str, beams: int, cars: int, rounds: int) -> None:
    """Prints one table: all ways on a map with so many beams."""
    lidar = Lidar(beams=beams)
    bank, poses = poses_of(where, cars)
    few = np.asarray(poses[:4], float)
    truth = exact(bank, few, lidar)
    traces, sizes, errors = {}, {}, {}
    for name, way in WAYS.items():
        marches, sizes[name] = way(bank)
        trace = jax.jit(
            lambda p, m=marches: lidar_lib._march_on(m(lidar.max_range), bank, jnp.int32(0), p, lidar)
        )
        traces[name] = trace
        off = np.abs(np.asarray(trace(poses))[:4] - truth) / float(bank.resolution[0])
        errors[name] = (off.max(), off.mean())
    rates = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, trace in traces.items():
            begin = time.perf_counter()
            for _ in range(4):
                jax.block_until_ready(trace(poses))
            rates[name].append(4 * cars * beams / (time.perf_counter() - begin))
    first = np.array(rates[next(iter(WAYS))])
    table = Table(title=f"{where}, {beams} beams, {cars:,} cars, {rounds} turns", title_justify="left")
    for column in (
        "field",
        "bytes of the map",
        "M beams/s",
        "x today (least, most)",
        "error, cells: most, mean",
    ):
        table.add_column(column, justify="left" if column == "field" else "right")
    for name in WAYS:
        ratio = np.array(rates[name]) / first
        table.add_row(
            name,
            f"{sizes[name]:,}",
            f"{np.median(rates[name]) / 1e6:.1f}",
            f"{np.median(ratio):.2f} ({ratio.min():.2f}, {ratio.max():.2f})",
            f"{errors[name][0]:.2f}, {errors[name][1]:.3f}",
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--map", default="line2")
    parser.add_argument("--beams", type=int, nargs="+", default=[108, 1080])
    parser.add_argument("--cars", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--busy", type=int, default=0)
    options = parser.parse_args()
    console = Console()
    beside = [subprocess.Popen([sys.executable, "-c", STREAM]) for _ in range(options.busy)]
    try:
        time.sleep(2 * bool(beside))
        console.print(
            f"random gathers: {gather_rate() / 1e6:.0f} M/s, beside {options.busy} streaming processes"
        )
        for beams in options.beams:
            measure(console, options.map, beams, options.cars, options.rounds)
    finally:
        for process in beside:
            process.kill()


if __name__ == "__main__":
    main()
