"""What operators look at: a web page and a JSON API over the Delta tables, which it reads with delta-rs.

A request goes from `http`, the application and its server, to `views`, which reads its parameters and answers it, and
`client`, the view of one client. `reader` reads the newest versions of the tables, each second into a `state`.
"""
