"""What operators look at: a web page and a JSON API over the Delta tables, which it reads with delta-rs.

`reader` keeps the newest versions open and reads what is new. `state`, `views` and `client_view` are functions of rows
and `now_ms`; `client_reading` fetches rows. `http` is the application and its server.
"""
