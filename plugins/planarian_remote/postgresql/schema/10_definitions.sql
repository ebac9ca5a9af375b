-- What a database's schema is, as text: two equal digests mean that a dump of it would be equal. Our own is left out.

CREATE FUNCTION planarian.schema_digest() RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT md5(coalesce(string_agg(d.line, E'\n' ORDER BY d.line COLLATE "C"), '')) FROM planarian.definitions() d (line)
$$;

CREATE FUNCTION planarian.is_theirs(p_namespace oid) RETURNS boolean STABLE LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM pg_namespace n WHERE n.oid = p_namespace
                   AND n.nspname !~ '^(planarian|pg_|information_schema$)')
$$;

CREATE FUNCTION planarian.definitions() RETURNS SETOF text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH theirs AS (SELECT * FROM pg_namespace WHERE nspname !~ '^(planarian|pg_|information_schema$)')
    SELECT concat_ws('|', 'schema', t.nspname, t.nspowner, t.nspacl, obj_description(t.oid, 'pg_namespace')) FROM theirs t
    UNION ALL
    SELECT planarian.relation_line(c) FROM pg_class c WHERE c.relnamespace IN (SELECT oid FROM theirs)
    UNION ALL
    SELECT planarian.column_line(a) FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace IN (SELECT oid FROM theirs) AND a.attnum > 0 AND NOT a.attisdropped AND c.relkind NOT IN ('i', 'I', 't')
    UNION ALL
    SELECT concat_ws('|', 'constraint', k.conrelid::regclass, k.contypid::regtype, k.conname, pg_get_constraintdef(k.oid),
                     k.conislocal, k.coninhcount,
                     obj_description(k.oid, 'pg_constraint'))
    FROM pg_constraint k WHERE k.connamespace IN (SELECT oid FROM theirs)
    UNION ALL
    SELECT concat_ws('|', 'trigger', pg_get_triggerdef(t.oid), t.tgenabled, obj_description(t.oid, 'pg_trigger'))
    FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace IN (SELECT oid FROM theirs) AND NOT t.tgisinternal AND t.tgname <> 'planarian_capture'
    UNION ALL
    SELECT concat_ws('|', 'rule', pg_get_ruledef(w.oid), w.ev_enabled)
    FROM pg_rewrite w JOIN pg_class c ON c.oid = w.ev_class WHERE c.relnamespace IN (SELECT oid FROM theirs)
    UNION ALL
    SELECT concat_ws('|', 'policy', p.polrelid::regclass, p.polname, p.polcmd, p.polpermissive, p.polroles,
                     pg_get_expr(p.polqual, p.polrelid), pg_get_expr(p.polwithcheck, p.polrelid))
    FROM pg_policy p
    UNION ALL
    SELECT concat_ws('|', 'function', p.oid::regprocedure, p.proowner, p.proacl, p.prokind,
                     CASE WHEN p.prokind IN ('f', 'p', 'w') THEN pg_get_functiondef(p.oid) END,
                     obj_description(p.oid, 'pg_proc'))
    FROM pg_proc p WHERE p.pronamespace IN (SELECT oid FROM theirs)
    UNION ALL
    SELECT concat_ws('|', 'type', t.oid::regtype, t.typtype, t.typowner, t.typacl, t.typbasetype::regtype, t.typtypmod,
                     t.typnotnull, t.typdefault, t.typcollation, obj_description(t.oid, 'pg_type'),
                     (SELECT string_agg(concat(e.enumsortorder, e.enumlabel), ',' ORDER BY e.enumsortorder)
                      FROM pg_enum e WHERE e.enumtypid = t.oid))
    FROM pg_type t WHERE t.typnamespace IN (SELECT oid FROM theirs)
    UNION ALL
    SELECT concat_ws('|', 'sequence', s.seqrelid::regclass, s.seqtypid, s.seqstart, s.seqincrement, s.seqmax, s.seqmin,
                     s.seqcache, s.seqcycle,
                     (SELECT string_agg(concat(d.refobjid::regclass, d.refobjsubid, d.deptype), ',') FROM pg_depend d
                      WHERE d.classid = 'pg_class'::regclass AND d.objid = s.seqrelid AND d.refobjsubid > 0))
    FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid WHERE c.relnamespace IN (SELECT oid FROM theirs)
    UNION ALL
    SELECT concat_ws('|', 'inherits', i.inhrelid::regclass, i.inhparent::regclass, i.inhseqno) FROM pg_inherits i
    UNION ALL
    SELECT concat_ws('|', 'published', r.prpubid, r.prrelid::regclass) FROM pg_publication_rel r
    UNION ALL
    SELECT * FROM planarian.other_definitions()
$$;

-- What no statement that is known to be undone makes or drops, but a function that it calls could; and our own.
CREATE FUNCTION planarian.other_definitions() RETURNS SETOF text LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT concat_ws('|', 'other', o.class::regclass, o.oid, o.xmin) FROM (
        SELECT tableoid AS class, oid, xmin FROM pg_cast WHERE oid >= 16384
        UNION ALL SELECT tableoid, oid, xmin FROM pg_operator WHERE oid >= 16384
        UNION ALL SELECT tableoid, oid, xmin FROM pg_collation WHERE oid >= 16384
        UNION ALL SELECT tableoid, oid, xmin FROM pg_statistic_ext
        UNION ALL SELECT tableoid, oid, xmin FROM pg_largeobject_metadata
        UNION ALL SELECT tableoid, oid, xmin FROM pg_default_acl
        UNION ALL SELECT tableoid, oid, xmin FROM pg_extension
        UNION ALL SELECT tableoid, oid, xmin FROM pg_event_trigger
        UNION ALL SELECT tableoid, oid, xmin FROM pg_publication
        UNION ALL SELECT tableoid, oid, xmin FROM pg_ts_config WHERE oid >= 16384
        UNION ALL SELECT tableoid, oid, xmin FROM pg_ts_dict WHERE oid >= 16384
        UNION ALL SELECT tableoid, oid, xmin FROM pg_class WHERE relnamespace = 'planarian'::regnamespace AND relkind IN ('r', 'S')
        UNION ALL SELECT tableoid, oid, xmin FROM pg_proc WHERE pronamespace = 'planarian'::regnamespace
    ) o
$$;

-- These two have no settings of their own, so that they are inlined: they are called for every row of a catalog.
CREATE FUNCTION planarian.relation_line(c pg_catalog.pg_class) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT concat_ws('|', 'relation', CASE WHEN c.relkind = 't' THEN 'toast' ELSE c.oid::regclass::text END, c.relkind,
                     c.relpersistence, c.relowner, c.relacl, c.reloptions, c.relrowsecurity, c.relforcerowsecurity,
                     c.relreplident, c.reltablespace, c.relam, obj_description(c.oid, 'pg_class'),
                     pg_get_expr(c.relpartbound, c.oid), CASE WHEN c.relkind IN ('v', 'm') THEN pg_get_viewdef(c.oid) END,
                     (SELECT concat_ws(',', pg_get_indexdef(i.indexrelid), i.indisvalid, i.indisclustered, i.indisreplident)
                      FROM pg_index i WHERE i.indexrelid = c.oid AND c.relkind <> 't'))
$$;

CREATE FUNCTION planarian.column_line(a pg_catalog.pg_attribute) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT concat_ws('|', 'column', a.attrelid::regclass,
                     (SELECT count(*) FROM pg_attribute b
                      WHERE b.attrelid = a.attrelid AND b.attnum BETWEEN 1 AND a.attnum AND NOT b.attisdropped),
                     a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated,
                     a.attislocal, a.attinhcount,
                     a.attcollation, a.attstorage, a.attcompression, a.attstattarget, a.attacl, a.attoptions,
                     (SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d
                      WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum),
                     col_description(a.attrelid, a.attnum))
$$;

-- What a table holds, as text: equal for equal rows in any order.
CREATE FUNCTION planarian.contents(p_relation oid) RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp SET "DateStyle" = 'ISO, MDY' SET "IntervalStyle" = 'postgres' SET "TimeZone" = 'UTC'
SET extra_float_digits = 1 SET bytea_output = 'hex' SET lc_monetary = 'C' AS $$
DECLARE
    v_text text;
BEGIN
    IF EXISTS (SELECT FROM pg_class c WHERE c.oid = p_relation AND c.relkind = 'S') THEN
        RETURN planarian.sequence_values(ARRAY[p_relation]);
    END IF;
    EXECUTE format(
        'SELECT concat(count(*), ''/'', sum(hashtextextended(textin(record_out(planarian_row)), 0))) FROM ONLY %s planarian_row',
        p_relation::regclass
    ) INTO v_text;
    RETURN v_text;
END $$;
