-- TRUNCATE leaves no row images and fires no row triggers: the rows are kept first, and which tables it empties is seen
-- in their storage.

CREATE FUNCTION planarian.apply_truncate(
    p_version integer, p_owner text, p_number bigint, p_statement text, p_max_rows bigint, p_lock_timeout text
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    v_begun record;
    v_tables pg_catalog.oid[];
    v_sequences pg_catalog.jsonb;
    v_counters pg_catalog.jsonb;
    v_table pg_catalog.oid;
BEGIN
    v_begun := planarian.begin_effect(p_version, p_lock_timeout, NULL, false, '{}');
    v_counters := planarian.counters();
    v_tables := planarian.emptied_by(p_statement);
    FOREACH v_table IN ARRAY v_tables LOOP
        PERFORM planarian.keep_rows(v_begun.id, v_table, p_max_rows);
    END LOOP;
    v_sequences := planarian.sequence_values(planarian.sequences_of(v_tables));
    EXECUTE p_statement;
    IF EXISTS (
        SELECT FROM pg_catalog.jsonb_each_text(planarian.counters()) a
        WHERE a.key NOT IN ('catalogs', 'planarian.image'::pg_catalog.regclass::pg_catalog.oid::pg_catalog.text)
          AND a.value <> coalesce(v_counters ->> a.key, '0')
    ) THEN
        PERFORM planarian.refuse('a trigger that it fires changes rows');
    END IF;
    IF EXISTS (SELECT FROM planarian.image i WHERE i.effect = v_begun.id) THEN
        PERFORM planarian.try_undo(v_begun.id);
    END IF;
    PERFORM planarian.enter(
        v_begun.id, p_owner, p_number, p_statement, 0, NULL, NULL,
        (SELECT coalesce(pg_catalog.jsonb_object_agg(t, planarian.shape(t)), '{}') FROM pg_catalog.unnest(v_tables) t),
        v_sequences
    );
    RETURN planarian.answer('applied', 0, NULL, NULL);
END $$;

-- Which tables a TRUNCATE empties: tries it, and takes that back.
CREATE FUNCTION planarian.emptied_by(p_statement text) RETURNS oid[] LANGUAGE plpgsql AS $$
DECLARE
    v_files pg_catalog.jsonb := planarian.files();
    v_tables pg_catalog.oid[];
    v_other pg_catalog.text;
BEGIN
    BEGIN
        EXECUTE p_statement;
        SELECT pg_catalog.array_agg(f.key) INTO v_tables FROM pg_catalog.jsonb_each_text(planarian.files()) f
        JOIN pg_catalog.pg_class c ON c.oid = f.key::pg_catalog.oid AND c.relkind = 'r' WHERE v_files ->> f.key <> f.value;
        RAISE EXCEPTION '%', coalesce(v_tables, '{}') USING ERRCODE = 'PLN00';
    EXCEPTION WHEN SQLSTATE 'PLN00' THEN
        v_tables := SQLERRM::pg_catalog.oid[];
    END;
    SELECT pg_catalog.format('the trigger %I of %s might do more', t.tgname, t.tgrelid::pg_catalog.regclass) INTO v_other
    FROM pg_catalog.pg_trigger t
    WHERE t.tgrelid = ANY (planarian.parents(v_tables)) AND NOT t.tgisinternal AND t.tgtype & 32 <> 0 LIMIT 1;
    IF FOUND THEN
        PERFORM planarian.refuse(v_other);
    END IF;
    RETURN v_tables;
END $$;

CREATE FUNCTION planarian.parents(p_relations oid[]) RETURNS oid[] STABLE LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE up (oid) AS (
        SELECT unnest(p_relations) UNION SELECT i.inhparent FROM up JOIN pg_inherits i ON i.inhrelid = up.oid
    )
    SELECT array_agg(oid) FROM up
$$;

CREATE FUNCTION planarian.keep_rows(p_id bigint, p_table oid, p_max_rows bigint) RETURNS void LANGUAGE plpgsql
@PINNED@ AS $$
DECLARE
    v_rows bigint;
BEGIN
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', p_table::regclass);
    EXECUTE format(
        'INSERT INTO planarian.image (effect, relation, old)
         SELECT $1, $2, textin(record_out(planarian_row)) FROM ONLY %s planarian_row LIMIT $3', p_table::regclass
    ) USING p_id, p_table, p_max_rows + 1;
    SELECT count(*) INTO v_rows FROM planarian.image WHERE effect = p_id;
    IF v_rows > p_max_rows THEN
        PERFORM planarian.refuse(format('it empties tables of more than %s rows, which is as many as can be kept', p_max_rows));
    END IF;
END $$;
