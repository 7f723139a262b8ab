"""Modules outside the packages, such as benchmarks, loaded from their files."""

import importlib.util


def load_script(path):
    """Loads the file as a module named like the file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
