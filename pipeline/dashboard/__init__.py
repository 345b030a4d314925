"""What operators look at: a web page and a JSON API over the Delta tables, which it reads with delta-rs.

`reader` keeps the newest versions open and reads what is new. Modules named `…_view` are functions of rows and
`now_ms`; those named `…_reading` fetch the rows. `http` is the application, `server` its socket.
"""
