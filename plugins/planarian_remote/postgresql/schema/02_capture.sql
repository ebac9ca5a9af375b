-- Row images: a trigger on every table that a statement may reach. It does nothing unless a call of ours is under way
-- (the setting planarian.effect), runs whatever session_replication_role is (ENABLE ALWAYS), and sees what the statement
-- itself doesn't show: cascades, other triggers' writes, both halves of an upsert, partitions, tables below views.

-- Row text must not depend on the session: DateStyle, TimeZone and others change it, extra_float_digits = 0 loses digits.
-- Where the session's settings are harmless (the rule), nothing is set; a trigger made with the argument 'pinned', for
-- columns whose text depends on more (money, xml, regclass, types of users), always sets them.
CREATE OR REPLACE FUNCTION planarian.capture() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    v_effect pg_catalog.int8 := pg_catalog.current_setting('planarian.effect');
    v_before pg_catalog.jsonb;
BEGIN
    IF TG_NARGS OPERATOR(pg_catalog.=) 0
        AND pg_catalog.current_setting('extra_float_digits') OPERATOR(pg_catalog.=) '1'
        AND pg_catalog.current_setting('TimeZone') OPERATOR(pg_catalog.=) ANY (ARRAY['UTC', 'Etc/UTC'])
        AND pg_catalog.starts_with(pg_catalog.current_setting('DateStyle'), 'ISO,')
        AND pg_catalog.current_setting('IntervalStyle') OPERATOR(pg_catalog.=) 'postgres'
        AND pg_catalog.current_setting('bytea_output') OPERATOR(pg_catalog.=) 'hex'
    THEN
        INSERT INTO planarian.image (effect, relation, old, new) VALUES (
            v_effect, TG_RELID,
            pg_catalog.textin(pg_catalog.record_out(OLD)), pg_catalog.textin(pg_catalog.record_out(NEW))
        );
    ELSE
        v_before := planarian.pin();
        INSERT INTO planarian.image (effect, relation, old, new) VALUES (
            v_effect, TG_RELID,
            pg_catalog.textin(pg_catalog.record_out(OLD)), pg_catalog.textin(pg_catalog.record_out(NEW))
        );
        PERFORM planarian.unpin(v_before);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION planarian.pinned_settings() RETURNS jsonb IMMUTABLE LANGUAGE sql AS $$
    SELECT '{"search_path": "pg_catalog", "DateStyle": "ISO, MDY", "IntervalStyle": "postgres", "TimeZone": "UTC",
             "extra_float_digits": "1", "bytea_output": "hex", "lc_monetary": "C", "xmloption": "content"}'
           ::pg_catalog.jsonb
$$;

-- Pins the settings on which the text of values depends; returns what they were. An error in between takes the
-- whole statement back, and with it the settings.
CREATE FUNCTION planarian.pin() RETURNS jsonb LANGUAGE sql AS $$
    SELECT pg_catalog.jsonb_object_agg(s.key, s.was) FROM (
        SELECT e.key, pg_catalog.current_setting(e.key) AS was, pg_catalog.set_config(e.key, e.value, true)
        FROM pg_catalog.jsonb_each_text(planarian.pinned_settings()) e OFFSET 0
    ) s
$$;

CREATE FUNCTION planarian.unpin(p_before jsonb) RETURNS void LANGUAGE sql AS $$
    SELECT pg_catalog.count(pg_catalog.set_config(e.key, e.value, true)) FROM pg_catalog.jsonb_each_text(p_before) e
$$;

-- Whether the text of a table's rows depends on settings that the quick way doesn't look at.
CREATE FUNCTION planarian.needs_pinning(p_relation oid) RETURNS boolean STABLE LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type e ON e.oid = t.typelem
        WHERE a.attrelid = p_relation AND a.attnum > 0 AND NOT a.attisdropped
          AND (a.atttypid >= 16384 OR t.typname ~ '^_?(money|xml|reg.*|aclitem)$' OR coalesce(e.typtype, 'b') <> 'b')
    )
$$;

CREATE FUNCTION planarian.is_watched(p_relation oid) RETURNS boolean STABLE LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM pg_trigger t
        WHERE t.tgrelid = p_relation AND t.tgname = 'planarian_capture' AND t.tgenabled = 'A'
          AND t.tgfoid = 'planarian.capture'::regproc
          AND (t.tgnargs = 1) >= planarian.needs_pinning(p_relation)
    )
$$;

-- Puts the trigger on tables, where it isn't or isn't as it must be. Takes a lock on each that waits for writers.
CREATE FUNCTION planarian.watch(p_relations oid[], p_lock_timeout text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r record;
BEGIN
    PERFORM set_config('lock_timeout', p_lock_timeout, true);
    PERFORM planarian.lock();
    FOR r IN
        SELECT format('%I.%I', n.nspname, c.relname) AS name, c.oid
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.oid = ANY (p_relations) AND c.relkind = 'r' AND c.relpersistence <> 't' AND NOT planarian.is_watched(c.oid)
        ORDER BY c.oid
    LOOP
        IF EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = r.oid AND t.tgname = 'planarian_capture') THEN
            EXECUTE format('DROP TRIGGER planarian_capture ON %s', r.name);
        END IF;
        EXECUTE format(
            'CREATE TRIGGER planarian_capture AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW '
            'WHEN (pg_catalog.current_setting(''planarian.effect'', true) OPERATOR(pg_catalog.<>) '''') '
            'EXECUTE FUNCTION planarian.capture(%s)',
            r.name, CASE WHEN planarian.needs_pinning(r.oid) THEN 'pinned' ELSE '' END
        );
        EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER planarian_capture', r.name);
        PERFORM planarian.note_watched(r.oid);
    END LOOP;
END $$;

CREATE FUNCTION planarian.note_watched(p_relation oid) RETURNS void LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO planarian.watched (relation, reach, closed, sequences)
    VALUES (
        p_relation, p_relation || array_remove(planarian.reach(ARRAY[p_relation]), p_relation), planarian.is_closed(ARRAY[p_relation]),
        planarian.sequences_of(ARRAY[p_relation])
    )
    ON CONFLICT (relation) DO UPDATE
    SET reach = excluded.reach, closed = excluded.closed, sequences = excluded.sequences
$$;

-- The tables that a write to some tables may reach: partitions and children, and those that refer to them with an
-- action of their own.
CREATE FUNCTION planarian.reach(p_relations oid[]) RETURNS oid[] STABLE LANGUAGE sql
SET search_path = pg_catalog, pg_temp AS $$
    WITH RECURSIVE reached (oid) AS (
        SELECT unnest(p_relations)
        UNION
        SELECT next.oid FROM reached r CROSS JOIN LATERAL (
            SELECT i.inhrelid AS oid FROM pg_inherits i WHERE i.inhparent = r.oid
            UNION ALL
            SELECT k.conrelid FROM pg_constraint k
            WHERE k.contype = 'f' AND k.confrelid = r.oid
              AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd'))
        ) next
    )
    SELECT coalesce(array_agg(oid), '{}') FROM reached
$$;
