"""What a backend is: one Protocol per kind, and the values that pass between the statepoint manager and backends.

A backend does one thing to one domain. It never calls the runtime, another backend or an adapter; what it needs of
another domain it is given as a value (:class:`RestoreEnvironment`, :class:`RunningSandbox`). A backend declares
``name`` and frozen ``capabilities`` (what the code can do); ``probe()`` says what this host allows.
"""

from __future__ import annotations

from planarian_core.interfaces.availability import (
    Availability,
)
from planarian_core.interfaces.files import (
    Collects,
    FilesystemBackend,
    FilesystemCapabilities,
    Layer,
    OpensTrees,
    PlacesLayers,
    Prehashing,
    ProvesUnchanged,
    StagedFiles,
    WritesBack,
)
from planarian_core.interfaces.processes import (
    Instant,
    ProcessBackend,
    ProcessCapabilities,
    ProvesStillness,
    RestartsCommands,
    RestoresTree,
    TakesImages,
    Thaws,
)
from planarian_core.interfaces.remote import (
    CallOutcome,
    Moved,
    Prepares,
    RecognizesEffects,
    RemoteService,
    ServesBranches,
    ServiceKind,
    TargetServer,
    ToolResult,
    ToolTarget,
    VersionsItself,
)
from planarian_core.interfaces.sandboxes import (
    AgentReply,
    AgentRequest,
    EndsAbandonedCalls,
    KillsAtOnce,
    MergesLayers,
    NamesPaths,
    OutputSink,
    RequestHandler,
    RestoreEnvironment,
    RunningSandbox,
    SandboxBackend,
    SandboxCapabilities,
    TakesLayers,
    TreeHost,
    Wakes,
    WritesInside,
)

__all__ = [
    "AgentReply",
    "AgentRequest",
    "Availability",
    "CallOutcome",
    "Collects",
    "EndsAbandonedCalls",
    "FilesystemBackend",
    "FilesystemCapabilities",
    "Instant",
    "KillsAtOnce",
    "Layer",
    "MergesLayers",
    "Moved",
    "NamesPaths",
    "OpensTrees",
    "OutputSink",
    "PlacesLayers",
    "Prehashing",
    "Prepares",
    "ProcessBackend",
    "ProcessCapabilities",
    "ProvesStillness",
    "ProvesUnchanged",
    "RecognizesEffects",
    "RemoteService",
    "RequestHandler",
    "RestartsCommands",
    "RestoreEnvironment",
    "RestoresTree",
    "RunningSandbox",
    "SandboxBackend",
    "SandboxCapabilities",
    "ServesBranches",
    "ServiceKind",
    "StagedFiles",
    "TakesImages",
    "TakesLayers",
    "TargetServer",
    "Thaws",
    "ToolResult",
    "ToolTarget",
    "TreeHost",
    "VersionsItself",
    "Wakes",
    "WritesBack",
    "WritesInside",
]
