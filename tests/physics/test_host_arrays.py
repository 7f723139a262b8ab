"""Arrays of the host are put on the device without a program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from physics.host_arrays import put_array


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (2.5, float),
        (True, None),
        ([1, 2, 3], np.float32),
        (np.linspace(0, 1, 7), None),
        ([[1.0, 2.0]], np.int32),
    ],
)
def test_put_array_equals_asarray(values, dtype):
    made, expected = put_array(values, dtype), jnp.asarray(values, dtype)
    assert (made.dtype, made.shape, made.weak_type) == (expected.dtype, expected.shape, False)
    np.testing.assert_array_equal(made, expected)


def test_put_array_compiles_nothing():
    compiled = []

    def listen(event, _seconds, **_details):
        compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        put_array(np.arange(12_345.0))
        put_array([0.25] * 54_321, np.float32)
        assert not [event for event in compiled if "compile" in event]
        jnp.asarray(np.zeros(12_347, np.float32) + 1)
        jnp.sin(np.zeros(12_349, np.float32))
        assert [event for event in compiled if "compile" in event]
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
