"""Strict settings for every test: 64 bit available, no silent promotion of types or ranks, shapes checked."""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jaxtyping
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

with jaxtyping.install_import_hook("kbpjax", "beartype.beartype"):
    import kbpjax as kbpjax


def pytest_collection_modifyitems(items):
    """Count the examples in docstrings among the slow tests: each compiles programs of its own."""
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            item.add_marker("slow")


@pytest.fixture(scope="module", autouse=True)
def forget_compiled_programs():
    """Drop what a test file has compiled: some hundred programs a file add up to gigabytes."""
    yield
    jax.clear_caches()


@pytest.fixture
def as_users_have_it():
    """Without the tests' own type checker, which refuses some wrong arguments before the package can."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module", autouse=True)
def quick_compilation(request):
    """Compile in half of the time, except for a test file that says `OPTIMISED = True`: the programs are short."""
    before = jax.config.read("jax_disable_most_optimizations")
    optimised = getattr(getattr(request.node, "obj", None), "OPTIMISED", False)
    jax.config.update("jax_disable_most_optimizations", before or not optimised)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
