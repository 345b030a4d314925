"""Tells people what needs them: clients near their bounds, throttles, a pipeline that stalls, dead letters.

`judging` makes findings from the tables, `decision` makes changes of findings; both are functions of values.
`alerter` is the loop around them, and `delivery` brings messages to each receiver.
"""
