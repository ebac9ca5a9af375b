"""``sql`` on PostgreSQL: rows changed through one tool that takes one SQL string are brought back exactly, or the
statement is refused before it has any effect.

Effect and undo data commit in one transaction, by functions of ours in the schema ``planarian`` of the target database
(``schema/*.sql``; ``docs/sql.md`` explains them). To drive it in-process, without a server or a proxy::

    # make is planarian_remote.postgresql.kind.make
    kind = make(Table("db", {"kind": "sql", "dialect": "postgresql", "dsn": dsn}), "sb-1")
    target = kind.connect()
    call = RemoteCall("execute_sql", {"sql": "UPDATE t SET n = n + 1"})
    verdict = kind.classify(call)                       # READ_ONLY: kind.read(call, target); REFUSED: .reason
    effect = Effect("sb-1", "db", 1, 0, call.tool, call.digest, verdict.call_class, EffectState.SENT)
    outcome = kind.run(call, effect, target)            # RemoteError "call-refused" where it can't be undone
    kind.move([effect], [], target, lambda effect, state: None)     # undo, newest first
    kind.move([], [effect], target, lambda effect, state: None)     # do again

Numbers of effects must be distinct for one sandbox and service.
"""
