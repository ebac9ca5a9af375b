"""The virtual machine of ``nox -s guest``: built from Debian's packages, booted by QEMU's software emulation.

The paper's mechanisms need a kernel with soft-dirty tracking and ZFS, which few hosts have; this one has both, and KVM
isn't needed. ``python -m machine --help`` in ``tests/guest`` says how it is called.
"""
