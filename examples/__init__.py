"""Small programs that follow the throttle topic. The tests run each of them as it is."""
