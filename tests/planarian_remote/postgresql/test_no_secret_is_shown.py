"""Passwords stay out of what people are shown of a database."""

from __future__ import annotations

import pytest

from planarian_core.errors import ConfigurationError
from planarian_core.interfaces import TargetServer
from planarian_remote.postgresql.direct import DirectTarget
from planarian_remote.postgresql.endpoint import shown_dsn, shown_server


@pytest.mark.parametrize("dsn", ["host=there password=my secret", "postgresql://agent:se%cret@there/shop"])
def test_a_dsn_that_cannot_be_read(dsn: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        DirectTarget(dsn).call("execute_sql", {"sql": "SELECT 1"})
    assert "cret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_endpoints() -> None:
    assert shown_dsn("postgresql://agent:secret@there:5432/shop?password=secret") == "postgresql://there:5432/shop"
    assert shown_dsn("host=there password='my secret' dbname=shop") == "postgresql:dbname=shop host=there"
    assert shown_server(TargetServer(command=("npx", "-y", "@toolbox-sdk/server"))) == "npx -y @toolbox-sdk/server"
    assert shown_server(TargetServer(command=("server", "--password", "secret"))) == "server"
    assert shown_server(TargetServer(command=("env", "PGPASSWORD=secret", "server"))) == "env"
    assert shown_server(TargetServer(url="https://me:secret@there/mcp?key=secret")) == "https://there/mcp"
