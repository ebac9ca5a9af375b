-- Changes of the schema, undone by an inverse that a trial showed to be one: the digest is what it was.

-- An inverse is {"undo": [steps], "redo": [steps]}. A step: {"do": "sql", "sql": a statement, "path": its search_path},
-- {"do": "aside" | "back", "oid": of a table or sequence, "contents": what it must hold}, or
-- {"do": "plain" | "column", "oid", "column", …} (14_columns.sql).
CREATE FUNCTION planarian.run_steps(p_id bigint, p_steps jsonb) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r record;
BEGIN
    FOR r IN SELECT s ->> 'do' AS what, s ->> 'sql' AS sql, s ->> 'path' AS path, (s ->> 'oid')::oid AS relation, s AS step
        FROM jsonb_array_elements(p_steps) s
    LOOP
        CASE r.what
            WHEN 'sql' THEN
                PERFORM set_config('search_path', r.path, true);
                EXECUTE r.sql;
                PERFORM set_config('search_path', 'pg_catalog, pg_temp', true);
            WHEN 'aside' THEN PERFORM planarian.put_aside(p_id, r.relation, r.step ->> 'contents');
            WHEN 'back' THEN PERFORM planarian.bring_back(p_id, r.relation);
            WHEN 'plain' THEN PERFORM planarian.check_plain(r.relation, r.step ->> 'column', r.step ->> 'value');
            WHEN 'column' THEN PERFORM planarian.repeat_column(r.relation, r.step);
        END CASE;
    END LOOP;
END $$;

CREATE FUNCTION planarian.conflict(p_what text, p_left text, p_found text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%', pg_catalog.json_build_array(
        pg_catalog.json_build_object('table', p_what, 'left', p_left, 'found', p_found)
    ) USING ERRCODE = 'PLN03';
END $$;

-- Drops a table or sequence so that it can come back: into a schema of ours. Its foreign keys go, and are remembered.
CREATE FUNCTION planarian.put_aside(p_id bigint, p_relation oid, p_contents text) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_what text;
    r record;
BEGIN
    SELECT format('%s %I.%I', CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, n.nspname, c.relname) AS name,
           n.nspname, c.relname, c.relkind
    INTO r FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = p_relation;
    IF NOT FOUND OR p_contents <> planarian.contents(p_relation) THEN
        PERFORM planarian.conflict(coalesce(r.name, 'a table'), 'what the call left', 'it was changed since');
    END IF;
    v_what := r.name;
    BEGIN  -- the real thing first: what depends on it makes it fail as it would without us
        EXECUTE 'DROP ' || v_what;
        RAISE EXCEPTION 'dropped' USING ERRCODE = 'PLN00';
    EXCEPTION WHEN SQLSTATE 'PLN00' THEN
        NULL;
    END;
    IF EXISTS (SELECT FROM pg_inherits i WHERE p_relation IN (i.inhrelid, i.inhparent)) THEN
        PERFORM planarian.refuse('a partition, or a table with children, can''t be put aside');
    END IF;
    INSERT INTO planarian.aside (effect, relation, namespace, foreign_keys)
    SELECT p_id, p_relation, r.nspname, coalesce(jsonb_agg(jsonb_build_array(k.conname, pg_get_constraintdef(k.oid))), '[]')
    FROM pg_constraint k WHERE k.contype = 'f' AND k.conrelid = p_relation;
    FOR r IN SELECT k.conname, p_relation::regclass AS name FROM pg_constraint k
        WHERE k.contype = 'f' AND k.conrelid = p_relation
    LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', r.name, r.conname);
    END LOOP;
    EXECUTE format('CREATE SCHEMA planarian_aside_%s', p_id);
    EXECUTE format('ALTER %s SET SCHEMA planarian_aside_%s', v_what, p_id);
END $$;

CREATE FUNCTION planarian.bring_back(p_id bigint, p_relation oid) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_aside planarian.aside;
    v_key jsonb;
BEGIN
    DELETE FROM planarian.aside a WHERE a.effect = p_id AND a.relation = p_relation RETURNING * INTO v_aside;
    EXECUTE format(
        'ALTER %s %s SET SCHEMA %I',
        CASE (SELECT c.relkind FROM pg_class c WHERE c.oid = p_relation) WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END,
        p_relation::regclass, v_aside.namespace
    );
    EXECUTE format('DROP SCHEMA planarian_aside_%s', p_id);
    FOR v_key IN SELECT * FROM jsonb_array_elements(v_aside.foreign_keys) LOOP
        EXECUTE format('ALTER TABLE %s ADD CONSTRAINT %I %s', p_relation::regclass, v_key ->> 0, v_key ->> 1);
    END LOOP;
END $$;

-- Makes a call that changes the schema. p_form says how its inverse is found (schema_change.py):
--   'create'  p_kind is what it makes ('TABLE', 'VIEW', …)
--   'drop'    p_kind and p_name are what it drops
--   'alter'   p_name is the table; p_undo, where the text alone gives it, the inverse; p_column the column it is about
CREATE FUNCTION planarian.apply_schema(
    p_version integer, p_owner text, p_number bigint, p_statement text, p_form text, p_kind text, p_name text,
    p_column text, p_undo text, p_lock_timeout text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_path text := pg_catalog.current_setting('search_path');
    v_name oid := pg_catalog.to_regclass(p_name);
    v_begun record;
    v_before text;
    v_files jsonb;
    v_counters jsonb;
    v_inverse jsonb;
BEGIN
    v_begun := planarian.begin_effect(p_version, p_lock_timeout, NULL, false, '{}');
    v_before := planarian.schema_digest();
    v_files := planarian.files();
    v_counters := planarian.counters();
    IF p_form = 'drop' THEN
        v_inverse := planarian.drop_inverse(p_kind, v_name, p_statement, v_path);
    ELSIF p_form = 'alter' THEN
        v_inverse := planarian.alter_inverse(v_name, p_column, p_undo, p_statement, v_path);
    END IF;
    IF v_inverse #>> '{redo,0,do}' = 'aside' THEN
        PERFORM planarian.run_steps(v_begun.id, v_inverse -> 'redo');
    ELSE
        EXECUTE p_statement;
    END IF;
    IF p_form = 'create' THEN
        v_inverse := planarian.create_inverse(p_kind, p_statement, v_path, v_files);
    ELSIF p_form = 'alter' AND p_undo IS NULL THEN
        v_inverse := planarian.constraint_inverse(v_name, p_statement, v_path);
    ELSIF p_undo IN ('drop column', 'default') THEN
        v_inverse := planarian.column_inverse(v_inverse, v_name, p_column, p_undo = 'drop column');
    END IF;
    IF NOT planarian.check_schema_change(v_begun.id, v_inverse, v_before, v_files, v_counters) THEN
        v_inverse := '{"undo": [], "redo": []}';  -- such as ALTER TABLE IF EXISTS of one that doesn't
    END IF;
    INSERT INTO planarian.effect (id, owner, number, state, kind, statement, row_count, inverse)
    VALUES (v_begun.id, p_owner, p_number, 'applied', 'schema', pg_catalog.left(p_statement, 10000), 0, v_inverse)
    ON CONFLICT (owner, number) DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'made before' USING ERRCODE = 'PLN08';
    END IF;
    RETURN planarian.answer('applied', 0, NULL, NULL);
END $$;

-- Where each relation is stored: a new place means that it was rewritten or emptied.
CREATE FUNCTION planarian.files() RETURNS jsonb STABLE LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_object_agg(c.oid, c.relfilenode) FROM pg_class c
    WHERE c.oid >= 16384 AND planarian.is_theirs(c.relnamespace)
$$;

-- Nothing but the schema may have changed; and undoing it, and doing it again, must give what was there. Returns whether
-- anything has changed at all.
CREATE FUNCTION planarian.check_schema_change(
    p_id bigint, p_inverse jsonb, p_before text, p_files jsonb, p_counters jsonb
) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_after text := planarian.schema_digest();
    v_table text;
BEGIN
    SELECT c.oid::regclass::text INTO v_table FROM jsonb_each_text(planarian.files()) f
    JOIN pg_class c ON c.oid = f.key::oid AND c.relkind IN ('r', 'm', 'S')
    WHERE p_files ? f.key AND p_files ->> f.key <> f.value LIMIT 1;
    IF FOUND THEN
        PERFORM planarian.refuse(format('it rewrites %s, and that can''t be undone', v_table));
    END IF;
    SELECT a.key::oid::regclass::text INTO v_table FROM jsonb_each_text(planarian.counters()) a
    WHERE a.key <> 'catalogs' AND p_files ? a.key AND a.value IS DISTINCT FROM coalesce(p_counters ->> a.key, '0') LIMIT 1;
    IF FOUND THEN
        PERFORM planarian.refuse(format('it also changes rows of %s', v_table));
    END IF;
    IF EXISTS (
        SELECT FROM jsonb_each_text(planarian.counters()) a
        WHERE a.key <> 'catalogs' AND a.value IS DISTINCT FROM coalesce(p_counters ->> a.key, '0')
          AND a.key::oid <> 'planarian.aside'::regclass
          AND a.key::oid IN (SELECT c.oid FROM pg_class c WHERE c.relnamespace = 'planarian'::regnamespace)
    ) THEN
        PERFORM planarian.refuse('the schema planarian holds undo data and is not for others');
    END IF;
    IF v_after = p_before THEN
        RETURN false;
    END IF;
    IF p_inverse IS NULL THEN
        PERFORM planarian.refuse('no statement is known that would undo it exactly');
    END IF;
    BEGIN
        PERFORM planarian.run_steps(p_id, p_inverse -> 'undo');
        IF planarian.schema_digest() <> p_before THEN
            RAISE EXCEPTION 'the schema would not be what it was' USING ERRCODE = 'PLN05';
        END IF;
        PERFORM planarian.run_steps(p_id, p_inverse -> 'redo');
        IF planarian.schema_digest() <> v_after THEN
            RAISE EXCEPTION 'it would not be the same when done again' USING ERRCODE = 'PLN05';
        END IF;
        RAISE EXCEPTION 'undone' USING ERRCODE = 'PLN00';
    EXCEPTION
        WHEN SQLSTATE 'PLN00' THEN
            NULL;
        WHEN lock_not_available OR query_canceled OR deadlock_detected OR SQLSTATE 'PLN01' THEN
            RAISE;
        WHEN OTHERS THEN
            PERFORM planarian.refuse(format('a trial showed that it could not be undone: %s', SQLERRM));
    END;
    RETURN true;
END $$;
