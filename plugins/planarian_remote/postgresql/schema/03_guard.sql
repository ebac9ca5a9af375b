-- What keeps a call honest: one at a time, on its own, and nothing written that was not captured.

CREATE FUNCTION planarian.version() RETURNS integer IMMUTABLE LANGUAGE sql AS $$ SELECT @VERSION@ $$;

-- A refusal: takes the whole call back. The text is for the agent.
CREATE FUNCTION planarian.refuse(p_reason text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '%', p_reason USING ERRCODE = 'PLN01';
END $$;

-- Calls that change something go one after the other: an undo switches triggers off and on again, and two of these
-- at once would deadlock. It also makes whoever asks what became of a call wait for the backend that may still run it.
CREATE FUNCTION planarian.lock() RETURNS void LANGUAGE sql AS $$
    SELECT pg_catalog.pg_advisory_xact_lock(8030604370494483310)
$$;

-- The beginning of a call: alone in its transaction, and not made before. id is NULL where it was (answer says what
-- it gave). known: p_target is an ordinary table whose rows are captured; sequences: what an insert to it moves.
CREATE FUNCTION planarian.begin_effect(
    p_version integer, p_owner text, p_number bigint, p_lock_timeout text, p_target oid, p_inserts boolean,
    OUT id bigint, OUT answer text, OUT known boolean, OUT sequences oid[]
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF p_version <> @VERSION@ THEN
        RAISE EXCEPTION '%', @VERSION@ USING ERRCODE = 'PLN04';
    END IF;
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        PERFORM planarian.refuse('a call of Planarian must be a transaction of its own');
    END IF;
    IF NOT current_setting('track_counts')::boolean THEN
        PERFORM planarian.refuse('track_counts is off in this database, so nobody can check what a statement changed');
    END IF;
    IF current_setting('planarian.effect', true) <> '' THEN
        PERFORM planarian.refuse('the setting planarian.effect is not for others');
    END IF;
    PERFORM set_config('lock_timeout', p_lock_timeout, true);
    PERFORM planarian.lock();
    SELECT planarian.answer(e.state, e.row_count, e.rows, e.row_type) INTO answer
    FROM planarian.effect e WHERE e.owner = p_owner AND e.number = p_number;
    IF FOUND THEN
        RETURN;
    END IF;
    id := nextval('planarian.effect_id');
    known := false;
    IF p_target IS NOT NULL AND current_setting('standard_conforming_strings')::boolean THEN
        SELECT true, CASE WHEN p_inserts THEN w.sequences END INTO known, sequences
        FROM planarian.watched w JOIN pg_class c ON c.oid = w.relation
        WHERE w.relation = p_target
          AND c.relkind = 'r' AND c.relpersistence <> 't' AND NOT c.relhasrules;
    END IF;
END $$;

-- What a call gave, as its caller gets it. The rows are text: whoever carries them on must not touch them.
CREATE FUNCTION planarian.answer(p_state text, p_count bigint, p_rows json, p_row_type text) RETURNS text
IMMUTABLE LANGUAGE sql AS $$
    SELECT pg_catalog.json_build_object(
        'state', p_state, 'count', p_count, 'rows', p_rows::pg_catalog.text, 'row_type', p_row_type
    )::pg_catalog.text
$$;

-- The types of a record's columns, in order; NULL where a type has no binary output.
CREATE FUNCTION planarian.row_type(p_row record) RETURNS text LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_bytes bytea;
    v_at integer := 4;
    v_types text := '';
    v_length bigint;
BEGIN
    v_bytes := record_send(p_row);
    WHILE v_at < length(v_bytes) LOOP
        v_types := v_types || ',' || ('x' || encode(substr(v_bytes, v_at + 1, 4), 'hex'))::bit(32)::bigint;
        v_length := ('x' || encode(substr(v_bytes, v_at + 5, 4), 'hex'))::bit(32)::integer;
        v_at := v_at + 8 + greatest(v_length, 0);
    END LOOP;
    RETURN substr(v_types, 2);
EXCEPTION WHEN undefined_function THEN
    RETURN NULL;
END $$;

DO $$
BEGIN
    EXECUTE format(
        'CREATE FUNCTION planarian.catalogs() RETURNS oid[] IMMUTABLE LANGUAGE sql AS %L',
        (SELECT format('SELECT %L::pg_catalog.oid[]', array_agg(oid)) FROM pg_catalog.pg_class
         WHERE relnamespace = 'pg_catalog'::pg_catalog.regnamespace AND relkind = 'r')
    );
END $$;

-- How many rows of the system's catalogs this transaction has changed: none, unless it changed the schema, large
-- objects, privileges or settings. A rolled back attempt counts too.
CREATE FUNCTION planarian.catalog_changes() RETURNS bigint LANGUAGE sql AS $$
    SELECT pg_catalog.sum(
        pg_catalog.pg_stat_get_xact_tuples_inserted(c) OPERATOR(pg_catalog.+)
        pg_catalog.pg_stat_get_xact_tuples_updated(c) OPERATOR(pg_catalog.+)
        pg_catalog.pg_stat_get_xact_tuples_deleted(c)
    )::pg_catalog.int8 FROM pg_catalog.unnest(planarian.catalogs()) c
$$;

-- Rows that this backend wrote, by table, as the server counts them: {table: rows, "catalogs": rows}. What an earlier
-- transaction did may be among it until the statistics were flushed: only differences count.
CREATE FUNCTION planarian.counters() RETURNS jsonb LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_object_agg(w.oid, w.changes) || jsonb_build_object('catalogs', planarian.catalog_changes()) FROM (
        SELECT c.oid, pg_stat_get_xact_tuples_inserted(c.oid) + pg_stat_get_xact_tuples_updated(c.oid)
                      + pg_stat_get_xact_tuples_deleted(c.oid) AS changes
        FROM pg_class c WHERE c.oid >= 16384 AND c.relkind IN ('r', 'm')
    ) w WHERE w.changes > 0 OR w.oid = 'planarian.image'::regclass
$$;

-- Every table that the call wrote to, by the server's own counters, against what was captured.
CREATE FUNCTION planarian.check_captured(p_effect bigint, p_before jsonb) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_after jsonb := planarian.counters();
    v_differs oid[];
BEGIN
    IF (v_after -> 'catalogs') <> (p_before -> 'catalogs') THEN
        PERFORM planarian.refuse('a function or trigger that this statement calls changes more than rows of tables');
    END IF;
    WITH written AS (
        SELECT a.key::oid AS relation, a.value::bigint - coalesce((p_before ->> a.key)::bigint, 0) AS changes
        FROM jsonb_each_text(v_after) a
        WHERE a.key <> 'catalogs' AND a.value::bigint <> coalesce((p_before ->> a.key)::bigint, 0)
    ), captured AS (
        SELECT i.relation, count(*) AS changes FROM planarian.image i WHERE i.effect = p_effect GROUP BY 1
    ), all_captured AS (
        SELECT relation, changes FROM captured
        UNION ALL SELECT 'planarian.image'::regclass, sum(changes) FROM captured HAVING sum(changes) > 0
    )
    SELECT array_agg(relation) INTO v_differs FROM written w FULL JOIN all_captured c USING (relation)
    WHERE w.changes IS DISTINCT FROM c.changes;
    IF v_differs IS NOT NULL THEN
        PERFORM planarian.refuse_uncaptured(v_differs);
    END IF;
END $$;

-- Tables that only lack their trigger are named with PLN02, for a second attempt; else it is a refusal.
CREATE FUNCTION planarian.refuse_uncaptured(p_relations oid[]) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_unwatched oid[];
    v_other text;
BEGIN
    SELECT array_agg(c.oid) FILTER (WHERE u.watchable),
           string_agg(c.oid::regclass::text, ', ') FILTER (WHERE NOT u.watchable)
    INTO v_unwatched, v_other
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace CROSS JOIN LATERAL (
        SELECT c.relkind = 'r' AND c.relpersistence <> 't' AND n.nspname !~ '^planarian'
               AND NOT planarian.is_watched(c.oid) AS watchable
    ) u WHERE c.oid = ANY (p_relations) AND c.oid <> 'planarian.image'::regclass;
    IF v_unwatched IS NOT NULL AND v_other IS NULL THEN
        RAISE EXCEPTION '%', to_json(v_unwatched) USING ERRCODE = 'PLN02';
    END IF;
    PERFORM planarian.refuse(format('not every change to %s could be captured', coalesce(v_other, 'its tables')));
END $$;

-- What the text of a table's rows means: its columns.
CREATE FUNCTION planarian.shape(p_relation oid) RETURNS text STABLE LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT md5(string_agg(format('%s,%s,%s,%s,%s', a.attnum, a.attname, a.atttypid, a.atttypmod, a.attgenerated), ';'
                          ORDER BY a.attnum))
    FROM pg_attribute a WHERE a.attrelid = p_relation AND a.attnum > 0 AND NOT a.attisdropped
$$;
