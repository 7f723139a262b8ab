"""The command line of a training as one process of several, which keeps what it compiles as the first does.

JAX lets only the first process write the persistent cache. On CPUs the keys of the others differ from its
own, so that they would compile everything in every run.
"""

from jax._src import compilation_cache, compiler

from jaxmarl_echelon import train


def keep(key, seconds, name, backend, executable, callbacks):
    compilation_cache.put_executable_and_time(key, name, executable, backend, int(seconds))


if __name__ == "__main__":
    # Where jax has moved the function, tests only take longer.
    if hasattr(compiler, "_cache_write"):
        compiler._cache_write = keep
    train.script()
