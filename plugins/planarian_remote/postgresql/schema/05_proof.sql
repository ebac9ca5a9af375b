-- A trial undo for each call costs more than the call. So what a trial showed is remembered: that this set of tables,
-- with these kinds of changes, in this shape, can be undone. Only where nothing else decides it, such as the rows.

-- What a call touched, by its images.
--   key        names the tables, the kinds of changes to each, and the tables' stamps
--   alike      no table had two rows updated, so no two rows of the call can be in each other's way
CREATE FUNCTION planarian.touched(
    p_id bigint, OUT images bigint, OUT relations oid[], OUT key text, OUT alike boolean
) LANGUAGE plpgsql STABLE AS $$
BEGIN
    SELECT sum(t.rows), array_agg(t.relation), 
           string_agg(concat_ws(' ', t.relation, t.kinds, planarian.stamp(t.relation)), ';' ORDER BY t.relation),
           bool_and(t.rows = 1 OR t.updated = 0)
    INTO images, relations, key, alike
    FROM (
        SELECT i.relation, count(*) AS rows, count(*) FILTER (WHERE i.old IS NOT NULL AND i.new IS NOT NULL) AS updated,
               concat(CASE WHEN bool_or(i.old IS NULL) THEN 'i' END,
                      CASE WHEN bool_or(i.old IS NOT NULL AND i.new IS NOT NULL) THEN 'u' END,
                      CASE WHEN bool_or(i.new IS NULL) THEN 'd' END) AS kinds
        FROM planarian.image i WHERE i.effect = p_id GROUP BY i.relation
    ) t;
    images := coalesce(images, 0);
END $$;

-- Differs once anything about a table was changed that matters for writing to it: which transactions wrote the rows
-- that describe it. (Checks, rules, policies, children and partitioning show in pg_class, foreign keys in pg_trigger.)
CREATE FUNCTION planarian.stamp(p_relation oid) RETURNS text STABLE LANGUAGE plpgsql AS $$
BEGIN
    RETURN @STAMP p_relation@;
END $$;

-- Makes sure by a trial that an effect can be undone; returns its tables' shapes. p_quick: what holds for it holds for
-- all with this key.
CREATE FUNCTION planarian.prove(p_id bigint, p_key text, p_relations oid[], p_quick boolean)
RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    v_shapes jsonb;
    v_relation oid;
BEGIN
    PERFORM planarian.check_watched(p_relations);
    FOREACH v_relation IN ARRAY p_relations LOOP
        PERFORM planarian.note_watched(v_relation);
    END LOOP;
    SELECT jsonb_object_agg(relation, planarian.shape(relation)) INTO v_shapes FROM unnest(p_relations) relation;
    PERFORM planarian.try_undo(p_id);
    IF p_quick AND planarian.is_provable(p_relations) THEN
        INSERT INTO planarian.proof (key, shapes, closed)
        VALUES (p_key, v_shapes, planarian.is_closed(p_relations)) ON CONFLICT DO NOTHING;
    END IF;
    RETURN v_shapes;
END $$;

-- A trigger that was right when it was made may not pin what columns added since need.
CREATE FUNCTION planarian.check_watched(p_relations oid[]) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_unwatched oid[];
BEGIN
    SELECT array_agg(relation) INTO v_unwatched FROM unnest(p_relations) relation WHERE NOT planarian.is_watched(relation);
    IF v_unwatched IS NOT NULL THEN
        RAISE EXCEPTION '%', to_json(v_unwatched) USING ERRCODE = 'PLN02';
    END IF;
END $$;

-- Whether updating columns of several rows back may meet a unique index, row by row: one is over such a column, or
-- a user's trigger may change others.
CREATE FUNCTION planarian.may_collide(p_relations oid[], p_columns text[]) RETURNS boolean STABLE LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM pg_index i WHERE i.indrelid = ANY (p_relations) AND (i.indisunique OR i.indisexclusion) AND (
            i.indexprs IS NOT NULL OR i.indpred IS NOT NULL OR EXISTS (
                SELECT FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
                AND (a.attname = ANY (p_columns) OR a.attgenerated <> '')
            ))
    ) OR EXISTS (
        SELECT FROM pg_trigger t
        WHERE t.tgrelid = ANY (p_relations) AND NOT t.tgisinternal AND t.tgname <> 'planarian_capture'
    ) OR cardinality(p_relations) > 1
$$;

-- Whether what a trial shows for some rows of tables holds for all: no constraint that present rows may break, no code
-- of users' in types, constraints, indexes or policies, nothing that a publication would ask for besides.
CREATE FUNCTION planarian.is_provable(p_relations oid[]) RETURNS boolean STABLE LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT current_setting('session_replication_role') = 'origin'
    AND NOT EXISTS (
        SELECT FROM pg_class c WHERE c.oid = ANY (p_relations) AND (
            c.relrowsecurity OR c.relhasrules
            OR c.relreplident <> 'f' AND NOT EXISTS (
                SELECT FROM pg_index i
                WHERE i.indrelid = c.oid AND (c.relreplident = 'd' AND i.indisprimary OR c.relreplident = 'i' AND i.indisreplident)
            )
        )
    ) AND NOT EXISTS (
        SELECT FROM pg_attribute a LEFT JOIN pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = ANY (p_relations) AND a.attnum > 0 AND NOT a.attisdropped
          AND (a.atttypid >= 16384 OR t.typtype <> 'b' OR a.attcollation >= 16384)
    ) AND NOT EXISTS (
        SELECT FROM pg_constraint k WHERE (k.conrelid = ANY (p_relations) OR k.confrelid = ANY (p_relations))
          AND (NOT k.convalidated OR k.contype IN ('x', 't') OR planarian.has_foreign_code(k.conbin::text))
    ) AND NOT EXISTS (
        SELECT FROM pg_index i WHERE i.indrelid = ANY (p_relations)
          AND (NOT i.indisvalid OR planarian.has_foreign_code(i.indexprs::text) OR planarian.has_foreign_code(i.indpred::text))
    ) AND NOT EXISTS (
        SELECT FROM pg_attrdef d JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum
        WHERE d.adrelid = ANY (p_relations) AND a.attgenerated <> '' AND planarian.has_foreign_code(d.adbin::text)
    ) AND NOT EXISTS (
        SELECT FROM pg_trigger t WHERE t.tgrelid = ANY (p_relations) AND t.tgisinternal AND t.tgenabled <> 'O'
    )
$$;

-- Whether writing to tables runs no code of users, and reaches only tables whose rows are captured.
CREATE FUNCTION planarian.is_closed(p_relations oid[]) RETURNS boolean STABLE LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT planarian.unwatched(p_relations) IS NULL
    AND NOT EXISTS (
        SELECT FROM pg_class c
        WHERE c.oid = ANY (planarian.reach(p_relations)) AND (c.relkind <> 'r' OR c.relhassubclass OR c.relhasrules)
    )
    AND NOT EXISTS (SELECT FROM pg_operator WHERE oid >= 16384) AND NOT EXISTS (SELECT FROM pg_cast WHERE oid >= 16384)
    AND NOT EXISTS (
        SELECT FROM pg_trigger t WHERE t.tgrelid = ANY (planarian.reach(p_relations))
          AND NOT t.tgisinternal AND t.tgname <> 'planarian_capture'
    ) AND NOT EXISTS (
        SELECT FROM pg_attrdef d CROSS JOIN LATERAL regexp_matches(d.adbin::text, ':(?:opfuncid|funcid) ([0-9]+)', 'g') m
        WHERE d.adrelid = ANY (planarian.reach(p_relations)) AND m[1]::oid >= 16384
    )
$$;

-- Whether an expression calls functions of users', or such whose value may change.
CREATE FUNCTION planarian.has_foreign_code(p_expression text) RETURNS boolean STABLE LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(p_expression ~ 'SQLVALUEFUNCTION|NEXTVALUEEXPR', false) OR EXISTS (
        SELECT FROM regexp_matches(p_expression, ':(?:opfuncid|funcid) ([0-9]+)', 'g') m
        LEFT JOIN pg_proc p ON p.oid = m[1]::oid WHERE p.oid IS NULL OR p.oid >= 16384 OR p.provolatile <> 'i'
    )
$$;

-- Undoes an effect and takes that back. What can't be undone now is refused now.
CREATE FUNCTION planarian.try_undo(p_id bigint) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM planarian.transform(ARRAY[p_id], '{}');
    RAISE EXCEPTION 'undone' USING ERRCODE = 'PLN00';
EXCEPTION
    WHEN SQLSTATE 'PLN00' THEN
        NULL;
    WHEN lock_not_available OR query_canceled OR deadlock_detected OR SQLSTATE 'PLN01' THEN
        RAISE;
    WHEN OTHERS THEN
        PERFORM planarian.refuse(format('a trial showed that it could not be undone: %s', SQLERRM));
END $$;
