-- How changes of the schema are undone.

CREATE FUNCTION planarian.step(p_sql text, p_path text) RETURNS jsonb IMMUTABLE LANGUAGE sql AS $$
    SELECT pg_catalog.jsonb_build_object('do', 'sql', 'sql', p_sql, 'path', p_path)
$$;

-- Of what was just made: the one new thing of that kind goes.
CREATE FUNCTION planarian.create_inverse(p_kind text, p_statement text, p_path text, p_files jsonb) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_new record;
    v_count bigint := 0;
    r record;
BEGIN
    FOR r IN
        SELECT c.oid, format('%I.%I', n.nspname, c.relname) AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE NOT coalesce(p_files, '{}') ? c.oid::text AND planarian.is_theirs(n.oid) AND CASE p_kind
              WHEN 'TABLE' THEN c.relkind IN ('r', 'p') WHEN 'VIEW' THEN c.relkind = 'v' WHEN 'SEQUENCE' THEN c.relkind = 'S'
              WHEN 'MATERIALIZED VIEW' THEN c.relkind = 'm' WHEN 'INDEX' THEN c.relkind IN ('i', 'I')
                  AND NOT EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = c.oid) ELSE false END
        UNION ALL
        SELECT n.oid, quote_ident(n.nspname) FROM pg_namespace n
        WHERE p_kind = 'SCHEMA' AND n.xmin = pg_current_xact_id()::xid AND planarian.is_theirs(n.oid)
        UNION ALL
        SELECT p.oid, p.oid::regprocedure::text FROM pg_proc p
        WHERE p_kind IN ('FUNCTION', 'PROCEDURE') AND p.xmin = pg_current_xact_id()::xid AND planarian.is_theirs(p.pronamespace)
        UNION ALL
        SELECT t.oid, t.oid::regtype::text FROM pg_type t
        WHERE p_kind IN ('TYPE', 'DOMAIN') AND t.xmin = pg_current_xact_id()::xid AND t.typelem = 0
          AND planarian.is_theirs(t.typnamespace)
        UNION ALL
        SELECT t.oid, format('%I ON %s', t.tgname, t.tgrelid::regclass) FROM pg_trigger t
        WHERE p_kind = 'TRIGGER' AND t.xmin = pg_current_xact_id()::xid AND NOT t.tgisinternal AND t.tgparentid = 0
    LOOP
        v_new := r;
        v_count := v_count + 1;
    END LOOP;
    IF v_count <> 1 THEN
        RETURN NULL;
    END IF;
    IF p_kind IN ('TABLE', 'SEQUENCE') THEN
        RETURN jsonb_build_object(
            'undo', jsonb_build_array(jsonb_build_object(
                'do', 'aside', 'oid', v_new.oid, 'contents', planarian.contents(v_new.oid))),
            'redo', jsonb_build_array(jsonb_build_object('do', 'back', 'oid', v_new.oid))
        );
    END IF;
    RETURN jsonb_build_object(
        'undo', jsonb_build_array(planarian.step(format('DROP %s %s', p_kind, v_new.name), 'pg_catalog')),
        'redo', jsonb_build_array(planarian.step(p_statement, p_path))
    );
END $$;

-- Of what is about to be dropped.
CREATE FUNCTION planarian.drop_inverse(p_kind text, p_name oid, p_statement text, p_path text) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_make text;
BEGIN
    IF p_name IS NULL THEN
        RETURN NULL;  -- IF EXISTS, or the server's own error
    END IF;
    IF NOT EXISTS (
        SELECT FROM pg_class c WHERE c.oid = p_name AND planarian.is_theirs(c.relnamespace) AND CASE p_kind
        WHEN 'TABLE' THEN c.relkind = 'r' WHEN 'SEQUENCE' THEN c.relkind = 'S' WHEN 'VIEW' THEN c.relkind = 'v'
        WHEN 'INDEX' THEN c.relkind = 'i' ELSE false END
    ) THEN
        RETURN NULL;
    END IF;
    IF p_kind IN ('TABLE', 'SEQUENCE') THEN
        RETURN jsonb_build_object(
            'undo', jsonb_build_array(jsonb_build_object('do', 'back', 'oid', p_name)),
            'redo', jsonb_build_array(jsonb_build_object(
                'do', 'aside', 'oid', p_name, 'contents', planarian.contents(p_name)))
        );
    END IF;
    v_make := CASE p_kind
        WHEN 'INDEX' THEN pg_get_indexdef(p_name)
        ELSE format('CREATE VIEW %s AS %s', p_name::regclass, pg_get_viewdef(p_name)) END;
    RETURN jsonb_build_object(
        'undo', jsonb_build_array(planarian.step(v_make, 'pg_catalog')),
        'redo', jsonb_build_array(planarian.step(p_statement, p_path))
    );
END $$;

-- Of what is about to be altered. p_undo: 'drop column', 'default', 'not null', or a statement.
CREATE FUNCTION planarian.alter_inverse(p_name oid, p_column text, p_undo text, p_statement text, p_path text) RETURNS jsonb
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_table text := p_name::regclass;
    v_undo text := p_undo;
    v_first jsonb := '[]';
    v_default text;
    v_not_null boolean;
BEGIN
    SELECT a.attnotnull, pg_get_expr(d.adbin, d.adrelid) INTO v_not_null, v_default
    FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = p_name AND a.attname = p_column AND NOT a.attisdropped;
    CASE p_undo
        WHEN 'drop column' THEN
            v_undo := format('ALTER TABLE %s DROP COLUMN %I', v_table, p_column);
            v_first := jsonb_build_array(jsonb_build_object('do', 'plain', 'oid', p_name, 'column', p_column));
        WHEN 'default' THEN
            v_undo := format('ALTER TABLE %s ALTER COLUMN %I ', v_table, p_column)
                || coalesce('SET DEFAULT ' || v_default, 'DROP DEFAULT');
        WHEN 'not null' THEN
            v_undo := format('ALTER TABLE %s ALTER COLUMN %I %s NOT NULL', v_table, p_column,
                             CASE WHEN v_not_null THEN 'SET' ELSE 'DROP' END);
        ELSE NULL;
    END CASE;
    RETURN jsonb_build_object(
        'undo', v_first || planarian.step(v_undo, p_path), 'redo', jsonb_build_array(planarian.step(p_statement, p_path))
    );
END $$;

-- Of a constraint that was just added.
CREATE FUNCTION planarian.constraint_inverse(p_name oid, p_statement text, p_path text) RETURNS jsonb LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE count(*) WHEN 1 THEN jsonb_build_object(
        'undo', jsonb_build_array(planarian.step(
            format('ALTER TABLE %s DROP CONSTRAINT %I', p_name::regclass, min(k.conname::text)), p_path)),
        'redo', jsonb_build_array(planarian.step(p_statement, p_path))
    ) END
    FROM pg_constraint k
    WHERE k.conrelid = p_name AND k.xmin = pg_current_xact_id()::xid AND k.conparentid = 0
$$;
