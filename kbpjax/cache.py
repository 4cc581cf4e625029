"""Compiled functions kept on disk, so that the first call of a later process does not compile them again."""

import os
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from kbpjax import _checks
from kbpjax._public import public


@public
def enable_compilation_cache(folder: str | Path | None = None) -> Path:
    """Keep compiled functions on disk, and take them from there in later processes.

    Most of the time of a first `fit` or `infer` is compilation. With the cache, only the first process on a machine
    compiles; later ones that call the same functions with arrays of the same shapes read what it wrote (measured in
    docs/performance.md). It is JAX's own cache (`jax_compilation_cache_dir`), for all that JAX compiles in this
    process; by default, JAX keeps nothing that compiles in less than a second. Call it before anything is computed:
    what is already compiled is not written.

    Files are never deleted, a few kB to 1 MB each. The folder can be removed at any time.

    Args:
        folder: where the files are; made if it does not exist. None: `kbpjax` in `$XDG_CACHE_HOME` or in `~/.cache`.

    Returns:
        The folder.

    Raises:
        ValueError: the folder cannot be made or written to.

    Examples:
        >>> import kbpjax as kbp
        >>> kbp.enable_compilation_cache()  # doctest: +SKIP
        PosixPath('/home/me/.cache/kbpjax')
    """
    if folder is None:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "kbpjax"
    path = Path(folder).expanduser().resolve()
    fix = "Pass another folder."
    try:
        path.mkdir(parents=True, exist_ok=True)
        writable = os.access(path, os.W_OK)
    except OSError:
        writable = False
    _checks.require(writable, "folder", "must be a folder that can be written to", repr(str(path)), fix)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # JAX decides at the first compilation whether there is a cache
    return path
