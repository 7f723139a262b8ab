"""Options of XLA's compiler."""

import jax

from algos import compiler


def test_evaluations_have_options_that_flags_do_not_set(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    chosen = {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}
    assert compiler.evaluation_compile_options() == compiler.supported_options(chosen)
    assert compiler.evaluation_compile_options(devices=2) == {"xla_backend_optimization_level": 1}
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=3")
    assert "xla_backend_optimization_level" not in compiler.evaluation_compile_options()
    assert float(compiler.jit_evaluation(lambda x: x + 1.0)(1.0)) == 2.0


def test_quick_options_are_those_that_xla_accepts_and_only_on_a_cpu(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    assert compiler.supported_options(compiler.quick_compile_options()) == compiler.quick_compile_options()
    assert "xla_cpu_use_fusion_emitters" not in compiler.quick_compile_options(devices=2)
    assert compiler.supported_options(
        {"xla_cpu_no_such_setting": True, "xla_backend_optimization_level": 0}
    ) == {"xla_backend_optimization_level": 0}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert compiler.quick_compile_options() == {}


def test_cpus_cut_into_devices_get_threads_for_several_collectives(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("os.environ", {"XLA_FLAGS": "--xla_force_host_platform_device_count=8 --other=1"})
    compiler.provide_collective_threads()
    assert compiler.os.environ["NPROC"] == "32"
    for given in ({}, {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}):
        monkeypatch.setattr("os.environ", given)
        compiler.provide_collective_threads()
        assert "NPROC" not in given
    kept = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "NPROC": "5"}
    monkeypatch.setattr("os.environ", kept)
    compiler.provide_collective_threads()
    assert kept["NPROC"] == "5"
