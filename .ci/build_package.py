"""Build the source archive and the wheel into dist; check their sizes, and that the wheel works without the checkout.

The wheel is installed into build/wheel, with nothing but what it requires, and runs the first program of README.md.
"""

import re
import shutil
import subprocess
import sys
import tempfile
import time

from check_versions import ROOT, install

DIST = ROOT / "dist"
LARGEST = {".tar.gz": 2_000_000, ".whl": 1_000_000}
"""{ending: bytes}."""


def main() -> int:
    """Build and try; return the exit status."""
    shutil.rmtree(DIST, ignore_errors=True)
    build = [sys.executable, "-m", "build", "--outdir", str(DIST)]
    subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    for ending, largest in LARGEST.items():
        (path,) = DIST.glob(f"*{ending}")
        size = path.stat().st_size
        print(f"{path.name}: {size / 1e6:.2f} MB", flush=True)
        if size > largest:
            print(f"{path.name} has more than {largest} bytes: exclude files in pyproject.toml", file=sys.stderr)
            return 1
    (wheel,) = DIST.glob("*.whl")
    python = install(sys.executable, "wheel", str(wheel))
    (program, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        status = subprocess.run([str(python), "-I", "-c", program], cwd=folder, check=False).returncode
    print(f"the first program of README.md from the wheel: {time.monotonic() - start:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
