"""Options of XLA's compiler."""

import jax

from algos import compiler


def test_quick_options_are_those_that_xla_accepts_and_only_on_a_cpu(monkeypatch):
    assert compiler.supported_options(compiler.quick_compile_options()) == compiler.quick_compile_options()
    assert "xla_cpu_use_fusion_emitters" not in compiler.quick_compile_options(devices=2)
    assert compiler.supported_options(
        {"xla_cpu_no_such_setting": True, "xla_backend_optimization_level": 0}
    ) == {"xla_backend_optimization_level": 0}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert compiler.quick_compile_options() == {}
