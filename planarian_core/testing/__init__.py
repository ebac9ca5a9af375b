"""The testing kit: what plugin authors and applications test with.

- ``filesystem``, ``process``, ``sandbox``: a conformance suite for each backend kind, to subclass.
- ``fakes``: backends and a remote service, in plain Python.
- ``machine``: random cycles over a whole runtime against a model.
- ``pytest_plugin``: fixtures and marks.
- ``workloads``, ``oracle``: servers to run inside, and descriptions of file trees that use nothing of ours.

The named fault points are in :mod:`planarian_core.faults`.
"""
