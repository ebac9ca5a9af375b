"""`sql` for SQLite: statements run by ourselves on the database's file, each in one transaction with its undo data."""
