"""Small programs that follow the throttle topic. Each is run by the tests as it stands here."""
