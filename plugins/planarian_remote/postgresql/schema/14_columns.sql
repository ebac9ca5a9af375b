-- A column that was added, or was given a default. Its default may have a value of that moment: now(), or 'today', which
-- the server works out when it reads the statement. Text of values is made under pinned settings.

-- What undoing and doing again need besides the statements: that the new column still holds its first value everywhere,
-- and what that value and the default were.
CREATE FUNCTION planarian.column_inverse(p_inverse jsonb, p_relation oid, p_column text, p_is_new boolean) RETURNS jsonb
LANGUAGE plpgsql
@PINNED@ AS $$
DECLARE
    v_value text;
    v_again jsonb := jsonb_build_object(
        'do', 'column', 'oid', p_relation, 'column', p_column, 'default', planarian.column_default(p_relation, p_column)
    );
BEGIN
    IF p_is_new AND p_relation IS NOT NULL THEN
        EXECUTE format('SELECT %I::text FROM %s LIMIT 1', p_column, p_relation::regclass) INTO v_value;
        v_again := v_again || jsonb_build_object('value', v_value);
        p_inverse := jsonb_set(p_inverse, '{undo,0,value}', coalesce(to_jsonb(v_value), 'null'));
    END IF;
    RETURN jsonb_insert(p_inverse, '{redo,-1}', v_again, true);
END $$;

CREATE FUNCTION planarian.column_default(p_relation oid, p_column text) RETURNS text STABLE LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE a.attrelid = p_relation AND a.attname = p_column AND NOT a.attisdropped AND a.attgenerated = ''
$$;

-- The step "plain": the column holds this value everywhere.
CREATE FUNCTION planarian.check_plain(p_relation oid, p_column text, p_value text) RETURNS void LANGUAGE plpgsql
@PINNED@ AS $$
DECLARE
    v_differs text;
BEGIN
    EXECUTE format('SELECT coalesce(%1$I::text, ''NULL'') FROM %2$s WHERE %1$I::text IS DISTINCT FROM $1 LIMIT 1',
                   p_column, p_relation::regclass) INTO v_differs USING p_value;
    IF v_differs IS NOT NULL THEN
        PERFORM planarian.conflict(p_relation::regclass::text, format('%s: %s', p_column, coalesce(p_value, 'NULL')), v_differs);
    END IF;
END $$;

-- The step "column", after the statement was done again: its default, and where the column is new also its value in the
-- rows of the table and its children, are what they were the first time.
CREATE FUNCTION planarian.repeat_column(p_relation oid, p_step jsonb) RETURNS void LANGUAGE plpgsql
@PINNED@ AS $$
DECLARE
    v_column text := p_step ->> 'column';
    v_default text := p_step ->> 'default';
    r record;
BEGIN
    IF planarian.column_default(p_relation, v_column) IS DISTINCT FROM v_default THEN
        EXECUTE format('ALTER TABLE %s ALTER COLUMN %I ', p_relation::regclass, v_column)
            || coalesce('SET DEFAULT ' || v_default, 'DROP DEFAULT');
    END IF;
    IF NOT p_step ? 'value' THEN
        RETURN;
    END IF;
    FOR r IN
        WITH RECURSIVE family(id) AS (
            SELECT p_relation UNION SELECT i.inhrelid FROM pg_inherits i JOIN family f ON f.id = i.inhparent
        )
        SELECT f.id, f.id::regclass::text AS name, format_type(a.atttypid, a.atttypmod) AS type FROM family f
        JOIN pg_class c ON c.oid = f.id AND c.relkind = 'r'
        JOIN pg_attribute a ON a.attrelid = f.id AND a.attname = v_column AND NOT a.attisdropped AND a.attgenerated = ''
    LOOP
        PERFORM planarian.fill_column(r.id, r.name, v_column, r.type, p_step ->> 'value');
    END LOOP;
END $$;

CREATE FUNCTION planarian.fill_column(p_relation oid, p_name text, p_column text, p_type text, p_value text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_differs boolean;
    v_again text[];
    v_statement text;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM ONLY %s WHERE %I::text IS DISTINCT FROM $1)', p_name, p_column)
    INTO v_differs USING p_value;
    IF v_differs THEN
        v_again := planarian.silence(p_relation, p_name);
        EXECUTE format('UPDATE ONLY %1$s SET %2$I = $1::%3$s WHERE %2$I::text IS DISTINCT FROM $1', p_name, p_column, p_type)
        USING p_value;
        FOREACH v_statement IN ARRAY v_again LOOP
            EXECUTE v_statement;
        END LOOP;
    END IF;
END $$;
