"""Our schema in the target database: put there with the first call that needs it, upgraded, or refused."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

VERSION = 3
"""Raised with each change of ``schema/`` that is released: a database with the same version keeps its functions."""
_PINNED = (
    "SET search_path = pg_catalog, pg_temp SET \"DateStyle\" = 'ISO, MDY' SET \"IntervalStyle\" = 'postgres' "
    "SET \"TimeZone\" = 'UTC'\n"
    "SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' SET xmloption = 'content'"
)
"""For functions that write values as text or read them: the settings of planarian.pinned_settings()."""
_STAMP = (
    "pg_catalog.concat((SELECT xmin FROM pg_catalog.pg_class WHERE oid OPERATOR(pg_catalog.=) {0}), "
    "ARRAY(SELECT xmin FROM pg_catalog.pg_attribute "
    "WHERE attrelid OPERATOR(pg_catalog.=) {0} AND attnum OPERATOR(pg_catalog.>) 0), "
    "ARRAY(SELECT xmin FROM pg_catalog.pg_trigger WHERE tgrelid OPERATOR(pg_catalog.=) {0}))"
)
"""What planarian.stamp() is, written into a query that asks for it with each call."""
_LOCK = 8_030_604_370_494_483_310
"""The advisory lock under which calls go one after the other."""


@cache
def script() -> str:
    """One statement that installs, or upgrades from an older version; error PLN04 where a newer one is there."""
    folder = files(__package__) / "schema"
    parts = sorted(part.name for part in folder.iterdir() if part.name.endswith(".sql"))
    functions = "\n".join((folder / part).read_text(encoding="utf-8") for part in parts)
    functions = re.sub(r"@STAMP (\S+)@", lambda relation: _STAMP.format(relation[1]), functions)
    script = _INSTALL.replace("@SCRIPT@", functions).replace("@PINNED@", _PINNED)
    return script.replace("@VERSION@", str(VERSION)).replace("@LOCK@", str(_LOCK))


_INSTALL = """DO $planarian_install$
DECLARE
    v_installed integer;
    r record;
BEGIN
    PERFORM pg_catalog.pg_advisory_xact_lock(@LOCK@);
    IF pg_catalog.to_regclass('planarian.installed') IS NOT NULL THEN
        SELECT pg_catalog.max(version) INTO v_installed FROM planarian.installed;
        IF v_installed > @VERSION@ THEN
            RAISE EXCEPTION '%', v_installed USING ERRCODE = 'PLN04';
        END IF;
        IF v_installed = @VERSION@ THEN
            RETURN;
        END IF;
        FOR r IN SELECT p.oid::pg_catalog.regprocedure AS name FROM pg_catalog.pg_proc p
            WHERE p.pronamespace = 'planarian'::pg_catalog.regnamespace AND p.proname <> 'capture'
        LOOP
            EXECUTE 'DROP FUNCTION ' || r.name || ' CASCADE';
        END LOOP;
    END IF;
    PERFORM pg_catalog.set_config('check_function_bodies', 'off', true);  -- functions call each other
    EXECUTE $planarian_script$ @SCRIPT@ $planarian_script$;
    DELETE FROM planarian.installed;
    INSERT INTO planarian.installed VALUES (@VERSION@);
END $planarian_install$"""
