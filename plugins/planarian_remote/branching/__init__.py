"""The service kind ``branching``: services that have versions of their own (``docs/branching.md``)."""
