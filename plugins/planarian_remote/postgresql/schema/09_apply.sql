-- Making a call: one function call, one transaction, effect and undo data together.

-- What the server itself thinks of a statement, without running it. EXPLAIN is opened as a cursor, which refuses
-- several statements in one string before any of them runs.
CREATE FUNCTION planarian.judge(
    p_statement text, OUT returns_rows boolean, OUT unwatched oid[], OUT sequences oid[]
) LANGUAGE plpgsql AS $$
DECLARE
    v_targets record;
    v_plan pg_catalog.jsonb;
    v_root pg_catalog.jsonb;
    r record;
BEGIN
    FOR r IN EXECUTE 'EXPLAIN (VERBOSE, FORMAT JSON) ' || p_statement LOOP
        v_plan := r."QUERY PLAN"::pg_catalog.jsonb;
    END LOOP;
    PERFORM planarian.check_plan(v_plan);
    v_root := v_plan -> 0 -> 'Plan';
    returns_rows := pg_catalog.jsonb_array_length(v_plan) = 1
        AND (v_root ->> 'Node Type' <> 'ModifyTable' OR v_root ? 'Output');
    v_targets := planarian.targets_of(v_plan);
    unwatched := planarian.unwatched(v_targets.targets);
    IF v_targets.inserts THEN
        sequences := planarian.sequences_of(v_targets.targets);
    END IF;
END $$;

-- Refuses plans with parts that leave no row image, or that reach our own schema.
CREATE FUNCTION planarian.check_plan(p_plan jsonb) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_function text;
BEGIN
    IF p_plan IS NULL OR EXISTS (SELECT FROM jsonb_array_elements(p_plan) e WHERE NOT e ? 'Plan') THEN
        PERFORM planarian.refuse('a rule of this table does more than change rows');
    END IF;
    IF p_plan @? 'strict $.** ? (@."Schema" starts with "planarian")' THEN
        PERFORM planarian.refuse('the schema planarian holds undo data and is not for others');
    END IF;
    v_function := (regexp_match(p_plan::text, '[[:<:]](' || planarian.forbidden_functions() || ')[(]', 'i'))[1];
    IF v_function IS NOT NULL THEN
        PERFORM planarian.refuse(format('%s leaves effects that are no rows and can''t be undone', v_function));
    END IF;
END $$;

-- Functions whose effects no row image shows, or that run a text as a statement: a regular expression of names.
CREATE FUNCTION planarian.forbidden_functions() RETURNS text IMMUTABLE LANGUAGE sql AS $$
    SELECT 'setval|pg_notify|set_config|lo_[a-z0-9_]+|loread|lowrite|dblink[a-z0-9_]*|pg_terminate_backend|pg_cancel_backend|'
           'pg_(try_)?advisory_[a-z0-9_]+|pg_reload_conf|pg_rotate_logfile[a-z0-9_]*|pg_logical_[a-z0-9_]+|pg_create_[a-z0-9_]+|pg_drop_[a-z0-9_]+|'
           'pg_replication_[a-z0-9_]+|pg_stat_reset[a-z0-9_]*|pg_switch_wal|pg_export_snapshot|pg_import_system_collations|'
           '(query|cursor|table|schema|database)_to_xml[a-z0-9_]*|ts_stat|ts_rewrite|crosstab[a-z0-9_]*|connectby|xpath_table|pg_file_[a-z0-9_]+|'
           'pg_promote|pg_wal_[a-z0-9_]+|brin_[a-z0-9_]+|gin_clean_pending_list'
$$;

CREATE FUNCTION planarian.targets_of(p_plan jsonb, OUT targets oid[], OUT inserts boolean) LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT coalesce(array_agg(DISTINCT c.oid), '{}'), coalesce(bool_or(m ->> 'Operation' IN ('Insert', 'Merge')), false)
    INTO targets, inserts
    FROM jsonb_path_query(p_plan, 'strict $.** ? (@."Node Type" == "ModifyTable")') m
    CROSS JOIN LATERAL (
        SELECT m ->> 'Schema' AS schema, m ->> 'Relation Name' AS name
        UNION SELECT t ->> 'Schema', t ->> 'Relation Name' FROM jsonb_array_elements(m -> 'Target Tables') t
    ) t
    JOIN pg_namespace n ON n.nspname = t.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.name;
    IF EXISTS (SELECT FROM pg_class c WHERE c.oid = ANY (targets) AND c.relkind = 'f') THEN
        PERFORM planarian.refuse('a foreign table is in another database, where the change can''t be undone');
    END IF;
    IF EXISTS (SELECT FROM pg_class c WHERE c.oid = ANY (targets) AND c.relpersistence = 't') THEN
        PERFORM planarian.refuse('a temporary table belongs to a connection that others use too; use a table');
    END IF;
END $$;

-- Which tables within reach of a statement need a trigger first.
CREATE FUNCTION planarian.unwatched(p_targets oid[]) RETURNS oid[] STABLE LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT array_agg(c.oid) FROM pg_class c
    WHERE c.oid = ANY (planarian.reach(p_targets)) AND c.relkind = 'r' AND NOT planarian.is_watched(c.oid)
$$;

-- Makes a call; PLN08 if it was made before, or is void. Its answer is planarian.answer's, or {"watch": tables} where nothing was done yet: they need
-- planarian.watch first.
--   p_target     the table, where the caller knows that the statement is a plain one on it: it names no other relation,
--                and calls no functions but p_functions, which are harmless if they are the system's own; else NULL
--   p_returns    whether it has RETURNING; looked at with p_target
--   p_kind       'i', 'u' or 'd': what happens to each row; looked at with p_target
--   p_columns    the columns that an UPDATE assigns, where the caller knows them
CREATE FUNCTION planarian.apply(
    p_version integer, p_owner text, p_number bigint, p_statement text, p_target text, p_returns boolean,
    p_kind text, p_functions text[], p_columns text[], p_max_rows bigint, p_lock_timeout text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_begun record;
    v_judged record;
    v_counters pg_catalog.jsonb;
    v_changes pg_catalog.int8[];
    v_sequences pg_catalog.jsonb;
    v_returns pg_catalog.bool := p_returns;
    v_rows pg_catalog.json[] := '{}';
    v_row_type text;
    v_count pg_catalog.int8 := 0;
    v_unused text;  -- an assignment is quicker than PERFORM
    r record;
BEGIN
    v_begun := planarian.begin_effect(
        p_version, p_lock_timeout, pg_catalog.to_regclass(p_target), p_kind = 'i', p_functions
    );
    IF v_begun.reach IS NOT NULL THEN
        v_changes := ARRAY[planarian.changes_to(v_begun.reach), planarian.changes('planarian.image'::pg_catalog.regclass)];
        IF v_begun.sequences IS NOT NULL THEN
            v_sequences := planarian.sequence_values(v_begun.sequences);
        END IF;
    ELSE
        v_judged := planarian.judge(p_statement);
        IF v_judged.unwatched IS NOT NULL THEN
            RETURN pg_catalog.json_build_object('watch', v_judged.unwatched)::pg_catalog.text;
        END IF;
        v_returns := v_judged.returns_rows;
        v_counters := planarian.counters();
        v_sequences := planarian.sequence_values(v_judged.sequences);
    END IF;
    v_unused := pg_catalog.set_config('planarian.effect', v_begun.id::pg_catalog.text, true);
    IF v_returns THEN
        FOR r IN EXECUTE p_statement LOOP
            IF v_count = 0 THEN
                v_row_type := planarian.row_type(r);
            END IF;
            v_count := v_count + 1;
            v_rows := pg_catalog.array_append(v_rows, pg_catalog.row_to_json(r));
        END LOOP;
    ELSE
        EXECUTE p_statement;
        GET DIAGNOSTICS v_count = ROW_COUNT;
    END IF;
    SET CONSTRAINTS ALL IMMEDIATE;
    IF v_changes IS NOT NULL AND v_count <= p_max_rows AND planarian.finish_plain(
        v_begun.id, p_owner, p_number, p_statement, v_count, CASE WHEN v_returns THEN pg_catalog.array_to_json(v_rows) END,
        v_row_type, v_begun.reach, v_changes, v_sequences, p_kind, p_columns
    ) THEN
        RETURN pg_catalog.json_build_object(
            'state', 'applied', 'count', v_count,
            'rows', CASE WHEN v_returns THEN pg_catalog.array_to_json(v_rows)::pg_catalog.text END, 'row_type', v_row_type
        );
    END IF;
    v_unused := pg_catalog.set_config('planarian.effect', '', true);
    RETURN planarian.finish_effect(
        v_begun.id, p_owner, p_number, p_statement, v_count,
        CASE WHEN v_returns THEN pg_catalog.array_to_json(v_rows) END, v_row_type, v_counters, v_begun.reach, v_changes,
        v_sequences, p_columns, p_max_rows
    );
END $$;

-- The end of a plain call on one table: true, and entered, where its like is proven, and the counters agree that as many
-- rows of the table as the statement says were changed and captured, and no others within reach. False: look more closely.
CREATE FUNCTION planarian.finish_plain(
    p_id bigint, p_owner text, p_number bigint, p_statement text, p_count bigint, p_rows json, p_row_type text,
    p_reach oid[], p_changes bigint[], p_sequences jsonb, p_kind text, p_columns text[]
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF p_count OPERATOR(pg_catalog.=) 0 OR p_kind IS NULL
        OR planarian.changes('planarian.image'::pg_catalog.regclass) OPERATOR(pg_catalog.-) p_changes[2]
           OPERATOR(pg_catalog.<>) p_count
        OR planarian.changes_to(p_reach) OPERATOR(pg_catalog.-) p_changes[1] OPERATOR(pg_catalog.<>) p_count
        OR p_count OPERATOR(pg_catalog.>) 1 AND p_kind OPERATOR(pg_catalog.=) 'u'
           AND planarian.may_collide(ARRAY[p_reach[1]], p_columns)
    THEN
        RETURN false;
    END IF;
    INSERT INTO planarian.effect (id, owner, number, state, statement, row_count, rows, row_type, shapes, sequences)
    SELECT p_id, p_owner, p_number, 'applied', pg_catalog.left(p_statement, 10000), p_count, p_rows, p_row_type, p.shapes,
           CASE WHEN p_sequences IS NULL THEN '{}' ELSE planarian.sequence_moves(p_sequences) END
    FROM planarian.proof p
    WHERE p.closed AND p.key OPERATOR(pg_catalog.=)
          pg_catalog.concat(p_reach[1], ' ', p_kind, ' ', @STAMP p_reach[1]@)
    ON CONFLICT (owner, number) DO NOTHING;
    RETURN FOUND;
END $$;

CREATE FUNCTION planarian.enter(
    p_id bigint, p_owner text, p_number bigint, p_statement text, p_count bigint, p_rows json, p_row_type text,
    p_shapes jsonb, p_sequences jsonb
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO planarian.effect (id, owner, number, state, statement, row_count, rows, row_type, shapes, sequences)
    VALUES (
        p_id, p_owner, p_number, 'applied', left(p_statement, 10000), p_count, p_rows, p_row_type, p_shapes,
        CASE WHEN p_sequences IS NULL THEN '{}' ELSE planarian.sequence_moves(p_sequences) END
    ) ON CONFLICT (owner, number) DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'made before' USING ERRCODE = 'PLN08';
    END IF;
END $$;

-- The end of a call: nothing may have escaped capture, and a trial must undo it unless that is proven for the like of
-- it; then it is entered.
CREATE FUNCTION planarian.finish_effect(
    p_id bigint, p_owner text, p_number bigint, p_statement text, p_count bigint, p_rows json, p_row_type text,
    p_counters jsonb, p_reach oid[], p_changes bigint[], p_sequences jsonb, p_columns text[], p_max_rows bigint
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_touched record := planarian.touched(p_id);
    v_quick boolean := v_touched.alike OR NOT planarian.may_collide(v_touched.relations, p_columns);
    v_closed boolean;
    v_shapes jsonb;
BEGIN
    IF v_quick THEN
        SELECT p.shapes, p.closed INTO v_shapes, v_closed FROM planarian.proof p WHERE p.key = v_touched.key;
    END IF;
    IF p_counters IS NOT NULL THEN
        PERFORM planarian.check_captured(p_id, p_counters);
    ELSIF NOT coalesce(v_closed, planarian.is_closed(p_reach))
        OR planarian.changes_to(p_reach) - p_changes[1] <> v_touched.images OR NOT v_touched.relations <@ p_reach
    THEN
        RAISE EXCEPTION 'look more closely' USING ERRCODE = 'PLN07';
    END IF;
    IF v_touched.images > p_max_rows THEN
        PERFORM planarian.refuse(format(
            'it changes %s rows, and at most %s can be kept for an undo: change fewer rows at a time',
            v_touched.images, p_max_rows
        ));
    END IF;
    IF v_shapes IS NULL AND v_touched.images > 0 THEN
        v_shapes := planarian.prove(p_id, v_touched.key, v_touched.relations, v_quick);
    END IF;
    PERFORM planarian.enter(
        p_id, p_owner, p_number, p_statement, p_count, p_rows, p_row_type, coalesce(v_shapes, '{}'), p_sequences
    );
    RETURN json_build_object('state', 'applied', 'count', p_count, 'rows', p_rows::text, 'row_type', p_row_type);
END $$;

-- Reading: in a transaction that can't write rows. The whole call is one, and refused if it changed other things.
CREATE FUNCTION planarian.read(p_version integer, p_statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_rows pg_catalog.json[] := '{}';
    v_row_type text;
    v_before pg_catalog.int8;
    r record;
BEGIN
    PERFORM planarian.check_version(p_version);
    v_before := planarian.catalog_changes();
    SET TRANSACTION READ ONLY;
    FOR r IN EXECUTE p_statement LOOP
        IF v_row_type IS NULL THEN
            v_row_type := coalesce(planarian.row_type(r), '');
        END IF;
        v_rows := pg_catalog.array_append(v_rows, pg_catalog.row_to_json(r));
    END LOOP;
    IF planarian.catalog_changes() <> v_before THEN
        PERFORM planarian.refuse('a function that it calls changes more than rows of tables');
    END IF;
    RETURN pg_catalog.json_build_object(
        'state', 'read', 'rows', pg_catalog.array_to_json(v_rows)::pg_catalog.text, 'row_type', v_row_type
    )::pg_catalog.text;
END $$;

-- The same rows again, for a caller that knows their types by now and lets the server send them as it sends any.
CREATE FUNCTION planarian.result(p_owner text, p_number bigint) RETURNS json STABLE LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
    SELECT rows FROM planarian.effect WHERE owner = p_owner AND number = p_number
$$;

-- The same for rows that were read: reads once more, for types that are known by now.
CREATE FUNCTION planarian.read_again(p_statement text) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    RETURN (planarian.read(planarian.version(), p_statement)::pg_catalog.json ->> 'rows')::pg_catalog.json;
END $$;

-- The names of types, as a list of column definitions takes them.
CREATE FUNCTION planarian.columns(p_version integer, p_types oid[]) RETURNS text STABLE LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT json_build_object('types', json_agg(format('%I.%I', n.nspname, t.typname) ORDER BY a.place))::text
    FROM unnest(p_types) WITH ORDINALITY a (oid, place)
    JOIN pg_type t ON t.oid = a.oid JOIN pg_namespace n ON n.oid = t.typnamespace
$$;
