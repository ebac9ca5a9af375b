"""Which host paths a sandbox must not see: credentials of every user, the shadow files, the home of Planarian."""

from __future__ import annotations

import glob
import os
import pwd
from collections.abc import Iterable, Iterator

from planarian_core.errors import ConfigurationError
from planarian_sandbox.layout import mount_roots

HOME_SECRETS = (
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".boto",
    ".s3cfg",
    ".docker",
    ".kube",
    ".netrc",
    ".npmrc",
    ".pypirc",
    ".pgpass",
    ".my.cnf",
    ".git-credentials",
    ".password-store",
    ".terraform.d",
    ".vault-token",
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".cache/huggingface/token",
    ".config/gcloud",
    ".config/gh",
    ".config/git/credentials",
    ".config/hub",
    ".config/containers/auth.json",
    ".config/rclone",
    ".config/openai",
    ".local/share/keyrings",
    ".local/share/planarian",
    ".claude",
    ".claude.json",
    ".codex",
    ".gemini",
    ".gem/credentials",
    ".composer/auth.json",
    ".bash_history",
)
"""Below every home directory. ``.gitconfig`` stays: without it commits have no author."""

SYSTEM_SECRETS = (
    "/etc/shadow*",
    "/etc/gshadow*",
    "/etc/security/opasswd",
    "/etc/sudoers*",
    "/etc/ssh/ssh_host_*",
    "/etc/ssl/private",
    "/etc/krb5.keytab",
    "/etc/docker/key.json",
)


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
    for path in wanted:
        for canonical in _with_target(path):
            found.update((canonical, *_other_names(canonical)))
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
        yield from glob.glob(pattern)
    yield from ("/etc/shadow", "/etc/gshadow", "/etc/sudoers")


def _personal() -> Iterator[str]:
    own = os.path.expanduser("~")
    homes = {own, "/root", *(entry.pw_dir for entry in pwd.getpwall())}
    for directory in sorted(homes):
        if directory in ("", "/") or not os.path.isdir(directory):
            continue
        personal = directory in (own, "/root") or directory.startswith("/home/")
        for name in HOME_SECRETS:
            path = os.path.join(directory, name)
            # Not there yet but to be hidden when it comes, though not in each of the /bin and /var/mail of a passwd.
            if os.path.lexists(path) or (personal and os.path.isdir(os.path.dirname(path))):
                yield path


def _other_names(path: str) -> Iterator[str]:
    """The path's name on the root file system when a bind mount brings it to where ``path`` says.

    The sandbox sees the root file system without what is mounted on it, so it would find the files there.
    """
    mounts = mount_roots()
    point = max((point for point in mounts if below(path, point)), key=len, default="/")
    device, root = mounts.get(point, ("", "/"))
    if point != "/" and device == mounts.get("/", ("", ""))[0]:
        yield os.path.normpath(f"{root}/{os.path.relpath(path, point)}")


def _with_target(path: str) -> Iterator[str]:
    """The path with its parents resolved, and what it points to when it is a symlink."""
    parent, name = os.path.split(os.path.normpath(path))
    canonical = os.path.join(os.path.realpath(parent), name)
    if os.path.isdir(os.path.dirname(canonical)):
        yield canonical
    if os.path.islink(canonical):
        target = os.path.realpath(canonical)
        if target != "/" and os.path.lexists(target):
            yield target
