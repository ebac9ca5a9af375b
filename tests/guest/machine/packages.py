"""Which Debian packages the guest is made of: asked of the mirror that this host uses, in an apt of its own."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from .commands import GuestError, run, say

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
KERNEL = "linux-image-cloud-amd64"

ROOT = (
    *("kmod", "procps", "iproute2", "util-linux", "mount", "busybox-static", "ca-certificates", "git"),
    *("zfsutils-linux", "python3-pyzfs", "criu", "python3-pycriu", "python3"),
    *("podman", "crun", "libcriu2", "runc", "conmon", "netavark", "nftables", "iptables"),
)
"""What is in the guest, with what it depends on; crun loads libcriu2 without depending on it."""
TOOLS = ("gcc", "make", "libc6-dev", "kmod", "perl", "gawk", "file", "dkms", "zstd", "e2fsprogs", "qemu-system-x86")
"""What builds and boots it, in a chroot, so that the host's own packages don't matter; the kernel's headers too."""

NEWER = (
    *("criu", "libcriu2", "libcompel1", "python3-pycriu", "podman", "crun", "runc", "conmon", "netavark"),
    *("golang-github-containers-common", "golang-github-containers-image", "containers-storage"),
    *("libc6", "libc-bin", "libnl-3-200", "libseccomp2", "libjson-c5"),
)
"""Drawn from Debian sid: CRIU below 4.2 can't dump a TCP socket on a current kernel."""

EXPECTED: Mapping[str, tuple[str, str]] = {
    "linux": ("6.12", "6.13"),
    "zfsutils-linux": ("2.3", "2.4"),
    "criu": ("4.2", "4.3"),
    "python3-pycriu": ("4.2", "4.3"),
    "podman": ("5.4", "6"),
    "crun": ("1.20", "2"),
    "runc": ("1.1", "2"),
    "python3": ("3.13", "3.14"),
}
"""The versions that the tests are known to fit: at least the first, below the second."""
OLDER: Mapping[str, tuple[str, str]] = {**EXPECTED, "criu": ("4.1.1", "4.2"), "python3-pycriu": ("4.1.1", "4.2")}
"""Those of Debian 13 alone, for when sid has moved on."""
_WISHES = hashlib.sha256(repr((ROOT, TOOLS, NEWER, EXPECTED, OLDER)).encode()).hexdigest()
_FRESH = 12 * 3600


def upstream(version: str) -> str:
    """``2:5.8.6+ds1-1`` is Debian's for 5.8.6."""
    return re.split(r"[-+~]", version.partition(":")[2] or version, maxsplit=1)[0]


def fits(version: str, bounds: tuple[str, str]) -> bool:
    found, low, below = (tuple(map(int, re.findall(r"\d+", text))) for text in (upstream(version), *bounds))
    return low <= found < below


class Apt:
    """An apt that knows the suites of the guest, and nothing of what the host has installed."""

    def __init__(self, folder: Path, suites: tuple[str, ...]) -> None:
        """``suites``: the first before the others but for :data:`NEWER`; several may share ``folder``."""
        if not KEYRING.is_file():
            raise GuestError(f"{KEYRING} is missing: apt-get install debian-archive-keyring (a Debian host is needed)")
        self.suites = suites
        self._mirror = _mirror()
        for name in ("lists/partial", "cache/archives/partial", "none"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        named = "-".join(suites)
        self.preferences = folder / f"{named}.preferences"
        self._environment = {"APT_CONFIG": str(folder / f"{named}.conf")}
        (folder / f"{named}.list").write_text("".join(f"{line}\n" for line in self.sources()))
        self.preferences.write_text(self._pins())
        settings = {
            "Dir::State::Lists": folder / "lists",
            "Dir::State::status": "/dev/null",
            "Dir::Cache": folder / "cache",
            "Dir::Cache::pkgcache": f"{named}.bin",
            "Dir::Cache::srcpkgcache": f"{named}-sources.bin",
            "Dir::Etc::sourcelist": folder / f"{named}.list",
            "Dir::Etc::sourceparts": folder / "none",
            "Dir::Etc::preferences": self.preferences,
            "Dir::Etc::preferencesparts": folder / "none",
            "APT::Architecture": "amd64",
            "APT::Architectures": "amd64",
            "APT::Get::List-Cleanup": "false",
            "APT::Sandbox::User": "root",
            "APT::Install-Recommends": "false",
            "Acquire::Languages": "none",
            "Acquire::Retries": "3",
        }
        (folder / f"{named}.conf").write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))
        run(["apt-get", "-qq", "update"], environment=self._environment)

    def sources(self) -> list[str]:
        options = {"sid": f"[signed-by={KEYRING} check-valid-until=no]"}  # its Release file may be old on a mirror
        plain = f"[signed-by={KEYRING}]"
        return [f"deb {options.get(suite, plain)} {self._mirror} {suite} main contrib" for suite in self.suites]

    def _pins(self) -> str:
        blocks = [("*", self.suites[0], 990), *(("*", suite, 200) for suite in self.suites[1:])]
        blocks += [(" ".join(NEWER), suite, 995) for suite in self.suites[1:]]
        return "\n".join(f"Package: {what}\nPin: release n={suite}\nPin-Priority: {p}\n" for what, suite, p in blocks)

    def resolve(self, packages: Iterable[str]) -> dict[str, str]:
        """All that an installation from nothing would take, with versions."""
        shown = run(["apt-get", "-s", "-qq", "install", *packages], environment=self._environment)
        return dict(re.findall(r"^Inst (\S+) \((\S+)", shown, flags=re.MULTILINE))

    def download(self, package: str, into: Path) -> Path:
        into.mkdir(parents=True, exist_ok=True)
        run(["apt-get", "-qq", "download", package], environment=self._environment, cwd=into)
        name = package.partition("=")[0]
        return next(into.glob(f"{name}_*.deb"))


@dataclass(frozen=True)
class Chosen:
    """The versions of everything that goes into the guest, and where they come from."""

    kernel: str
    """``6.12.94+deb13-cloud-amd64``"""
    versions: Mapping[str, str]
    zfs: str
    tools: Mapping[str, str]
    suites: tuple[str, ...]
    """Those that the guest's packages come from; the kernel and the tools come from the first."""


@cache
def _mirror() -> str:
    """The mirror that this machine's apt uses for Debian."""
    for line in run(["apt-get", "indextargets", "--format", "$(LABEL)|$(SITE)"]).splitlines():
        label, _, site = line.partition("|")
        if label == "Debian":
            return site
    raise GuestError("no Debian mirror among the apt sources (apt-get update)")


def remembered(note: Path) -> Chosen | None:
    """What :func:`choose` found for this ``note`` within the last hours, from the same wishes."""
    try:
        if time.time() - note.stat().st_mtime > _FRESH:
            return None
        kept = json.loads(note.read_text())
    except (OSError, ValueError):
        return None
    wishes = kept.pop("wishes")
    return Chosen(**{**kept, "suites": tuple(kept["suites"])}) if wishes == _WISHES else None


def remember(note: Path, chosen: Chosen) -> None:
    note.write_text(json.dumps({**asdict(chosen), "wishes": _WISHES}))


def choose(folder: Path) -> Chosen:
    """The newest that the tests are known to fit: sid's CRIU and Podman, else Debian 13's own, which is said."""
    if platform.machine() != "x86_64":
        raise GuestError(f"the guest is built for x86_64, this is {platform.machine()}")
    stable = Apt(folder, ("trixie",))
    image = next(name for name in stable.resolve([KERNEL]) if re.fullmatch(r"linux-image-\d.*", name))
    kernel = image.removeprefix("linux-image-")
    tools = stable.resolve([*TOOLS, f"linux-headers-{kernel}"])
    tools |= {"zfs-dkms": stable.resolve(["zfs-dkms"])["zfs-dkms"]}
    mixed = Apt(folder, ("trixie", "sid"))
    chosen = Chosen(kernel, mixed.resolve(ROOT), upstream(tools["zfs-dkms"]), tools, mixed.suites)
    wrong = _unfit(chosen, EXPECTED)
    if wrong:
        say(f"Debian sid has moved on ({', '.join(wrong)}): CRIU and Podman are those of Debian 13")
        chosen = replace(chosen, versions=stable.resolve(ROOT), suites=stable.suites)
        wrong = _unfit(chosen, OLDER)
    if wrong:
        raise GuestError(f"Debian has versions that the tests don't know: {', '.join(wrong)} (packages.py: EXPECTED)")
    return chosen


def _unfit(chosen: Chosen, expected: Mapping[str, tuple[str, str]]) -> list[str]:
    versions = {**chosen.versions, "linux": chosen.kernel}
    return [
        f"{name} {versions.get(name)}" for name, span in expected.items() if not fits(versions.get(name, "0"), span)
    ]
