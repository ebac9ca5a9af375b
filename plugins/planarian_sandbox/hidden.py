"""Which host paths a sandbox must not see: credentials of every user, the shadow files, the home of Planarian."""

from __future__ import annotations

import glob
import os
import pwd
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache

from planarian_core.errors import ConfigurationError
from planarian_core.mounts import Mount, mounts

HOME_SECRETS = (
    # keys and passwords
    ".ssh",
    ".gnupg",
    ".netrc",
    ".password-store",
    ".local/share/keyrings",
    ".vault-token",
    ".config/op",
    ".config/sops",
    ".config/age",
    # clouds and clusters
    ".aws",
    ".azure",
    ".boto",
    ".s3cfg",
    ".oci",
    ".kube",
    ".terraform.d",
    ".databrickscfg",
    ".config/gcloud",
    ".config/doctl",
    ".config/hcloud",
    ".config/rclone",
    # registries of code, packages, images and models
    ".git-credentials",
    ".config/git/credentials",
    ".config/gh",
    ".config/glab-cli",
    ".config/hub",
    ".npmrc",
    ".pypirc",
    ".config/pypoetry/auth.toml",
    ".gem/credentials",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".composer/auth.json",
    ".m2/settings-security.xml",
    ".docker",
    ".config/containers/auth.json",
    ".kaggle",
    ".huggingface",
    ".cache/huggingface/token",
    ".cache/huggingface/stored_tokens",
    # databases
    ".pgpass",
    ".my.cnf",
    ".mylogin.cnf",
    # agents, and Planarian's own files of other users
    ".claude",
    ".claude.json",
    ".codex",
    ".gemini",
    ".config/openai",
    ".config/github-copilot",
    ".local/share/planarian",
    # what was typed
    ".bash_history*",
    ".zsh_history",
    ".local/share/fish/fish_history",
    ".python_history",
    ".node_repl_history",
    ".psql_history",
    ".mysql_history",
    ".sqlite_history",
    ".rediscli_history",
    # browsers and mail
    ".mozilla",
    ".thunderbird",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".config/microsoft-edge",
)
"""Below every home directory. ``.gitconfig`` stays: without it commits have no author."""

SYSTEM_SECRETS = (
    # passwords and who may become whom
    "/etc/shadow*",
    "/etc/gshadow*",
    "/etc/security/opasswd",
    "/etc/sudoers*",
    "/etc/krb5.keytab",
    # private keys
    "/etc/ssh/ssh_host_*",
    "/etc/ssl/private",
    "/etc/pki/tls/private",
    "/etc/letsencrypt",
    # networks
    "/etc/wireguard",
    "/etc/openvpn",
    "/etc/ipsec.secrets",
    "/etc/ppp/*-secrets",
    "/etc/wpa_supplicant",
    "/etc/NetworkManager/system-connections",
    # containers, clusters, clouds
    "/etc/docker/key.json",
    "/etc/kubernetes",
    "/etc/rancher",
    "/var/lib/kubelet",
    "/var/lib/rancher",
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/cloud",
    # what databases and cron keep; their directories stay, for programs inside expect to find them
    "/etc/mysql/debian.cnf",
    "/var/lib/postgresql/*",
    "/var/lib/pgsql/*",
    "/var/lib/mysql/*",
    "/var/lib/redis/*",
    "/var/lib/mongodb/*",
    "/var/spool/cron/**",
)
"""Patterns; ``**`` stands for all files below."""

_SOMETIMES_SECRET = (
    "~/.config/pip/pip.conf",
    "~/.pip/pip.conf",
    "~/.config/uv/uv.toml",
    "~/.m2/settings.xml",
    "~/.gradle/gradle.properties",
    "/etc/pip.conf",
)
"""Settings that tools need (where packages come from): hidden only when a password or token is in them."""
_SECRET = re.compile(rb"://[^/\s\"'@]+@|passw|passphrase|token|secret|credential", re.IGNORECASE)
_LONGEST_SETTINGS = 1024 * 1024


def hidden_paths(homes: Iterable[str], extra: Iterable[str] = ()) -> tuple[str, ...]:
    """Canonical paths to hide, sorted. Secrets that don't exist yet are among them where their directory exists.

    Args:
        homes: homes of Planarian, which hold every other sandbox's files.
        extra: absolute paths that the user wants hidden (``SandboxSpec.hidden``), ``~`` expanded.
    """
    wanted = [*homes, *_system(), *_personal()]
    for path in extra:
        expanded = os.path.expanduser(path)
        if not os.path.isabs(expanded) or os.path.realpath(expanded) == "/":
            raise ConfigurationError(f"hidden path {path!r} is not an absolute path below /.", code="hidden-path")
        wanted.append(expanded)
    found: set[str] = set()
    mounted = {mount.point: mount for mount in mounts()}
    parents = cache(_real_directory)  # most share theirs
    for path in wanted:
        for canonical in _with_target(path, parents):
            found.update((canonical, *_other_names(canonical, mounted)))
    return tuple(sorted(found))


def check_workspace(workspace: str, hidden: Iterable[str]) -> None:
    """ConfigurationError when the workspace is, or lies in, something that is hidden."""
    real = os.path.realpath(workspace)
    if real == "/":
        raise ConfigurationError("The workspace can't be the root directory.", code="workspace")
    if not os.path.isdir(real):
        raise ConfigurationError(f"The workspace {workspace} is not a directory.", code="workspace")
    for path in hidden:
        if below(real, path):
            raise ConfigurationError(
                f"The workspace {workspace} lies in {path}, which is hidden from sandboxes.",
                code="workspace-hidden",
                remedy="choose a workspace elsewhere",
            )


def below(path: str, ancestor: str) -> bool:
    """Whether ``path`` is ``ancestor`` or lies below it (both canonical)."""
    return path == ancestor or path.startswith(ancestor.rstrip("/") + "/")


def _system() -> Iterator[str]:
    for pattern in SYSTEM_SECRETS:
        found = glob.iglob(pattern, recursive=True, include_hidden=True)
        yield from (path for path in found if not ("**" in pattern and os.path.isdir(path)))
    yield from ("/etc/shadow", "/etc/gshadow", "/etc/sudoers")
    yield from (path for path in _SOMETIMES_SECRET if path.startswith("/") and _holds_secret(path))


def _personal() -> Iterator[str]:
    own = os.path.expanduser("~")
    homes = {own, "/root", *(entry.pw_dir for entry in pwd.getpwall())}
    for directory in sorted(homes):
        if directory in ("", "/") or not os.path.isdir(directory):
            continue
        personal = directory in (own, "/root") or directory.startswith("/home/")
        there = _names(directory)
        for name in HOME_SECRETS:
            if name.endswith("*"):
                yield from (os.path.join(directory, found) for found in there or () if found.startswith(name[:-1]))
                name = name[:-1]
            first, _, rest = name.partition("/")
            if there is not None and first not in there and (rest or not personal):
                continue
            path = os.path.join(directory, name)
            # Not there yet but to be hidden when it comes, though not in each of the /bin and /var/mail of a passwd.
            if os.path.lexists(path) or (personal and os.path.isdir(os.path.dirname(path))):
                yield path
        settings = (name[2:] for name in _SOMETIMES_SECRET if name.startswith("~"))
        likely = (name for name in settings if there is None or name.partition("/")[0] in there)
        yield from filter(_holds_secret, (os.path.join(directory, name) for name in likely))


def _names(directory: str) -> frozenset[str] | None:
    """What is in a directory; None where that can't be seen, though single names in it may."""
    try:
        return frozenset(os.listdir(directory))
    except OSError:
        return None


def _holds_secret(path: str) -> bool:
    """Whether a file of settings may hold a secret; one that can't be read counts as if it did."""
    if not os.path.isfile(path):
        return False
    try:
        with open(path, "rb") as file:
            content = file.read(_LONGEST_SETTINGS + 1)
    except OSError:
        return True
    return len(content) > _LONGEST_SETTINGS or _SECRET.search(content) is not None


def _other_names(path: str, mounted: Mapping[str, Mount]) -> Iterator[str]:
    """The path's name on the root file system when a bind mount brings it to where ``path`` says.

    The sandbox sees the root file system without what is mounted on it, so it would find the files there.
    """
    point = path
    while point not in mounted and point != "/":
        point = os.path.dirname(point)
    if point != "/" and "/" in mounted and mounted[point].device == mounted["/"].device:
        yield os.path.normpath(f"{mounted[point].root}/{os.path.relpath(path, point)}")


def _with_target(path: str, parents: Callable[[str], str]) -> Iterator[str]:
    """The path with its parents resolved, and what it points to when it is a symlink."""
    parent, name = os.path.split(os.path.normpath(path))
    directory = parents(parent)
    if not directory:
        return
    canonical = os.path.join(directory, name)
    yield canonical
    if os.path.islink(canonical):
        target = os.path.realpath(canonical)
        if target != "/" and os.path.lexists(target):
            yield target


def _real_directory(path: str) -> str:
    """A directory with its symlinks resolved; empty when it is none."""
    real = os.path.realpath(path)
    return real if os.path.isdir(real) else ""
