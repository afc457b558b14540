"""Puts libsmbdirect into the package, and marks the wheel as one for this platform and any Python 3.

The library is the one that SMBDIRECT_LIBRARY names. Without it, crates/capi/install builds it, which is in the
repository beside this folder. Without either, the installation ends here, so that there is no package without its
library.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
NAME = "libsmbdirect.so"


def give_up(why):
    """Ends the installation with a reason, which pip prints."""
    raise SystemExit(f"smbdirect: {why}")


def build_library(target):
    """Builds libsmbdirect from the source in the repository."""
    script = HERE.parent / "crates/capi/install"
    if not script.exists():
        give_up(
            "this source has no libsmbdirect. Install a wheel, or install from a checkout of the repository "
            "(pip install ./python), or set SMBDIRECT_LIBRARY to the path of the library"
        )
    for tool in ("cargo", "cc", "bash"):
        if shutil.which(tool) is None:
            give_up(
                f"libsmbdirect is built from source, and `{tool}` is missing. Install Rust and a C compiler, or "
                "set SMBDIRECT_LIBRARY to the path of the library"
            )
    with tempfile.TemporaryDirectory() as work:
        variables = {**os.environ, "DESTDIR": work, "PREFIX": "/usr", "LIBDIR": "/usr/lib"}
        if subprocess.run([str(script)], env=variables).returncode != 0:
            give_up("libsmbdirect could not be built; the lines above say why")
        shutil.copyfile(f"{work}/usr/lib/{NAME}", target)


class WithLibrary(build_py):
    """Copies the modules and the library."""

    def run(self):
        super().run()
        editable = getattr(self, "editable_mode", False)
        target = (HERE / "src" if editable else Path(self.build_lib)) / "smbdirect" / NAME
        given = os.environ.get("SMBDIRECT_LIBRARY")
        if not given:
            build_library(target)
        elif os.path.exists(given):
            shutil.copyfile(given, target)
        else:
            give_up(f"SMBDIRECT_LIBRARY is {given}, which does not exist")
        try:
            ctypes.CDLL(str(target)).smbdirect_version
        except (OSError, AttributeError) as error:
            give_up(f"the library cannot be used: {error}")


class PlatformWheel(bdist_wheel):
    """A wheel that depends on the platform, and not on the version of Python."""

    def get_tag(self):
        _, _, platform = super().get_tag()
        return "py3", "none", platform


class BinaryDistribution(Distribution):
    """A distribution that is not the same on each platform."""

    def has_ext_modules(self):
        return True


setup(cmdclass={"build_py": WithLibrary, "bdist_wheel": PlatformWheel}, distclass=BinaryDistribution)
