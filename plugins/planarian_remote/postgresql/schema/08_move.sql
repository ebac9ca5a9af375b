-- Going back and forth in an owner's undo log, in one transaction.

-- Undoes effects, in this order, then does others again, in this order. What is already as wanted is passed over; so
-- going on after a crash, or twice, is harmless. With p_rehearse everything is taken back.
-- Returns {"skipped": [rows that were left to another writer]}.
CREATE FUNCTION planarian.move(
    p_version integer, p_owner text, p_undo bigint[], p_redo bigint[], p_skip boolean, p_rehearse boolean,
    p_lock_timeout text
) RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_undo bigint[];
    v_redo bigint[];
    v_skipped jsonb := '[]';
BEGIN
    PERFORM planarian.check_version(p_version);
    PERFORM set_config('lock_timeout', p_lock_timeout, true);
    PERFORM planarian.lock();
    v_undo := planarian.ids(p_owner, p_undo, 'applied');
    v_redo := planarian.ids(p_owner, p_redo, 'undone');
    BEGIN
        v_skipped := planarian.move_all(v_undo, v_redo, p_skip);
        IF p_rehearse THEN
            RAISE EXCEPTION '%', v_skipped USING ERRCODE = 'PLN00';
        END IF;
    EXCEPTION WHEN SQLSTATE 'PLN00' THEN
        RETURN json_build_object('skipped', SQLERRM::json)::text;
    END;
    UPDATE planarian.effect SET state = 'undone' WHERE id = ANY (v_undo);
    UPDATE planarian.effect SET state = 'applied' WHERE id = ANY (v_redo);
    PERFORM planarian.move_sequences(v_undo, v_redo);
    RETURN json_build_object('skipped', v_skipped)::text;
END $$;

-- The effects behind an owner's numbers that are in a state, in the order of the numbers given. One that isn't known is
-- an error; one that is void, or already in the other state, is left out.
CREATE FUNCTION planarian.ids(p_owner text, p_numbers bigint[], p_state text) RETURNS bigint[] LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_missing bigint;
BEGIN
    SELECT n INTO v_missing FROM unnest(p_numbers) n
    WHERE NOT EXISTS (SELECT FROM planarian.effect e WHERE e.owner = p_owner AND e.number = n) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'this database holds no undo data of effect %', v_missing USING ERRCODE = 'PLN06';
    END IF;
    RETURN (
        SELECT coalesce(array_agg(e.id ORDER BY n.place), '{}') FROM unnest(p_numbers) WITH ORDINALITY n (number, place)
        JOIN planarian.effect e ON e.owner = p_owner AND e.number = n.number WHERE e.state = p_state
    );
END $$;

-- Whether the tables of effects still have the columns that their images are made of.
CREATE FUNCTION planarian.check_shapes(p_ids bigint[]) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r record;
BEGIN
    SELECT s.relation, e.number, c.oid IS NULL AS gone INTO r FROM (
        SELECT s.key::oid AS relation, s.value AS shape, max(e.id) AS effect FROM planarian.effect e
        CROSS JOIN LATERAL jsonb_each_text(e.shapes) s WHERE e.id = ANY (p_ids) GROUP BY 1, 2
    ) s JOIN planarian.effect e ON e.id = s.effect LEFT JOIN pg_class c ON c.oid = s.relation
    WHERE s.shape IS DISTINCT FROM planarian.shape(s.relation) LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '%', json_build_array(json_build_object(
            'table', r.relation::regclass, 'left', CASE WHEN r.gone THEN 'a table' ELSE 'other columns' END,
            'found', CASE WHEN r.gone THEN NULL ELSE 'changed columns' END
        )) USING ERRCODE = 'PLN03';
    END IF;
END $$;

-- Rows in one go as far as no change of the schema lies in between.
CREATE FUNCTION planarian.move_all(p_undo bigint[], p_redo bigint[], p_skip boolean) RETURNS jsonb LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_skipped jsonb := '[]';
    v_undo bigint[] := '{}';
    v_redo bigint[] := '{}';
    r record;
BEGIN
    FOR r IN
        SELECT o.id, o.back, e.kind, e.inverse FROM (
            SELECT id, true AS back, place FROM unnest(p_undo) WITH ORDINALITY u (id, place)
            UNION ALL SELECT id, false, cardinality(p_undo) + place FROM unnest(p_redo) WITH ORDINALITY d (id, place)
        ) o JOIN planarian.effect e ON e.id = o.id ORDER BY o.place
    LOOP
        IF r.kind = 'schema' THEN
            v_skipped := v_skipped || planarian.move_rows(v_undo, v_redo, p_skip);
            v_undo := '{}';
            v_redo := '{}';
            PERFORM planarian.run_steps(r.id, r.inverse -> CASE WHEN r.back THEN 'undo' ELSE 'redo' END);
        ELSIF r.back THEN
            v_undo := v_undo || r.id;
        ELSE
            v_redo := v_redo || r.id;
        END IF;
    END LOOP;
    RETURN v_skipped || planarian.move_rows(v_undo, v_redo, p_skip);
END $$;

-- Undoes and does again effects on rows: all as one net change, or with p_skip, where that meets another writer, one
-- by one and around the rows that it changed. Returns those rows.
CREATE FUNCTION planarian.move_rows(p_undo bigint[], p_redo bigint[], p_skip boolean) RETURNS jsonb LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_skipped jsonb := '[]';
    v_id bigint;
BEGIN
    PERFORM planarian.check_shapes(p_undo || p_redo);
    BEGIN
        PERFORM planarian.transform(p_undo, p_redo);
        RETURN v_skipped;
    EXCEPTION WHEN SQLSTATE 'PLN03' THEN
        IF NOT p_skip THEN
            RAISE;
        END IF;
    END;
    FOREACH v_id IN ARRAY p_undo LOOP
        v_skipped := v_skipped || planarian.transform_rest(v_id, true);
    END LOOP;
    FOREACH v_id IN ARRAY p_redo LOOP
        v_skipped := v_skipped || planarian.transform_rest(v_id, false);
    END LOOP;
    RETURN v_skipped;
END $$;

-- What became of a call: waits for the backend that may still run it, and if it never happened, makes sure that it
-- never will.
CREATE FUNCTION planarian.settle(p_version integer, p_owner text, p_number bigint, p_lock_timeout text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM planarian.check_version(p_version);
    PERFORM set_config('lock_timeout', p_lock_timeout, true);
    PERFORM planarian.lock();
    INSERT INTO planarian.effect (id, owner, number, state)
    VALUES (nextval('planarian.effect_id'), p_owner, p_number, 'void') ON CONFLICT DO NOTHING;
    RETURN (SELECT planarian.answer(e.state, e.row_count, e.rows, e.row_type) FROM planarian.effect e WHERE e.owner = p_owner AND e.number = p_number);
END $$;

-- Drops the undo data of effects that nobody will undo or do again.
CREATE FUNCTION planarian.forget(p_version integer, p_owner text, p_numbers bigint[], p_lock_timeout text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r record;
BEGIN
    PERFORM planarian.check_version(p_version);
    PERFORM set_config('lock_timeout', p_lock_timeout, true);
    PERFORM planarian.lock();
    FOR r IN
        SELECT DISTINCT a.effect FROM planarian.aside a JOIN planarian.effect e ON e.id = a.effect
        WHERE e.owner = p_owner AND e.number = ANY (p_numbers)
    LOOP
        EXECUTE format('DROP SCHEMA planarian_aside_%s CASCADE', r.effect);
        DELETE FROM planarian.aside WHERE effect = r.effect;
    END LOOP;
    DELETE FROM planarian.image WHERE effect IN (
        SELECT id FROM planarian.effect WHERE owner = p_owner AND number = ANY (p_numbers)
    );
    DELETE FROM planarian.effect WHERE owner = p_owner AND number = ANY (p_numbers);
    RETURN '{}';
END $$;
