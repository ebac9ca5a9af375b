# ruff: noqa: S608  # the names are ours
"""A PostgreSQL schema as lines of text without OIDs, equal for equal schemas: half of a canonical dump.

Written over the catalogs and the server's own ``pg_get_…def`` functions. Statistics, file names and the order of
dropped columns are no part of a schema.
"""

from __future__ import annotations

SCHEMA = r"""
WITH hidden AS (
  SELECT oid FROM pg_namespace
  WHERE nspname LIKE ANY (:hidden) OR nspname ~ '^pg_' OR nspname = 'information_schema'
), relation AS (
  SELECT c.*, format('%I.%I', n.nspname, c.relname) AS name
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relnamespace NOT IN (SELECT oid FROM hidden)
)
SELECT 'schema', oid, format('%I owner %s acl %s', nspname, nspowner::regrole, nspacl)
  FROM pg_namespace WHERE oid NOT IN (SELECT oid FROM hidden)
UNION ALL
SELECT 'relation', c.oid, format('%s %s %s owner %s acl %s options %s rls %s%s identity %s am %s space %s of %s'
    ' partition of %s by %s', c.relkind, c.name, c.relpersistence, c.relowner::regrole, c.relacl, c.reloptions,
    c.relrowsecurity, c.relforcerowsecurity, c.relreplident, (SELECT amname FROM pg_am WHERE oid = c.relam),
    (SELECT spcname FROM pg_tablespace WHERE oid = c.reltablespace), NULLIF(c.reloftype, 0)::regtype,
    pg_get_expr(c.relpartbound, c.oid), CASE WHEN c.relkind = 'p' THEN pg_get_partkeydef(c.oid) END)
  FROM relation c WHERE c.relkind <> 'i'
UNION ALL
SELECT 'column', c.oid, format('%s #%s %I %s null %s default %s identity %s generated %s collation %s storage %s%s'
    ' statistics %s acl %s options %s inherited %s%s', c.name,
    row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum), a.attname, format_type(a.atttypid, a.atttypmod),
    NOT a.attnotnull, pg_get_expr(d.adbin, d.adrelid), a.attidentity, a.attgenerated,
    NULLIF(a.attcollation, 0)::regcollation, a.attstorage, to_jsonb(a)->>'attcompression', a.attstattarget,
    a.attacl, a.attoptions, a.attinhcount, a.attislocal)
  FROM relation c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
  WHERE c.relkind <> 'i'
UNION ALL
SELECT 'constraint', k.conrelid, format('%s %s %I %s valid %s inherited %s%s', c.name, k.contypid::regtype, k.conname,
    CASE WHEN k.contype <> 't' THEN pg_get_constraintdef(k.oid) END, k.convalidated, k.coninhcount, k.conislocal)
  FROM pg_constraint k LEFT JOIN relation c ON c.oid = k.conrelid
  WHERE k.oid >= 16384 AND k.connamespace NOT IN (SELECT oid FROM hidden)
UNION ALL
SELECT 'index', i.indrelid, format('%s valid %s clustered %s identity %s immediate %s space %s',
    pg_get_indexdef(i.indexrelid), i.indisvalid, i.indisclustered, i.indisreplident, i.indimmediate,
    (SELECT spcname FROM pg_tablespace WHERE oid = x.reltablespace))
  FROM pg_index i JOIN relation c ON c.oid = i.indrelid JOIN pg_class x ON x.oid = i.indexrelid
UNION ALL
SELECT 'trigger', t.tgrelid, format('%s enabled %s', pg_get_triggerdef(t.oid), t.tgenabled)
  FROM pg_trigger t JOIN relation c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid
  WHERE NOT t.tgisinternal AND p.pronamespace NOT IN (SELECT oid FROM pg_namespace WHERE nspname LIKE ANY (:hidden))
UNION ALL
SELECT 'constraint trigger', t.tgrelid, format('%s of %I: %s %s enabled %s', c.name,
    (SELECT conname FROM pg_constraint WHERE oid = t.tgconstraint), t.tgfoid::regproc, t.tgtype, t.tgenabled)
  FROM pg_trigger t JOIN relation c ON c.oid = t.tgrelid WHERE t.tgisinternal AND t.tgconstraint <> 0
UNION ALL
SELECT 'rule', r.ev_class, format('%s enabled %s', pg_get_ruledef(r.oid), r.ev_enabled)
  FROM pg_rewrite r JOIN relation c ON c.oid = r.ev_class
UNION ALL
SELECT 'inherits', i.inhrelid, format('%s inherits #%s %s %s', c.name,
    row_number() OVER (PARTITION BY i.inhrelid ORDER BY i.inhseqno), i.inhparent::regclass,
    to_jsonb(i)->>'inhdetachpending')
  FROM pg_inherits i JOIN relation c ON c.oid = i.inhrelid WHERE c.relkind <> 'i'
UNION ALL
SELECT 'sequence', c.oid, format('%s %s start %s by %s in %s %s cache %s cycle %s owned %s', c.name,
    s.seqtypid::regtype, s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache, s.seqcycle,
    (SELECT format('%s %s.%s', d.deptype, d.refobjid::regclass, (SELECT attname FROM pg_attribute
        WHERE attrelid = d.refobjid AND attnum = d.refobjsubid))
      FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
        AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')))
  FROM pg_sequence s JOIN relation c ON c.oid = s.seqrelid
UNION ALL
SELECT 'function', p.oid, format('%s owner %s acl %s %s', p.oid::regprocedure, p.proowner::regrole, p.proacl,
    CASE WHEN p.prokind <> 'a' THEN pg_get_functiondef(p.oid) ELSE (SELECT format('aggregate %s %s %s %s %s %s %s',
      a.aggkind, a.aggtransfn, a.aggfinalfn, a.aggcombinefn, a.aggtranstype::regtype,
      a.agginitval, a.aggsortop::regoper)
      FROM pg_aggregate a WHERE a.aggfnoid = p.oid) END)
  FROM pg_proc p WHERE p.oid >= 16384 AND p.pronamespace NOT IN (SELECT oid FROM hidden)
UNION ALL
SELECT 'type', t.oid, format('%s %s owner %s acl %s base %s(%s) null %s default %s collation %s labels %s'
    ' range %s io %s %s', t.oid::regtype, t.typtype, t.typowner::regrole, t.typacl, NULLIF(t.typbasetype, 0)::regtype,
    t.typtypmod, NOT t.typnotnull, t.typdefault, NULLIF(t.typcollation, 0)::regcollation,
    (SELECT array_agg(e.enumlabel ORDER BY e.enumsortorder) FROM pg_enum e WHERE e.enumtypid = t.oid),
    (SELECT format('%s %s %s', r.rngsubtype::regtype, r.rngcanonical, r.rngsubdiff) FROM pg_range r
      WHERE r.rngtypid = t.oid), t.typinput, t.typoutput)
  FROM pg_type t WHERE t.oid >= 16384 AND t.typnamespace NOT IN (SELECT oid FROM hidden)
UNION ALL
SELECT 'policy', p.polrelid, format('%s %I %s permissive %s to %s using %s check %s', c.name, p.polname, p.polcmd,
    p.polpermissive, p.polroles::regrole[], pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
  FROM pg_policy p JOIN relation c ON c.oid = p.polrelid
UNION ALL
SELECT 'statistics', s.stxrelid, format('%s owner %s target %s', pg_get_statisticsobjdef(s.oid), s.stxowner::regrole,
    s.stxstattarget)
  FROM pg_statistic_ext s WHERE s.stxnamespace NOT IN (SELECT oid FROM hidden)
UNION ALL
SELECT 'comment', d.objoid, format('%s: %s', (SELECT format('%s %s', i.type, i.identity)
    FROM pg_identify_object(d.classoid, d.objoid, d.objsubid) i), d.description)
  FROM pg_description d WHERE (d.objoid >= 16384 OR d.objoid = 2200)
    AND coalesce((pg_identify_object(d.classoid, d.objoid, d.objsubid)).schema, '') NOT LIKE ALL (:hidden)
UNION ALL
SELECT 'label', l.objoid, format('%s %s %s', l.classoid::regclass, l.provider, l.label) FROM pg_seclabel l
UNION ALL
SELECT 'setting', s.setrole, format('%s: %s', NULLIF(s.setrole, 0)::regrole, s.setconfig) FROM pg_db_role_setting s
  WHERE s.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
UNION ALL
SELECT 'large object', l.oid, format('%s owner %s acl %s', l.oid, l.lomowner::regrole, l.lomacl)
  FROM pg_largeobject_metadata l
"""
"""``:hidden`` stands for an array: patterns (of LIKE) of schemas left out, with the triggers that call into them."""

_OTHERS = (
    "pg_operator",
    "pg_opclass",
    "pg_opfamily",
    "pg_amop",
    "pg_amproc",
    "pg_cast",
    "pg_collation",
    "pg_conversion",
    "pg_language",
    "pg_event_trigger",
    "pg_publication",
    "pg_publication_rel",
    "pg_foreign_data_wrapper",
    "pg_foreign_server",
    "pg_user_mapping",
    "pg_default_acl",
    "pg_extension",
    "pg_transform",
    "pg_ts_config",
    "pg_ts_dict",
    "pg_ts_parser",
    "pg_ts_template",
    "pg_am",
)
"""Kinds of objects that are rare: their catalog rows as they are, named by their identity."""

OTHERS = "\nUNION ALL\n".join(
    f"SELECT '{name}', x.oid, format('%s %s', (pg_identify_object('{name}'::regclass, x.oid, 0)).identity,"
    f" to_jsonb(x) - 'oid') FROM {name} x WHERE x.oid >= 16384"
    for name in _OTHERS
)

CATALOGS = """
SELECT c.oid::regclass::text, (SELECT attname FROM pg_attribute WHERE attrelid = c.oid
    AND attname IN ('oid', 'attrelid', 'objoid', 'indrelid', 'aggfnoid', 'conrelid')
    AND relname <> 'pg_largeobject_metadata' ORDER BY attnum LIMIT 1)
  FROM pg_class c WHERE relkind = 'r' AND relnamespace = 'pg_catalog'::regnamespace AND NOT relisshared
    AND relname NOT IN ('pg_statistic', 'pg_statistic_ext_data', 'pg_depend', 'pg_largeobject')
"""
"""The catalogs in which every change of a schema shows, and the column that tells what came with the server."""

TABLES = """
SELECT c.oid, format('%I.%I', n.nspname, c.relname), pg_relation_filenode(c.oid), (
    SELECT md5(string_agg(format('%s %s %s %s', a.attnum, a.atttypid, a.attisdropped, a.attmissingval::text), ','
      ORDER BY a.attnum)) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'm') AND c.relpersistence <> 't' AND n.nspname !~ '^pg_'
    AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE ALL (:hidden) AND (c.relispopulated OR c.relkind = 'r')
  ORDER BY 2
"""

SEQUENCES = """
SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind = 'S' AND c.relpersistence <> 't' AND n.nspname NOT LIKE ALL (:hidden) ORDER BY 1
"""
