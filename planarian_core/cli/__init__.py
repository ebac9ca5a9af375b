"""The command line: translates arguments into runtime calls and results into text or JSON; decides nothing about state.

``own_commands.py`` lists the commands; each module holds one group of them.
"""
