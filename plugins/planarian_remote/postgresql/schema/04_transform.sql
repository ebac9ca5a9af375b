-- Undoing and doing again, both at once: the net change of rows that a list of effects makes, backwards or forwards,
-- written as one statement, so that constraints are checked at its end and the order of rows doesn't matter.

-- How often each row text must be added (> 0) or removed (< 0).
CREATE FUNCTION planarian.net(p_undo bigint[], p_redo bigint[])
RETURNS TABLE (relation oid, image text, weight bigint) STABLE LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT i.relation, v.image, sum(v.weight)
    FROM (SELECT id, 1 AS back FROM unnest(p_undo) id UNION ALL SELECT id, -1 FROM unnest(p_redo) id) e
    JOIN planarian.image i ON i.effect = e.id
    CROSS JOIN LATERAL (VALUES (i.old, e.back), (i.new, -e.back)) v (image, weight)
    WHERE v.image IS NOT NULL GROUP BY 1, 2 HAVING sum(v.weight) <> 0
$$;

-- How rows of a table are found by key: a condition between two rows, %1$s and %2$s; NULL without a usable key (unique,
-- checked at once, over columns that are never NULL).
CREATE FUNCTION planarian.key_condition(p_relation oid) RETURNS text STABLE LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT string_agg(
        format('(%%2$s).%1$s OPERATOR(%2$I.%3$s) (%%1$s).%1$s',
               replace(quote_ident(a.attname), '%', '%%'), n.nspname, o.oprname), ' AND ' ORDER BY k
    )
    FROM pg_index i CROSS JOIN generate_series(0, i.indnkeyatts - 1) k
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k]
    JOIN pg_opclass c ON c.oid = i.indclass[k]
    JOIN pg_amop m ON m.amopfamily = c.opcfamily AND m.amopstrategy = 3
        AND m.amoplefttype = c.opcintype AND m.amoprighttype = c.opcintype
    JOIN pg_operator o ON o.oid = m.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace
    WHERE i.indrelid = p_relation AND i.indisunique AND i.indimmediate AND i.indisvalid
      AND i.indexprs IS NULL AND i.indpred IS NULL
      AND NOT EXISTS (
          SELECT FROM generate_series(0, i.indnkeyatts - 1) z
          JOIN pg_attribute b ON b.attrelid = i.indrelid AND b.attnum = i.indkey[z] WHERE NOT b.attnotnull
      )
    GROUP BY i.indexrelid, i.indisprimary, i.indisreplident
    ORDER BY i.indisprimary DESC, i.indisreplident DESC, i.indexrelid LIMIT 1
$$;

-- Where a table has no key: of equal rows as many as are wanted, whichever. The planner can't know how many there are,
-- and a nested loop over two lists of thousands would never end.
CREATE FUNCTION planarian.locate_equals(p_relation oid, p_name text) RETURNS bigint LANGUAGE plpgsql
SET enable_nestloop = off AS $$
DECLARE
    v_count bigint;
BEGIN
    EXECUTE format(
        'INSERT INTO planarian.work (relation, step, place, image)
         SELECT %1$s, ''d'', y.place, y.image
         FROM (SELECT planarian_row.ctid AS place, textin(record_out(planarian_row)) COLLATE "C" AS image,
                      row_number() OVER (PARTITION BY textin(record_out(planarian_row)) COLLATE "C") AS place_in_equals
               FROM ONLY %2$s planarian_row WHERE textin(record_out(planarian_row)) COLLATE "C" IN (
                   SELECT image FROM planarian.work WHERE relation = %1$s AND step = ''n'' AND weight < 0)) y
         JOIN planarian.work g
           ON g.relation = %1$s AND g.step = ''n'' AND g.image = y.image AND y.place_in_equals <= -g.weight',
        p_relation, p_name
    );
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Finds the rows that are to be removed, as they must be (compare and swap on the whole row); returns how many.
CREATE FUNCTION planarian.locate(p_relation oid, p_name text, p_key text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_count bigint;
BEGIN
    IF p_key IS NOT NULL THEN
        EXECUTE format(
            'INSERT INTO planarian.work (relation, step, place, image)
             SELECT %1$s, ''d'', planarian_row.ctid, g.image
             FROM (SELECT image, image::%2$s AS r FROM planarian.work
                   WHERE relation = %1$s AND step = ''n'' AND weight < 0 OFFSET 0) g
             JOIN ONLY %2$s planarian_row ON %3$s AND textin(record_out(planarian_row)) COLLATE "C" = g.image',
            p_relation, p_name, format(p_key, 'g.r', 'planarian_row')
        );
    ELSE
        RETURN planarian.locate_equals(p_relation, p_name);
    END IF;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    RETURN v_count;
END $$;

-- Decides which rows are updated rather than removed and added: those with the same key. An identity column that is
-- always generated can't be updated: its rows pair only with the same value there.
CREATE FUNCTION planarian.pair_by_key(p_relation oid, p_name text, p_key text) RETURNS void LANGUAGE plpgsql
SET enable_nestloop = off AS $$
DECLARE
    v_same text;
BEGIN
    SELECT string_agg(format(' AND (d.r).%1$I IS NOT DISTINCT FROM (a.r).%1$I', attname), '') INTO v_same
    FROM pg_attribute WHERE attrelid = p_relation AND attnum > 0 AND attidentity = 'a' AND NOT attisdropped;
    EXECUTE format(
        'WITH d AS (SELECT place, image::%1$s AS r FROM planarian.work WHERE relation = %2$s AND step = ''d'' OFFSET 0),
              a AS (SELECT image, image::%1$s AS r FROM planarian.work, generate_series(1, weight)
                    WHERE relation = %2$s AND step = ''n'' AND weight > 0 OFFSET 0)
         INSERT INTO planarian.work (relation, step, place, image)
         SELECT %2$s, CASE WHEN d.place IS NULL THEN ''i''::"char" ELSE ''u'' END, d.place, a.image
         FROM a LEFT JOIN d ON %3$s',
        p_name, p_relation, format(p_key, 'a.r', 'd.r') || coalesce(v_same, '')
    );
    DELETE FROM planarian.work d USING planarian.work u
    WHERE d.relation = p_relation AND d.step = 'd' AND u.relation = p_relation AND u.step = 'u' AND d.place = u.place;
END $$;

-- The same by what was captured: a row whose key changed is updated back, and ON UPDATE CASCADE works backwards.
CREATE FUNCTION planarian.pair_by_event(p_relation oid, p_undo bigint[], p_redo bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO planarian.work (relation, step, place, image)
    SELECT p_relation, CASE WHEN d.place IS NULL THEN 'i'::"char" ELSE 'u' END, d.place, a.image
    FROM (
        SELECT image FROM planarian.work, generate_series(1, weight)
        WHERE relation = p_relation AND step = 'n' AND weight > 0
    ) a
    LEFT JOIN LATERAL (
        SELECT e.now FROM (
            SELECT old AS wanted, new AS now FROM planarian.image WHERE effect = ANY (p_undo) AND relation = p_relation
            UNION ALL
            SELECT new, old FROM planarian.image WHERE effect = ANY (p_redo) AND relation = p_relation
        ) e WHERE e.wanted = a.image AND e.now IS NOT NULL LIMIT 1
    ) e ON true
    LEFT JOIN planarian.work d ON d.relation = p_relation AND d.step = 'd' AND d.image = e.now;
    DELETE FROM planarian.work d USING planarian.work u
    WHERE d.relation = p_relation AND d.step = 'd' AND u.relation = p_relation AND u.step = 'u' AND d.place = u.place;
END $$;

-- The steps of one table as parts of the one statement: deletes, then updates, then inserts.
CREATE FUNCTION planarian.parts(p_relation oid, p_name text, p_at integer, OUT ctes text, OUT counts text, OUT rows bigint)
LANGUAGE plpgsql AS $$
DECLARE
    v_columns record;
    v_steps record;
    v_after text := '';
BEGIN
    SELECT count(*) FILTER (WHERE step = 'd') AS d, count(*) FILTER (WHERE step = 'u') AS u,
           count(*) FILTER (WHERE step = 'i') AS i
    INTO v_steps FROM planarian.work WHERE relation = p_relation;
    SELECT string_agg(format('%I', attname), ', ' ORDER BY attnum) AS names,
           string_agg(format('(n.r).%I', attname), ', ' ORDER BY attnum) AS new_values,
           string_agg(format('%1$I = (n.r).%1$I', attname), ', ' ORDER BY attnum) FILTER (WHERE attidentity <> 'a')
               AS assignments
    INTO v_columns FROM pg_attribute
    WHERE attrelid = p_relation AND attnum > 0 AND NOT attisdropped AND attgenerated = '';
    rows := v_steps.d + v_steps.u + v_steps.i;
    ctes := '';
    counts := '';
    IF v_steps.d > 0 THEN
        ctes := ctes || format(
            ', d%1$s AS (DELETE FROM ONLY %2$s planarian_row USING planarian.work w
                         WHERE w.relation = %3$s AND w.step = ''d'' AND planarian_row.ctid = w.place RETURNING 1)',
            p_at, p_name, p_relation
        );
        v_after := format(' AND (SELECT count(*) FROM d%s) >= 0', p_at);
        counts := counts || format(' + (SELECT count(*) FROM d%s)', p_at);
    END IF;
    IF v_steps.u > 0 THEN
        ctes := ctes || format(
            ', u%1$s AS (UPDATE ONLY %2$s planarian_row SET %4$s
                         FROM (SELECT w.place, w.image::%2$s AS r FROM planarian.work w
                               WHERE w.relation = %3$s AND w.step = ''u'' OFFSET 0) n
                         WHERE planarian_row.ctid = n.place%5$s RETURNING 1)',
            p_at, p_name, p_relation, v_columns.assignments, v_after
        );
        v_after := v_after || format(' AND (SELECT count(*) FROM u%s) >= 0', p_at);
        counts := counts || format(' + (SELECT count(*) FROM u%s)', p_at);
    END IF;
    IF v_steps.i > 0 THEN
        ctes := ctes || format(
            ', i%1$s AS (INSERT INTO %2$s %4$s OVERRIDING SYSTEM VALUE
                         SELECT %5$s FROM (SELECT w.image::%2$s AS r FROM planarian.work w
                                           WHERE w.relation = %3$s AND w.step = ''i'' OFFSET 0) n
                         WHERE true%6$s RETURNING 1)',
            p_at, p_name, p_relation, '(' || v_columns.names || ')', v_columns.new_values, v_after
        );
        counts := counts || format(' + (SELECT count(*) FROM i%s)', p_at);
    END IF;
END $$;

-- Switches the users' triggers and rules of a table off (the owner's right), and returns what switches them on again.
CREATE FUNCTION planarian.silence(p_relation oid, p_name text) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    v_again text[] := '{}';
    r record;
BEGIN
    FOR r IN
        SELECT format('TRIGGER %I', tgname) AS what, tgenabled AS was FROM pg_trigger
        WHERE tgrelid = p_relation AND NOT tgisinternal AND tgname <> 'planarian_capture' AND tgenabled IN ('O', 'A')
        UNION ALL
        SELECT format('RULE %I', rulename), ev_enabled FROM pg_rewrite
        WHERE ev_class = p_relation AND rulename <> '_RETURN' AND ev_enabled IN ('O', 'A')
    LOOP
        EXECUTE format('ALTER TABLE ONLY %s DISABLE %s', p_name, r.what);
        v_again := v_again || format(
            'ALTER TABLE ONLY %s ENABLE %s%s', p_name, CASE r.was WHEN 'A' THEN 'ALWAYS ' ELSE '' END, r.what
        );
    END LOOP;
    RETURN v_again;
END $$;
