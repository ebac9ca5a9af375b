-- A trial undo for each call costs more than the call. So what a trial showed is remembered: that this set of tables,
-- with these kinds of changes, in this shape, can be undone. Only where nothing else decides it, such as the rows.

-- What a call touched, by its images and by the server's counters.
--   key        names the tables, the kinds of changes to each, and the tables' stamps
--   alike      no table had two rows updated, so no two rows of the call can be in each other's way
--   seen       a table's counter differs from what was captured of it (were it zero before the call)
--   elsewhere  rows written to other tables than those (of which our images are as many)
CREATE FUNCTION planarian.touched(
    p_id bigint, OUT images bigint, OUT relations oid[], OUT key text, OUT alike boolean, OUT seen boolean,
    OUT elsewhere bigint
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT coalesce(sum(t.rows), 0), array_agg(t.relation), 
           string_agg(concat_ws(' ', t.relation, t.kinds, planarian.stamp(t.relation)), ';' ORDER BY t.relation),
           bool_and(t.rows = 1 OR t.updated = 0), coalesce(bool_or(t.rows <> t.changes), false),
           (SELECT sum(planarian.changes(c.oid)) FROM pg_class c WHERE c.oid >= 16384 AND c.relkind IN ('r', 'm'))
               - coalesce(sum(t.changes), 0)
    INTO images, relations, key, alike, seen, elsewhere
    FROM (
        SELECT i.relation, count(*) AS rows, count(*) FILTER (WHERE i.old IS NOT NULL AND i.new IS NOT NULL) AS updated,
               concat(CASE WHEN bool_or(i.old IS NULL) THEN 'i' END,
                      CASE WHEN bool_or(i.old IS NOT NULL AND i.new IS NOT NULL) THEN 'u' END,
                      CASE WHEN bool_or(i.new IS NULL) THEN 'd' END) AS kinds,
               planarian.changes(i.relation) AS changes
        FROM planarian.image i WHERE i.effect = p_id GROUP BY i.relation
    ) t;
END $$;

CREATE FUNCTION planarian.changes(p_relation oid) RETURNS bigint LANGUAGE sql AS $$
    SELECT pg_catalog.pg_stat_get_xact_tuples_inserted(p_relation) OPERATOR(pg_catalog.+)
           pg_catalog.pg_stat_get_xact_tuples_updated(p_relation) OPERATOR(pg_catalog.+)
           pg_catalog.pg_stat_get_xact_tuples_deleted(p_relation)
$$;

-- Differs once anything about a table was changed that matters for writing to it: which transactions wrote the rows
-- that describe it.
CREATE FUNCTION planarian.stamp(p_relation oid) RETURNS text STABLE LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT concat_ws('/',
        (SELECT xmin FROM pg_class WHERE oid = p_relation),
        (SELECT string_agg(xmin::text, ',' ORDER BY attnum) FROM pg_attribute WHERE attrelid = p_relation AND attnum > 0),
        (SELECT string_agg(concat(oid, ':', xmin), ',' ORDER BY oid) FROM pg_trigger WHERE tgrelid = p_relation),
        (SELECT string_agg(concat(oid, ':', xmin), ',' ORDER BY oid) FROM pg_constraint WHERE conrelid = p_relation),
        (SELECT string_agg(concat(indexrelid, ':', xmin), ',' ORDER BY indexrelid) FROM pg_index
         WHERE indrelid = p_relation)
    )
$$;

-- Makes sure that an effect can be undone, by what is known or by a trial; returns its tables' shapes.
CREATE FUNCTION planarian.proven(p_id bigint, p_key text, p_relations oid[], p_alike boolean, p_columns text[])
RETURNS jsonb LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_shapes jsonb;
    v_quick boolean := p_alike;
BEGIN
    IF NOT v_quick AND p_columns IS NOT NULL THEN
        v_quick := NOT planarian.may_collide(p_relations, p_columns);
    END IF;
    IF v_quick THEN
        SELECT p.shapes INTO v_shapes FROM planarian.proof p WHERE p.key = p_key;
        IF FOUND THEN
            RETURN v_shapes;
        END IF;
    END IF;
    PERFORM planarian.check_watched(p_relations);
    SELECT jsonb_object_agg(relation, planarian.shape(relation)) INTO v_shapes FROM unnest(p_relations) relation;
    PERFORM planarian.try_undo(p_id);
    IF v_quick AND planarian.is_provable(p_relations) THEN
        INSERT INTO planarian.proof (key, shapes) VALUES (p_key, v_shapes);
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
-- of users' in types, constraints, indexes or policies, no replication that asks for more.
CREATE FUNCTION planarian.is_provable(p_relations oid[]) RETURNS boolean STABLE LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT EXISTS (SELECT FROM pg_publication)
    AND current_setting('session_replication_role') = 'origin'
    AND NOT EXISTS (
        SELECT FROM pg_class c WHERE c.oid = ANY (p_relations) AND (c.relrowsecurity OR c.relhasrules)
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
