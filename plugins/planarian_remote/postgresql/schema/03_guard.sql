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
    SELECT pg_catalog.pg_advisory_xact_lock(@LOCK@)
$$;

-- The beginning of a call: alone in its transaction. reach: the tables that a plain statement on p_target may reach, where
-- it is a table whose rows are captured, and it can't mean any operator, cast or function of users; else NULL.
-- sequences: what an insert moves. It names schemas itself, as finish_plain does: a SET for the function takes longer.
CREATE FUNCTION planarian.begin_effect(
    p_version integer, p_lock_timeout text, p_target oid, p_inserts boolean, p_functions text[],
    OUT id bigint, OUT reach oid[], OUT sequences oid[]
) LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    v_unused pg_catalog.text;  -- an assignment is quicker than PERFORM
BEGIN
    IF p_version OPERATOR(pg_catalog.<>) @VERSION@ OR pg_catalog.pg_current_xact_id_if_assigned() IS NOT NULL
        OR pg_catalog.current_setting('planarian.effect', true) OPERATOR(pg_catalog.<>) ''
        OR NOT pg_catalog.current_setting('track_counts')::pg_catalog.bool
    THEN
        PERFORM planarian.refuse_begin(p_version);
    END IF;
    v_unused := pg_catalog.set_config('lock_timeout', p_lock_timeout, true);
    v_unused := pg_catalog.concat(pg_catalog.pg_advisory_xact_lock(@LOCK@));
    id := pg_catalog.nextval('planarian.effect_id');
    IF p_target IS NOT NULL AND pg_catalog.current_setting('standard_conforming_strings')::pg_catalog.bool THEN
        SELECT w.reach, CASE WHEN p_inserts THEN w.sequences END INTO reach, sequences
        FROM planarian.watched w WHERE w.relation OPERATOR(pg_catalog.=) p_target AND w.closed;
        IF pg_catalog.cardinality(p_functions) OPERATOR(pg_catalog.>) 0 AND EXISTS (
            SELECT FROM pg_catalog.pg_proc f
            WHERE f.proname OPERATOR(pg_catalog.=) ANY (p_functions) AND f.oid OPERATOR(pg_catalog.>=) 16384
        ) THEN
            reach := NULL;
        END IF;
    END IF;
END $$;

CREATE FUNCTION planarian.refuse_begin(p_version integer) RETURNS void LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM planarian.check_version(p_version);
    IF NOT current_setting('track_counts')::boolean THEN
        PERFORM planarian.refuse('track_counts is off in this database, so nobody can check what a statement changed');
    END IF;
    PERFORM planarian.refuse('a call of Planarian must be a transaction of its own');
END $$;

-- Whether the caller was written for these functions; PLN04 with our version if not.
CREATE FUNCTION planarian.check_version(p_version integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF p_version <> @VERSION@ THEN
        RAISE EXCEPTION '%', @VERSION@ USING ERRCODE = 'PLN04';
    END IF;
END $$;

-- What a call gave, as its caller gets it. The rows are text: whoever carries them on must not touch them.
CREATE FUNCTION planarian.answer(p_state text, p_count bigint, p_rows json, p_row_type text) RETURNS text
IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    RETURN pg_catalog.json_build_object(
        'state', p_state, 'count', p_count, 'rows', p_rows::pg_catalog.text, 'row_type', p_row_type
    );
END $$;

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

-- Rows of a table that this backend wrote, as the server counts them (see planarian.counters).
CREATE FUNCTION planarian.changes(p_relation oid) RETURNS bigint LANGUAGE sql AS $$
    SELECT pg_catalog.pg_stat_get_xact_tuples_inserted(p_relation) OPERATOR(pg_catalog.+)
           pg_catalog.pg_stat_get_xact_tuples_updated(p_relation) OPERATOR(pg_catalog.+)
           pg_catalog.pg_stat_get_xact_tuples_deleted(p_relation)
$$;

-- The same for several; most often it is one, and the server then puts this in place of the call.
CREATE FUNCTION planarian.changes_to(p_relations oid[]) RETURNS bigint LANGUAGE sql AS $$
    SELECT CASE WHEN pg_catalog.cardinality(p_relations) OPERATOR(pg_catalog.=) 1 THEN planarian.changes(p_relations[1])
                ELSE planarian.changes_to_each(p_relations) END
$$;

CREATE FUNCTION planarian.changes_to_each(p_relations oid[]) RETURNS bigint LANGUAGE sql AS $$
    SELECT pg_catalog.sum(planarian.changes(r)) FROM pg_catalog.unnest(p_relations) r
$$;

-- How many rows of the system's catalogs this backend has changed, as the server counts them (see planarian.counters):
-- any change of the schema, of large objects, privileges or settings is among it. A rolled back attempt counts too.
DO $$
BEGIN
    EXECUTE format(
        'CREATE FUNCTION planarian.catalog_changes() RETURNS bigint LANGUAGE plpgsql AS %L', format(
            'BEGIN RETURN (SELECT pg_catalog.sum(planarian.changes(c)) FROM pg_catalog.unnest(%L::pg_catalog.oid[]) c); END',
            (SELECT array_agg(oid) FROM pg_catalog.pg_class
             WHERE relnamespace = 'pg_catalog'::pg_catalog.regnamespace AND relkind = 'r')
        )
    );
END $$;

-- Rows that this backend wrote, by table, as the server counts them: {table: rows, "catalogs": rows}. What an earlier
-- transaction did may be among it until the statistics were flushed: only differences count.
CREATE FUNCTION planarian.counters() RETURNS jsonb LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT jsonb_object_agg(w.oid, w.changes) || jsonb_build_object('catalogs', planarian.catalog_changes()) FROM (
        SELECT c.oid, planarian.changes(c.oid) AS changes
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
    SELECT md5(string_agg(format('%s,%s,%s,%s', a.attname, a.atttypid, a.atttypmod, a.attgenerated), ';' ORDER BY a.attnum))
    FROM pg_attribute a WHERE a.attrelid = p_relation AND a.attnum > 0 AND NOT a.attisdropped
$$;
