"""Remote services of Planarian: what a kind of service knows about classes of calls, and how to undo them."""
