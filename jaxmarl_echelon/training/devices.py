"""Devices that a run lies on: a mesh of members and environments, and functions over it.

Members (seeds and variants of a group) never communicate and lie over devices first; environments lie over
the devices that are left to each member. Functions run under `jax.shard_map`, so that every collective
in a program is one that `algos.axis` names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from algos import axis

PyTree = Any

MEMBERS = "member"


@dataclass(frozen=True)
class Layout:
    """How a run lies on its devices.

    Attributes:
      mesh: devices by `MEMBERS` and `axis.DEVICES`; None for one device, where nothing is placed.
      grouped: whether arrays have a leading axis of members.
    """

    mesh: Mesh | None = None
    grouped: bool = False

    @classmethod
    def over(cls, devices: Sequence[jax.Device], members: int, *, grouped: bool = False) -> "Layout":
        """The layout on these devices, of which `members` rows hold members of their own."""
        if len(devices) == 1 and devices[0] == jax.devices()[0]:
            return cls(None, grouped)
        names = (MEMBERS, axis.DEVICES)
        grid = np.array(devices).reshape(members, -1)
        return cls(Mesh(grid, names, axis_types=(AxisType.Auto,) * 2), grouped)

    @property
    def shared(self) -> Spec:
        """Of arrays without an axis of shards."""
        return Spec(MEMBERS) if self.grouped else Spec()

    def specs(self, local: PyTree) -> PyTree:
        """Of arrays by marks, whether they have an axis of shards (after that of members)."""
        mine = Spec(MEMBERS, axis.DEVICES) if self.grouped else Spec(axis.DEVICES)
        return jax.tree.map(lambda one: mine if one else self.shared, local)

    def spread(self, fn: Callable, given: tuple[PyTree, ...], found: PyTree) -> Callable:
        """The function over the whole mesh, by the specs of its arguments and results."""
        if self.mesh is None:
            return fn
        return jax.shard_map(fn, mesh=self.mesh, in_specs=given, out_specs=found, check_vma=False)
