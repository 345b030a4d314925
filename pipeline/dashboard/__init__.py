"""What operators look at: a web page and a JSON API over the Delta tables, which it reads with delta-rs.

A request goes from `http`, the application and its server, by `api`, which reads its parameters, to `views`, which
answers it, and `client`, the view of one client. `reader` keeps the newest versions open and reads what is new, into a
`state`; `recent` has its tables.
"""
