"""Alerts: clients near their bounds, throttles, a pipeline that stalls, dead letters.

`judging` makes findings and changes of them, as functions of values. `alerter` is the loop around it, with the state
and the delivery; `receivers` has the webhooks and the topic.
"""
