"""PostgreSQL's own regression SQL, sent through the kind ``sql``: every accepted statement is undone exactly.

``python -m sql_corpus --help``; ``nox -s sql_corpus`` runs all of it.
"""
