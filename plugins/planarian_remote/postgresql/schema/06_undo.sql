-- Writing a net change, all of it or nothing.

-- One attempt, with one way of pairing removed and added rows ('key', 'event', 'none'). Raises unless the rows were
-- changed back exactly: PLN03 where a row isn't as it was left (for planarian.conflicts to describe).
CREATE FUNCTION planarian.transform_once(p_undo bigint[], p_redo bigint[], p_pairing text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_own bigint := nextval('planarian.effect_id');
    v_again text[] := '{}';
    v_ctes text := '';
    v_counts text := '';
    v_wanted bigint := 0;
    v_done bigint;
    v_at integer := 0;
    v_statement text;
    v_part record;
    r record;
BEGIN
    IF pg_relation_size('planarian.work') > 1000000 THEN
        TRUNCATE planarian.work;  -- dead rows of earlier moves, which every scan would read
    END IF;
    DELETE FROM planarian.work;
    INSERT INTO planarian.work (relation, step, image, weight)
    SELECT n.relation, 'n', n.image, n.weight FROM planarian.net(p_undo, p_redo) n;
    FOR r IN
        SELECT w.relation, format('%I.%I', n.nspname, c.relname) AS name,
               coalesce(sum(-w.weight) FILTER (WHERE w.weight < 0), 0) AS removed,
               coalesce(sum(w.weight) FILTER (WHERE w.weight > 0), 0) AS added, planarian.key_condition(w.relation) AS key
        FROM planarian.work w LEFT JOIN pg_class c ON c.oid = w.relation LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
        GROUP BY 1, 2
    LOOP
        v_at := v_at + 1;
        IF r.removed > 0 AND planarian.locate(r.relation, r.name, r.key) <> r.removed THEN
            RAISE EXCEPTION '%', r.relation USING ERRCODE = 'PLN03';
        END IF;
        IF r.added > 0 AND r.removed > 0 AND p_pairing = 'key' AND r.key IS NOT NULL THEN
            PERFORM planarian.pair_by_key(r.relation, r.name, r.key);
        ELSIF r.added > 0 AND r.removed > 0 AND p_pairing = 'event' THEN
            PERFORM planarian.pair_by_event(r.relation, p_undo, p_redo);
        ELSIF r.added > 0 THEN
            INSERT INTO planarian.work (relation, step, image)
            SELECT relation, 'i', image FROM planarian.work, generate_series(1, weight)
            WHERE relation = r.relation AND step = 'n' AND weight > 0;
        END IF;
        v_part := planarian.parts(r.relation, r.name, v_at);
        v_ctes := v_ctes || v_part.ctes;
        v_counts := v_counts || v_part.counts;
        v_wanted := v_wanted + v_part.rows;
        v_again := v_again || planarian.silence(r.relation, r.name);
    END LOOP;
    IF v_wanted > 0 THEN
        PERFORM set_config('planarian.effect', v_own::text, true);
        EXECUTE 'WITH ' || substr(v_ctes, 3) || ' SELECT 0' || v_counts INTO v_done;
        SET CONSTRAINTS ALL IMMEDIATE;
        PERFORM set_config('planarian.effect', '', true);
        IF v_done <> v_wanted THEN
            RAISE EXCEPTION 'only % of % rows could be changed back', v_done, v_wanted USING ERRCODE = 'PLN05';
        END IF;
        PERFORM planarian.check_net(p_undo, p_redo, v_own);
    END IF;
    FOREACH v_statement IN ARRAY v_again LOOP
        EXECUTE v_statement;
    END LOOP;
    DELETE FROM planarian.work;
    DELETE FROM planarian.image WHERE effect = v_own;
END $$;

-- Whether what was done, as captured, is exactly what was to be done: nothing else, no row differently.
CREATE FUNCTION planarian.check_net(p_undo bigint[], p_redo bigint[], p_own bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_left record;
BEGIN
    SELECT n.relation::regclass AS name, left(n.image, 200) AS image INTO v_left
    FROM planarian.net(p_undo || p_own, p_redo) n LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'changing rows back would change %: %', v_left.name, v_left.image USING ERRCODE = 'PLN05';
    END IF;
END $$;

-- Undoes effects and does others again, as one net change. Raises PLN03 (conflict) or PLN05 (it can't be done).
CREATE FUNCTION planarian.transform(p_undo bigint[], p_redo bigint[]) RETURNS void LANGUAGE plpgsql
@PINNED@ SET jit = off AS $$
DECLARE
    v_pairing text;
    v_errors text := '';
    v_conflict text;
BEGIN
    FOREACH v_pairing IN ARRAY ARRAY['key', 'event', 'none'] LOOP
        BEGIN
            PERFORM planarian.transform_once(p_undo, p_redo, v_pairing);
            RETURN;
        EXCEPTION
            WHEN lock_not_available OR query_canceled OR deadlock_detected THEN
                RAISE;
            WHEN SQLSTATE 'PLN03' THEN
                v_conflict := planarian.conflicts(p_undo, p_redo);
                RAISE EXCEPTION '%', v_conflict USING ERRCODE = 'PLN03';
            WHEN OTHERS THEN
                v_errors := v_errors || CASE WHEN position(SQLERRM IN v_errors) > 0 THEN '' ELSE '; ' || SQLERRM END;
        END;
    END LOOP;
    RAISE EXCEPTION '%', substr(v_errors, 3) USING ERRCODE = 'PLN05';
END $$;

-- Rows that an undo would have to remove and that aren't there as they must be; `found`: what has the same key now. With
-- p_added also rows that it would have to add and whose key is taken by a row that it wouldn't remove.
CREATE FUNCTION planarian.differing(p_undo bigint[], p_redo bigint[], p_added boolean)
RETURNS TABLE (relation oid, name text, image text, found text) LANGUAGE plpgsql AS $$
DECLARE
    v_key text;
    r record;
BEGIN
    FOR r IN
        SELECT n.relation AS oid, format('%I.%I', ns.nspname, c.relname) AS name FROM planarian.net(p_undo, p_redo) n
        JOIN pg_class c ON c.oid = n.relation JOIN pg_namespace ns ON ns.oid = c.relnamespace GROUP BY 1, 2
    LOOP
        v_key := planarian.key_condition(r.oid);
        RETURN QUERY EXECUTE format(
            'SELECT %2$s::oid, %4$L, g.image, %3$s
             FROM (SELECT n.image, n.image::%1$s AS r, n.weight FROM planarian.net($1, $2) n
                   WHERE n.relation = %2$s AND n.weight < 0 OFFSET 0) g
             WHERE (SELECT count(*) FROM ONLY %1$s planarian_row
                    WHERE %5$s textin(record_out(planarian_row)) COLLATE "C" = g.image) < -g.weight',
            r.name, r.oid,
            coalesce(format('(SELECT textin(record_out(planarian_row)) FROM ONLY %s planarian_row WHERE %s)', r.name,
                            format(v_key, 'g.r', 'planarian_row')), 'NULL::text'),
            r.name, coalesce(format(v_key, 'g.r', 'planarian_row') || ' AND ', '')
        ) USING p_undo, p_redo;
        IF p_added AND v_key IS NOT NULL THEN
            RETURN QUERY EXECUTE format(
                'SELECT %2$s::oid, %4$L, g.image, textin(record_out(planarian_row))
                 FROM (SELECT n.image, n.image::%1$s AS r FROM planarian.net($1, $2) n
                       WHERE n.relation = %2$s AND n.weight > 0 OFFSET 0) g
                 JOIN ONLY %1$s planarian_row ON %3$s
                 WHERE textin(record_out(planarian_row)) COLLATE "C" NOT IN (
                     SELECT n.image FROM planarian.net($1, $2) n WHERE n.relation = %2$s AND n.weight < 0)',
                r.name, r.oid, format(v_key, 'g.r', 'planarian_row'), r.name
            ) USING p_undo, p_redo;
        END IF;
    END LOOP;
END $$;

-- The rows that aren't as they were left, as JSON: a few of them, their text bounded.
CREATE FUNCTION planarian.conflicts(p_undo bigint[], p_redo bigint[]) RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(json_agg(json_build_object('table', d.name, 'left', left(d.image, 200), 'found', left(d.found, 200))), '[]')
    FROM (SELECT * FROM planarian.differing(p_undo, p_redo, false) LIMIT 5) d
$$;

-- Undoes one effect (or does it again) except for rows that another writer changed since; returns those.
CREATE FUNCTION planarian.transform_rest(p_id bigint, p_back boolean) RETURNS jsonb LANGUAGE plpgsql
@PINNED@ AS $$
DECLARE
    v_rest bigint := nextval('planarian.effect_id');
    v_skipped jsonb := '[]';
    v_found boolean;
    r record;
BEGIN
    INSERT INTO planarian.image (effect, relation, old, new)
    SELECT v_rest, relation, CASE WHEN p_back THEN old ELSE new END, CASE WHEN p_back THEN new ELSE old END
    FROM planarian.image WHERE effect = p_id;
    LOOP  -- what led to a row that is left alone is left alone too
        v_found := false;
        FOR r IN SELECT * FROM planarian.differing(ARRAY[v_rest], '{}', true) LOOP
            v_found := true;
            DELETE FROM planarian.image i WHERE i.effect = v_rest AND i.relation = r.relation
            AND (i.new = r.image OR i.old = r.image);
            IF jsonb_array_length(v_skipped) < 20 THEN
                v_skipped := v_skipped || jsonb_build_object(
                    'table', r.name, 'left', left(r.image, 200), 'found', left(r.found, 200)
                );
            END IF;
        END LOOP;
        EXIT WHEN NOT v_found;
    END LOOP;
    PERFORM planarian.transform(ARRAY[v_rest], '{}');
    DELETE FROM planarian.image WHERE effect = v_rest;
    RETURN v_skipped;
END $$;
