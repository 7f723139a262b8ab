"""Arrays that the host computes while environments are built."""

from typing import Any

import jax
import numpy as np
from jax.typing import DTypeLike


def put_array(values: Any, dtype: DTypeLike | None = None) -> jax.Array:
    """Returns host values as an array on the device, without compiling.

    `jnp.asarray` compiles a program for each new shape of a NumPy array, also where it converts one: 10 to 25
    ms each on a CPU. The maps and parameters of an environment have dozens of shapes.

    Args:
      values: numbers, nested sequences of numbers, or a NumPy array, which must not be changed afterwards.
      dtype: of the result; None for that of the values, with 32 bits unless JAX is told otherwise.
    """
    return jax.device_put(np.asarray(values, dtype))
