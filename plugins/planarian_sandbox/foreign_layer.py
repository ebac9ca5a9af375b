"""A layer that was made elsewhere and came by a bundle: what may be in it, and how it is made to fit this host.

What overlayfs keeps in a layer names files below it by their handles on the host where it was made. Here those lead
nowhere: an upper directory would no longer be merged with the lower one, and the overlay would not mount (ESTALE). So
the handles go, and directories find what is below them by their paths again. Hard links that only the overlay's index
held together are made real ones before the index goes.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from planarian_core.errors import SandboxError
from planarian_core.file_tree import FileEntry, FileKind
from planarian_core.model import SandboxSpec
from planarian_sandbox.hidden import below as lies_in
from planarian_sandbox.hidden import hidden_paths
from planarian_sandbox.index import HEADER_SIZE, ORIGIN
from planarian_sandbox.inside import Inside
from planarian_sandbox.layer import NODES
from planarian_sandbox.layout import Layout
from planarian_sandbox.lower import LowerTree

_PARTS = ("upper", "work", "workspace")
_MARKS = frozenset({"opaque", "redirect", "impure", "origin", "nlink", "upper", "uuid", "whiteout", "xwhiteouts"})
"""Of overlayfs's marks those that show nothing but the layer's own files, and what lies below at the same place."""
_NLINK = "trusted.overlay.nlink"
_DEVICES = frozenset(os.makedev(*numbers) for numbers in NODES.values())
_LONGEST_LAYOUT = 65536


def objection(path: str, entry: FileEntry, *, trusted: bool) -> str:
    """Why something can't be in a layer from elsewhere; see :class:`planarian_core.interfaces.TakesLayers`."""
    first, _, rest = path.partition("/")
    if path and first not in _PARTS and path != "layout.json":
        return "something beside what a layer holds"
    if path in _PARTS and entry.kind is not FileKind.DIRECTORY:
        return "a part of the layer that is no directory"
    if path == "layout.json" and (entry.kind is not FileKind.FILE or entry.size > _LONGEST_LAYOUT):
        return "a description of the layer that is no plain file"
    if entry.kind is FileKind.BLOCK:
        return "a block device"
    if entry.kind is FileKind.CHARACTER and entry.device and not _own_device(path, entry):
        return "a device that sandboxes don't have"
    # In an overlay of root's the marks of an ordinary user's are attributes like any other.
    prefixes = ("trusted.overlay.",) if os.geteuid() == 0 else ("trusted.overlay.", "user.overlay.")
    marks = {name.removeprefix(prefix) for prefix in prefixes for name in entry.xattrs if name.startswith(prefix)}
    unknown = sorted(mark for mark in marks - _MARKS if not mark.startswith("overlay."))
    if unknown:
        return f"the mark {unknown[0][:80]!a}, by which a layer could show other files than its own"
    if "redirect" in marks and first == "upper" and rest and not trusted:
        return "a directory of the host's under another name"
    return ""


def _own_device(path: str, entry: FileEntry) -> bool:
    return path.startswith("upper/dev/") and entry.device in _DEVICES


def take_over(spec: SandboxSpec, *, trusted: bool) -> SandboxSpec:
    """Make a layer that was just written fit this host; see :class:`planarian_core.interfaces.TakesLayers`."""
    layout = Layout.load(spec.layer)
    if layout.workspace != os.path.realpath(spec.workspace):
        raise SandboxError(
            f"The layer was laid out for the workspace {layout.workspace[:200]!a}, not for {spec.workspace}.",
            code="sandbox-layer",
            state="nothing was taken over",
            remedy="get the bundle again from where it was made",
        )
    for path in hidden_paths((spec.home,), spec.hidden):
        if lies_in(layout.workspace, path):
            raise SandboxError(
                f"The layer's workspace {layout.workspace} lies in {path}, which is hidden from sandboxes here.",
                code="workspace-hidden",
                state="nothing was taken over",
                remedy="import it on another host",
            )
    try:
        with Inside.of_path(spec.layer) as layer:
            for name in ("upper", "work", "workspace", "workspace/upper", "workspace/work"):
                with suppress(FileExistsError):
                    _make(layer, name)
        if not layout.rootless:
            _rebase(spec.layer, Path("/"), links=False, keep=trusted)
            origin = Path(os.path.realpath(spec.origin or spec.workspace))
            _rebase(os.path.join(spec.layer, "workspace"), origin, links=True, keep=False)
    except OSError as error:
        raise SandboxError(
            f"The layer can't be made to fit this host: {error}.", code="sandbox-layer", state="nothing was taken over"
        ) from error
    return replace(spec, exclude=layout.exclude)


def _make(layer: Inside, path: str) -> None:
    parent, name = os.path.split(path)
    with layer.directory(parent or ".") as above:
        os.mkdir(name, 0o755, dir_fd=above.descriptor)


def _rebase(part: str, lower: Path, *, links: bool, keep: bool) -> None:
    """Put a part of a layer on other files than those that it grew over.

    Args:
        links: the files below came along, so what their hard links were is known.
        keep: change nothing if they are the very same files; what the layer says of that is to be believed.
    """
    with (
        closing(LowerTree(lower, without_mounts=False)) as below,
        Inside.of_path(part) as layer,
        layer.directory("upper") as upper,
    ):
        if keep and _attribute(upper, ORIGIN)[HEADER_SIZE:] == below.handle(""):
            return
        if links:
            _make_links_real(layer, below)
        _forget_handles(upper)
    shutil.rmtree(os.path.join(part, "work"))
    os.mkdir(os.path.join(part, "work"))


def _forget_handles(upper: Inside) -> None:
    """Take the marks away by which files of the layer name others by their handles."""
    _forget(f"/proc/self/fd/{upper.descriptor}", follow=True)
    for _, directory, names in _directories(upper):
        for name in names:
            _forget(f"/proc/self/fd/{directory.descriptor}/{name}", follow=False)


def _forget(path: str, *, follow: bool) -> None:
    for name in set(os.listxattr(path, follow_symlinks=follow)) & {ORIGIN, _NLINK}:
        os.removexattr(path, name, follow_symlinks=follow)


def _directories(top: Inside) -> Iterator[tuple[str, Inside, list[str]]]:
    """Each directory of a tree with its path (``""``: the top) and the names in it."""
    todo = [""]
    while todo:
        path = todo.pop()
        with top.directory(path or ".") as directory:
            with os.scandir(directory.descriptor) as found:
                entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
            yield path, directory, [name for name, _ in entries]
        todo += [_join(path, name) for name, is_directory in entries if is_directory]


# --- hard links ---


def _make_links_real(layer: Inside, below: LowerTree) -> None:
    """Give the other names of lower files with several, of which the layer has changed one, the changed file too."""
    changed = _indexed_files(layer)
    if not changed:
        return
    names = _lower_names(below)
    with layer.directory("upper") as upper:
        places = _merged_directories(upper, below)
        under = {place: lower for lower, place in places.items()}
        for paths in changed.values():
            links = {below_it.links for path in paths if (below_it := _beneath(path, under, below)) is not None}
            for other in sorted({name for link in links if link for name in names.get(link, ())}):
                _link(upper, below, paths[0], other, places)


def _indexed_files(layer: Inside) -> dict[int, list[str]]:
    """Regular files that the index has, by inode: their names in the layer."""
    inodes = set()
    with suppress(FileNotFoundError), layer.directory("work/index") as index:
        for name in index.names(10**9):
            found = os.stat(name, dir_fd=index.descriptor, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                inodes.add(found.st_ino)
    changed: dict[int, list[str]] = {}
    if inodes:
        with layer.directory("upper") as upper:
            for path, directory, names in _directories(upper):
                for name in names:
                    inode = os.stat(name, dir_fd=directory.descriptor, follow_symlinks=False).st_ino
                    if inode in inodes:
                        changed.setdefault(inode, []).append(_join(path, name))
    return changed


def _lower_names(below: LowerTree) -> dict[str, list[str]]:
    """All names of files with several, of the tree below."""
    names: dict[str, list[str]] = {}
    todo = [""]
    while todo:
        path = todo.pop()
        for entry in below.children(path):
            if entry.kind is FileKind.DIRECTORY:
                todo.append(_join(path, entry.name))
            elif entry.links:
                names.setdefault(entry.links, []).append(_join(path, entry.name))
    return names


def _merged_directories(upper: Inside, below: LowerTree) -> dict[str, str]:
    """By directory of the tree below, the one of the layer that is merged with it: elsewhere where it was renamed."""
    lower_of = {"": ""}
    for path, directory, _ in _directories(upper):
        parent, _, name = path.rpartition("/")
        if path and parent in lower_of:
            redirect = os.fsdecode(_attribute(directory, "trusted.overlay.redirect"))
            lower = redirect.strip("/") if redirect.startswith("/") else _join(lower_of[parent], redirect or name)
            found = below.entry(lower)
            opaque = _attribute(directory, "trusted.overlay.opaque") == b"y"
            if not opaque and found is not None and found.kind is FileKind.DIRECTORY:
                lower_of[path] = lower
    return {lower: path for path, lower in lower_of.items()}


def _attribute(directory: Inside, name: str) -> bytes:
    try:
        return os.getxattr(directory.descriptor, name)
    except OSError:
        return b""


def _beneath(path: str, under: dict[str, str], below: LowerTree) -> FileEntry | None:
    """The lower file that a file of the layer lies over."""
    parent, _, name = path.rpartition("/")
    return below.entry(_join(under[parent], name)) if parent in under else None


def _link(upper: Inside, below: LowerTree, source: str, target: str, places: dict[str, str]) -> None:
    """Give a file of the layer one more name, where the lower file ``target`` shows through; else leave it."""
    parts = target.split("/")
    depth = next(depth for depth in range(len(parts) - 1, -1, -1) if "/".join(parts[:depth]) in places)
    here = upper.directory(places["/".join(parts[:depth])] or ".")
    try:
        for at in range(depth, len(parts) - 1):
            entry = below.entry("/".join(parts[: at + 1]))
            deeper = _new_directory(here, parts[at], entry) if entry is not None else None
            if deeper is None:
                return
            os.close(here.descriptor)
            here = deeper
        with upper.directory(os.path.dirname(source) or ".") as above, suppress(FileExistsError):
            os.link(
                os.path.basename(source), parts[-1],
                src_dir_fd=above.descriptor, dst_dir_fd=here.descriptor, follow_symlinks=False,
            )  # fmt: skip
    finally:
        os.close(here.descriptor)


def _new_directory(here: Inside, name: str, entry: FileEntry) -> Inside | None:
    """A directory of the layer like the lower one; None where the layer has something of its own in its place."""
    try:
        os.mkdir(name, 0o700, dir_fd=here.descriptor)
    except FileExistsError:
        return None
    made = here.directory(name)
    os.fchown(made.descriptor, entry.uid, entry.gid)
    os.fchmod(made.descriptor, entry.mode)
    os.utime(made.descriptor, ns=(entry.mtime_ns, entry.mtime_ns))
    return made


def _join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name
