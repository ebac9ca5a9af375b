-- What Planarian keeps in the database whose rows it can bring back. Everything is in the schema "planarian".

CREATE SCHEMA IF NOT EXISTS planarian;

CREATE TABLE IF NOT EXISTS planarian.installed (version integer NOT NULL);

-- One row for each call that changed something; it commits with the change.
--   owner, number  whose call it is, and its number in that owner's undo log: the key that makes a call idempotent
--   state          'applied', 'undone', or 'void': it never happened and no longer can
--   kind           'rows' (its images say all), 'truncate' (the same, written back differently), 'schema' (by inverse)
--   shapes         {table: fingerprint of its columns}: images are worthless once it differs
--   sequences      {sequence: [value before, value after]}
--   inverse        what undoes and repeats a change of the schema
CREATE TABLE IF NOT EXISTS planarian.effect (
    id bigint PRIMARY KEY,
    owner text NOT NULL,
    number bigint NOT NULL,
    state text NOT NULL,
    kind text NOT NULL DEFAULT 'rows',
    statement text NOT NULL DEFAULT '',
    row_count bigint,
    rows json,
    row_type text,
    shapes jsonb NOT NULL DEFAULT '{}',
    sequences jsonb NOT NULL DEFAULT '{}',
    inverse jsonb,
    made_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (owner, number)
);

CREATE SEQUENCE IF NOT EXISTS planarian.effect_id;

-- Each row that an effect changed, as text: before (NULL: inserted) and after (NULL: deleted). The text is the row
-- type's own output under pinned settings, and exact.
CREATE TABLE IF NOT EXISTS planarian.image (
    effect bigint NOT NULL,
    relation oid NOT NULL,
    old text COLLATE "C",
    new text COLLATE "C"
);
CREATE INDEX IF NOT EXISTS image_effect ON planarian.image (effect);

-- Where a change is worked out before it is written (only within one transaction: nobody ever sees a row).
--   step   'n': net change of a row's count, 'd': to delete, 'u': to update, 'i': to insert
--   place  the ctid of the row that is there
CREATE UNLOGGED TABLE IF NOT EXISTS planarian.work (
    relation oid NOT NULL,
    step "char" NOT NULL,
    place tid,
    image text COLLATE "C",
    weight bigint
);
ALTER TABLE planarian.work SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Tables that have the capturing trigger: which tables a write to each may reach, whether such a write runs no code of
-- users (it did not when last looked at), and the sequences that give values to its columns.
CREATE TABLE IF NOT EXISTS planarian.watched (
    relation oid PRIMARY KEY,
    reach oid[] NOT NULL,
    closed boolean NOT NULL,
    sequences oid[]
);

-- Sets of tables, with the kinds of changes made to them, of which a trial showed that they can be undone, in the shape
-- that they had then (05_proof.sql). closed: writing to them runs no code of users.
CREATE TABLE IF NOT EXISTS planarian.proof (key text PRIMARY KEY, shapes jsonb NOT NULL, closed boolean NOT NULL);

-- Tables and sequences that were dropped, and are kept in a schema planarian_aside_EFFECT: where they were, and the
-- foreign keys that they had, as [[name, definition], …].
CREATE TABLE IF NOT EXISTS planarian.aside (
    effect bigint,
    relation oid,
    namespace name NOT NULL,
    foreign_keys jsonb NOT NULL,
    PRIMARY KEY (effect, relation)
);

REVOKE ALL ON ALL TABLES IN SCHEMA planarian FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA planarian FROM PUBLIC;
