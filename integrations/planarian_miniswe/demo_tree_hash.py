"""Prints one hash for a whole directory tree: the demo's witness, which shares no code with Planarian.

Stand-alone: ``python3 -I demo_tree_hash.py DIRECTORY``. Names, kinds, modes, owners, modification times in
nanoseconds, link targets, extended attributes and contents all count; ignored and untracked files and ``.git`` too.
"""

import hashlib
import os
import stat
import sys


def tree_hash(top: str) -> str:
    total = hashlib.sha256()
    paths = [top]
    for folder, directories, files in os.walk(top):
        paths += [os.path.join(folder, name) for name in directories + files]
    for path in sorted(paths):
        found = os.lstat(path)
        kept = (os.path.relpath(path, top), found.st_mode, found.st_uid, found.st_gid, found.st_mtime_ns)
        names = sorted(os.listxattr(path, follow_symlinks=False)) if hasattr(os, "listxattr") else []
        attributes = [(name, os.getxattr(path, name, follow_symlinks=False)) for name in names]
        content = ""
        if stat.S_ISLNK(found.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(found.st_mode):
            with open(path, "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(repr((kept, attributes, content)).encode("utf-8", "surrogateescape"))
    return total.hexdigest()


if __name__ == "__main__":
    print(tree_hash(sys.argv[1]))
