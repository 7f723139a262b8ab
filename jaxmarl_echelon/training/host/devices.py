"""Placement of a run on devices: a mesh of members and environments, and functions over it.

Members (seeds and variants of a group) are distributed over devices first, the environments of each member
over the remaining devices. Functions run under `jax.shard_map`, so that a program has only the collectives of
`algos.collectives`; members communicate only in population based training (`share_members`).
See docs/reference/trainer.md 16.2.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from algos import collectives
from algos.types import PyTree
from jaxmarl_echelon import processes

MEMBERS = "member"
AUTO = "auto"


@dataclass(frozen=True)
class DeviceLayout:
    """Distribution of a run over its devices.

    Attributes:
      mesh: devices by `MEMBERS` and `collectives.DEVICES`; None for one device, where arrays need no place.
      grouped: whether arrays have a leading axis of members.
    """

    mesh: Mesh | None = None
    grouped: bool = False

    @classmethod
    def over(cls, devices: Sequence[jax.Device], rows: int = 1, *, grouped: bool = False) -> "DeviceLayout":
        """Builds the layout on these devices; the members are divided between `rows` rows of the mesh."""
        if len(devices) == 1:
            return cls(None, grouped)
        grid = np.array(devices).reshape(rows, -1)
        return cls(Mesh(grid, (MEMBERS, collectives.DEVICES), axis_types=(AxisType.Auto,) * 2), grouped)

    @property
    def number(self) -> int:
        """Number of devices."""
        return 1 if self.mesh is None else self.mesh.size

    @property
    def shards(self) -> int:
        """Devices of the environments of one member: the default number of shards of a new run."""
        return 1 if self.mesh is None else self.mesh.shape[collectives.DEVICES]

    @property
    def shared(self) -> Spec:
        """Partition spec of arrays without an axis of shards."""
        return Spec(MEMBERS) if self.grouped else Spec()

    @property
    def stacked(self) -> Spec:
        """Partition spec of arrays with a leading axis of updates and without an axis of shards."""
        return Spec(None, MEMBERS) if self.grouped else Spec()

    def specs(self, local: PyTree) -> PyTree:
        """Partition specs of arrays; `local` marks those with an axis of shards (after that of members)."""
        mine = Spec(MEMBERS, collectives.DEVICES) if self.grouped else Spec(collectives.DEVICES)
        return jax.tree.map(lambda one: mine if one else self.shared, local)

    def spread(self, fn: Callable, given: tuple[PyTree, ...], found: PyTree) -> Callable:
        """Maps a function over the whole mesh, with these specs of its arguments and results."""
        if self.mesh is None:
            return fn
        return jax.shard_map(fn, mesh=self.mesh, in_specs=given, out_specs=found, check_vma=False)

    def jit(
        self, fn: Callable, given: tuple[PyTree, ...], found: PyTree, placed: PyTree, **options
    ) -> Callable:
        """Jits `spread(fn, given, found)`; results are placed by the specs `placed`."""
        if self.mesh is None:
            return jax.jit(fn, **options)
        shardings = jax.tree.map(self._sharding, placed)
        return jax.jit(self.spread(fn, given, found), out_shardings=shardings, **options)

    def shapes(self, tree: PyTree, specs: PyTree) -> PyTree:
        """Adds the shardings of the specs to shapes and dtypes."""
        if self.mesh is None:
            return tree
        return jax.tree.map(
            lambda spec, x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=self._sharding(spec)), specs, tree
        )

    def put(self, tree: PyTree, specs: PyTree) -> PyTree:
        """Places arrays that every process has; arrays with the right sharding stay unchanged."""
        if self.mesh is None:
            return jax.device_put(tree)

        def below(spec, part):
            return jax.tree.map(lambda x: _put(x, self._sharding(spec)), part)

        return jax.tree.map(below, specs, tree)

    def fetch_to_host(self, tree: PyTree) -> PyTree:
        """Copies arrays, possibly on devices of other processes, to the host; all processes must call it."""
        if self.mesh is None:
            return tree
        return jax.device_get(jax.jit(lambda x: x, out_shardings=self._sharding(Spec()))(tree))

    def make_member_picker(self, local: Callable) -> Callable:
        """Builds `(state, index) -> state` of one member of a group; `local` is as for `compile_program`."""

        def pick(state, index):
            return jax.tree.map(lambda x: x[index], state)

        if self.mesh is None:
            return pick

        @cache
        def compiled(structure):
            marks = local(jax.tree.unflatten(structure, [False] * structure.num_leaves))
            specs = DeviceLayout(self.mesh).specs(marks)
            return jax.jit(pick, out_shardings=jax.tree.map(self._sharding, specs))

        return lambda state, index: compiled(jax.tree.structure(state))(state, index)

    def own(self, members: jax.Array) -> jax.Array:
        """Returns this device's part of an array `[M]`, inside a function mapped by `spread`."""
        if self.mesh is None:
            return members
        count = members.shape[0] // self.mesh.shape[MEMBERS]
        return jax.lax.dynamic_slice_in_dim(members, jax.lax.axis_index(MEMBERS) * count, count)

    def share_members(self, tree: PyTree) -> PyTree:
        """Gathers arrays of this device's members to those of all `[M, ...]`, inside a mapped function."""
        if self.mesh is None or self.mesh.shape[MEMBERS] == 1:
            return tree
        return jax.tree.map(lambda x: jax.lax.all_gather(x, MEMBERS, tiled=True), tree)

    def describe(self, shards: int) -> str:
        """Describes the placement in one line."""
        members, environments = self.mesh.shape[MEMBERS], self.mesh.shape[collectives.DEVICES]
        beside = f"{members} rows of runs by {environments}" if members > 1 else f"{environments}"
        return f"devices: {self.number} ({beside} for the environments), shards of a run: {shards}"

    def _sharding(self, spec: Spec) -> NamedSharding:
        """Sharding of a partition spec on this mesh."""
        return NamedSharding(self.mesh, spec)


ALONE = DeviceLayout()


def describe_devices(number: int) -> str:
    """Describes kind and platform of the run's devices: "4 x NVIDIA H100 (gpu)", "cpu"."""
    device = jax.devices()[0]
    kind = device.device_kind
    named = kind if kind == device.platform else f"{kind} ({device.platform})"
    return named if number == 1 else f"{number} x {named}"


def _put(x: Any, sharding: NamedSharding) -> jax.Array:
    """Places one array that every process has."""
    if isinstance(x, jax.Array) and x.sharding == sharding:
        return x
    if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_put(jax.random.key_data(x), sharding))
    held = np.asarray(x)
    return jax.make_array_from_callback(held.shape, sharding, lambda index: held[index])


def choose_layout(
    asked: Any, members: int = 1, shards: int | None = None, *, grouped: bool = False
) -> DeviceLayout:
    """Chooses the layout of a run.

    Args:
      asked: `devices` of the configuration: a number, "auto" for all (in a resumed run: as many as its
        shards allow), or None for one device, or all devices with several processes.
      members: M, runs in one program.
      shards: S of a resumed run, or as configured; None to choose S by the devices.
      grouped: whether this is a group of runs.

    Raises:
      ValueError: one line, for missing devices or a number that does not fit the run.
    """
    there = jax.devices()
    if asked is None:
        asked = len(there) if processes.has_several() else 1
    if asked == AUTO:
        fits = [n for n in range(1, len(there) + 1) if mesh_rows(n, members, shards)]
        asked = len(there) if processes.has_several() else max(fits)
    if isinstance(asked, bool) or not isinstance(asked, int) or asked < 1:
        raise ValueError(f"devices={asked}: must be a whole number of at least 1, or {AUTO}")
    if asked > len(there):
        kind = there[0].platform.upper()
        raise ValueError(f"devices={asked}: more than available; this machine has {len(there)} ({kind})")
    if processes.has_several() and asked != len(there):
        raise ValueError(
            f"devices={asked}: must be all {len(there)} devices of the {jax.process_count()} processes"
        )
    found = mesh_rows(asked, members, shards)
    if not found:
        runs = f", or {members} runs with them" if members > 1 else ""
        raise ValueError(f"devices={asked}: must divide the run's shards={shards}{runs}")
    return DeviceLayout.over(there[:asked], found, grouped=grouped)


def mesh_rows(devices: int, members: int, shards: int | None) -> int:
    """Rows of the mesh: the largest divisor of devices and members for which the shards fit the rest.

    Returns 0 if there is no such divisor.
    """
    for number in range(min(devices, members), 0, -1):
        fits = shards is None or shards % (devices // number) == 0
        if devices % number == 0 and members % number == 0 and fits:
            return number
    return 0
