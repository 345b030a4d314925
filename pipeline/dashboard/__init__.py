"""What operators look at: a web page and a JSON API over the Delta tables. It reads them with delta-rs and writes none.

`reader` keeps the newest versions open and reads what is new; `*_view` are functions of rows and `now_ms`; `http` is the
application; `server` its socket.
"""
