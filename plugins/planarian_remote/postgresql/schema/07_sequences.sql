-- Sequences don't take part in transactions. What a call moved is moved back where nobody else moved it since.

CREATE FUNCTION planarian.sequences_of(p_relations oid[]) RETURNS oid[] STABLE LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT array_agg(DISTINCT s.oid) FROM (
        SELECT d.objid AS oid FROM pg_depend d
        WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
          AND d.refobjid = ANY (planarian.reach(p_relations)) AND d.deptype IN ('a', 'i')
        UNION
        SELECT d.refobjid FROM pg_attrdef f
        JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid AND d.refclassid = 'pg_class'::regclass
        WHERE f.adrelid = ANY (planarian.reach(p_relations))
    ) s JOIN pg_class c ON c.oid = s.oid
    WHERE CASE c.relkind WHEN 'S' THEN has_sequence_privilege(c.oid, 'SELECT') ELSE false END
$$;

-- {sequence: "last value"}; one that was never used: "next value*".
CREATE FUNCTION planarian.sequence_values(p_sequences oid[]) RETURNS jsonb LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_values jsonb := '{}';
    v_value text;
    v_sequence oid;
BEGIN
    FOREACH v_sequence IN ARRAY coalesce(p_sequences, '{}') LOOP
        v_value := pg_sequence_last_value(v_sequence);
        IF v_value IS NULL THEN
            EXECUTE format('SELECT last_value || ''*'' FROM %s', v_sequence::regclass) INTO v_value;
        END IF;
        v_values := v_values || jsonb_build_object(v_sequence, v_value);
    END LOOP;
    RETURN v_values;
END $$;

CREATE FUNCTION planarian.sequence_moves(p_before jsonb) RETURNS jsonb LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_after jsonb;
BEGIN
    IF p_before IS NULL OR p_before = '{}' THEN
        RETURN '{}';
    END IF;
    v_after := planarian.sequence_values((SELECT array_agg(k::oid) FROM jsonb_object_keys(p_before) k));
    RETURN (
        SELECT coalesce(jsonb_object_agg(b.key, jsonb_build_array(b.value, v_after -> b.key)), '{}')
        FROM jsonb_each(p_before) b WHERE v_after -> b.key <> b.value
    );
END $$;

-- Follows the moves of effects, back (newest first) and then forth (oldest first), as far as they join up with where
-- each sequence is. Not transactional: the last thing that is done.
CREATE FUNCTION planarian.move_sequences(p_undo bigint[], p_redo bigint[]) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_values jsonb := '{}';
    v_start jsonb;
    r record;
BEGIN
    FOR r IN
        SELECT s.key, CASE WHEN o.back THEN s.value ->> 1 ELSE s.value ->> 0 END AS here,
               CASE WHEN o.back THEN s.value ->> 0 ELSE s.value ->> 1 END AS there
        FROM (
            SELECT id, true AS back, place FROM unnest(p_undo) WITH ORDINALITY u (id, place)
            UNION ALL SELECT id, false, cardinality(p_undo) + place FROM unnest(p_redo) WITH ORDINALITY d (id, place)
        ) o JOIN planarian.effect e ON e.id = o.id CROSS JOIN LATERAL jsonb_each(e.sequences) s
        WHERE EXISTS (SELECT FROM pg_class c WHERE c.oid = s.key::oid AND c.relkind = 'S')
        ORDER BY o.place
    LOOP
        IF NOT v_values ? r.key THEN
            v_values := v_values || planarian.sequence_values(ARRAY[r.key::oid]);
        END IF;
        IF v_values ->> r.key = r.here THEN
            v_values := v_values || jsonb_build_object(r.key, r.there);
        END IF;
    END LOOP;
    v_start := planarian.sequence_values((SELECT array_agg(k::oid) FROM jsonb_object_keys(v_values) k));
    PERFORM setval(e.key::oid::regclass, rtrim(e.value, '*')::bigint, right(e.value, 1) <> '*')
    FROM jsonb_each_text(v_values) e WHERE v_start ->> e.key <> e.value;
END $$;
